"""The read model for commands and the UI: what the ledger says of topologies and transactions. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_tx.errors import UnknownTransaction
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.paths import Paths, ack_element
from airflow_tx.protocol.paths import decode as decode_name
from airflow_tx.protocol.processing import Instance, ack_val, missing_acks, must_ack
from airflow_tx.protocol.records import (
    Ack,
    Counter,
    History,
    Metadata,
    Phase,
    RepairRecord,
    TopologyRecord,
    TransactionRecord,
    decode,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    R = TypeVar("R", bound="DataclassInstance")

RECENT = 50


@dataclass(frozen=True)
class TransactionView:
    """One transaction, open or final.

    :param status: its phase while it is open, then its outcome.
    :param attempt: the newest attempt, or how many it took.
    :param processed: when the last task acked; `granted` when the newest grant was given; `ended` when it became final.
    :param rows: rows of the batch, if counted.
    :param ack_val: 16 hex digits; all 0: everything emitted was acked.
    :param waiting_for: what has to happen before it goes on, in words; None if it is final.
    """

    txid: int
    attempt: int
    status: str
    run_id: str
    began: str
    processed: str | None
    granted: str | None
    ended: str | None
    rows: int | None
    ack_val: str
    failures: int
    error: str | None
    waiting_for: str | None
    open: bool


@dataclass(frozen=True)
class TransactionDetails:
    """One transaction with what only a single one is read for.

    :param batch: its rows and position, while the ledger keeps them.
    :param acks: per task (`task` or `task[index]`) what it contributed, while the transaction is open.
    """

    transaction: TransactionView
    batch: Metadata | None
    acks: Mapping[str, Ack] = field(default_factory=dict)


@dataclass(frozen=True)
class TopologyView:
    """One topology.

    :param transactions: newest first: all open ones, and as many final ones as were asked for.
    :param owner: what the holder of the commit turn tells of itself; None if nobody holds it.
    :param repairs: what people did to the ledger, oldest first.
    """

    name: str
    record: TopologyRecord
    current: int
    allocated: int
    transactions: tuple[TransactionView, ...]
    owner: Mapping[str, Any] | None = None
    repairs: tuple[RepairRecord, ...] = ()


def topologies(store: Store, root: str) -> tuple[str, ...]:
    """Names of the topologies below `root`, sorted; none if the root does not exist."""
    children = store.children(root.rstrip("/") or "/")
    names = (decode_name(element) for element in (children.names if children else ()))
    return tuple(sorted(name for name in names if store.get(Paths(root, name).record) is not None))


def topology_view(store: Store, paths: Paths, *, recent: int = RECENT) -> TopologyView:
    """A topology with its open transactions and the `recent` last final ones.

    Records that become final while it reads appear as they were or as they are, never twice.

    :raises UnknownTransaction: there is no such topology.
    :raises UnreadableRecord: naming the record.
    """
    record = _need(store, TopologyRecord, paths.record, f"topology {paths.topology!r}")
    current = _need(store, Counter, paths.current, "current txid").txid
    allocated = _need(store, Counter, paths.allocated, "allocated txid").txid
    opened = {txid: found for txid in _txids(store, paths.transactions) if (found := _open(store, paths, txid))}
    final = [txid for txid in _txids(store, paths.histories) if txid not in opened]
    views = [_view_open(store, paths, txid, found, opened, current) for txid, found in opened.items()]
    for txid in final[max(len(final) - recent, 0) :]:
        history = _get(store, History, paths.history(txid))
        if history is not None:  # else it was rotated away meanwhile
            views.append(_view_final(history))
    ordered = tuple(sorted(views, key=lambda view: -view.txid))
    return TopologyView(
        paths.topology, record, current, allocated, ordered, _owner(store, paths), repairs(store, paths)
    )


def transaction_details(store: Store, paths: Paths, txid: int) -> TransactionDetails:
    """One transaction, open or final.

    :raises UnknownTransaction: there is none of this txid, or its history is forgotten.
    """
    _need(store, TopologyRecord, paths.record, f"topology {paths.topology!r}")
    current = _need(store, Counter, paths.current, "current txid").txid
    batch = _get(store, Metadata, paths.meta(txid)) or _get(store, Metadata, paths.skipped(txid))
    record = _open(store, paths, txid)
    if record is not None:
        earlier = {each: found for each in range(current, txid) if (found := _open(store, paths, each))}
        view = _view_open(store, paths, txid, record, earlier, current)
        acks = {_task(key): entry for key, entry in _acks(store, paths, txid).items()}
        return TransactionDetails(view, batch, acks)
    history = _get(store, History, paths.history(txid))
    if history is None:
        raise UnknownTransaction(what=f"transaction {txid} of topology {paths.topology!r}", path=paths.history(txid))
    return TransactionDetails(_view_final(history), batch)


def repairs(store: Store, paths: Paths) -> tuple[RepairRecord, ...]:
    """What people did to the ledger of a topology, oldest first."""
    found = (_get(store, RepairRecord, paths.repair(number)) for number in _txids(store, paths.repairs))
    return tuple(record for record in found if record is not None)


# --- one transaction ---------------------------------------------------------------------------------------------


def _view_open(
    store: Store,
    paths: Paths,
    txid: int,
    record: TransactionRecord,
    opened: Mapping[int, TransactionRecord],
    current: int,
) -> TransactionView:
    acks = _acks(store, paths, txid)
    rows = [entry.rows for entry in acks.values() if entry.rows is not None]
    return TransactionView(
        txid=txid,
        attempt=record.attempt,
        status=record.phase.value,
        run_id=record.run_id,
        began=record.began,
        processed=record.processed,
        granted=record.granted_at if record.phase is Phase.COMMITTING else None,
        ended=None,
        rows=max(rows, default=None),
        ack_val=f"{ack_val(record, acks, _must_ack(record, acks)):016x}",
        failures=record.failures,
        error=record.error,
        waiting_for=_waiting_for(txid, record, acks, opened, current),
        open=True,
    )


def _view_final(history: History) -> TransactionView:
    return TransactionView(
        txid=history.txid,
        attempt=history.attempts,
        status=history.outcome.value,
        run_id=history.run_id,
        began=history.began,
        processed=history.processed,
        granted=history.granted_at,
        ended=history.ended,
        rows=history.rows,
        ack_val=history.ack_val,
        failures=history.failures,
        error=None,
        waiting_for=None,
        open=False,
    )


def _waiting_for(
    txid: int,
    record: TransactionRecord,
    acks: Mapping[tuple[str, int], Ack],
    opened: Mapping[int, TransactionRecord],
    current: int,
) -> str:
    if record.phase is Phase.FAILED:
        return "a replay: clear its failed task or its run"
    if record.phase is Phase.PROCESSING:
        tasks = missing_acks(acks, _must_ack(record, acks))
        return f"an ack of {', '.join(tasks)}" if tasks else "its committer"
    first = opened.get(current)
    if txid > current and first is not None:
        attempt = TransactionAttempt(current, first.attempt)
        return f"transaction {attempt} (run {first.run_id}, {first.phase.value})"
    return "its committer"


# --- records -----------------------------------------------------------------------------------------------------


def _open(store: Store, paths: Paths, txid: int) -> TransactionRecord | None:
    return _get(store, TransactionRecord, paths.transaction(txid))


def _acks(store: Store, paths: Paths, txid: int) -> dict[tuple[str, int], Ack]:
    folder = paths.acks(txid)
    children = store.children(folder)
    names = children.names if children else ()
    found = {ack_element(name): _get(store, Ack, f"{folder}/{name}") for name in names}
    return {key: entry for key, entry in found.items() if entry is not None}


def _task(key: tuple[str, int]) -> str:
    return key[0] if key[1] < 0 else f"{key[0]}[{key[1]}]"


def _owner(store: Store, paths: Paths) -> Mapping[str, Any] | None:
    node = store.get(paths.owner)
    try:
        told = None if node is None else json.loads(node.data)
    except ValueError:
        return None  # for display only, so nothing stops for it
    return told if isinstance(told, dict) else None


def _txids(store: Store, path: str) -> list[int]:
    children = store.children(path)
    return sorted(_numbers(children.names if children else ()))


def _numbers(names: tuple[str, ...]) -> Iterator[int]:
    return (int(name) for name in names if name.isdigit())


def _get(store: Store, cls: type[R], path: str) -> R | None:
    node = store.get(path)
    return None if node is None else decode(cls, path, node.data)


def _need(store: Store, cls: type[R], path: str, what: str) -> R:
    record = _get(store, cls, path)
    if record is None:
        raise UnknownTransaction(what=what, path=path)
    return record


def _must_ack(record: TransactionRecord, acks: Mapping[Instance, Ack]) -> set[Instance]:
    return must_ack(record, acks, {task for task, index in acks if index >= 0})
