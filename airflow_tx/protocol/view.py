"""The read model for commands and the UI: what the ledger says of topologies and transactions. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_tx.errors import UnknownTransaction, UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.chain import broken
from airflow_tx.protocol.metadata import position_before, whole
from airflow_tx.protocol.paths import Paths, ack_element
from airflow_tx.protocol.paths import decode as decode_name
from airflow_tx.protocol.processing import Instance, ack_val, missing_acks, must_ack
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import (
    Ack,
    Counter,
    History,
    Metadata,
    Outcome,
    Phase,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    decode,
    digest,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    R = TypeVar("R", bound="DataclassInstance")

RECENT = 50


@dataclass(frozen=True)
class TransactionView:
    """One transaction, open or final.

    :param status: its phase while it is open, then its outcome.
    :param attempt: the newest attempt, or how many it took; 0 if only that it was skipped is still known.
    :param began: when the newest attempt began; "" if that is forgotten.
    :param processed: when the last task acked; `granted` when the newest grant was given; `ended` when it became final.
    :param rows: rows of the batch, if counted.
    :param ack_val: 16 hex digits; all 0: everything emitted was acked.
    :param waiting_for: what has to happen before it goes on, in words; None if nothing is to.
    :param pinned: it stands for a batch that was skipped: its rows never change.
    :param stale: its predecessor ended elsewhere than its batch starts, so it has to be replayed.
    :param blocked: why it is replayed no more unless a person asks for it.
    :param yielded: the txid whose run it gave up its run slot for, until it is started again.
    :param replay: the last automatic replay: of which attempt, how many in a row, when and why.
    :param skip: who wants it skipped, or did so, when and why.
    :param readmit: who wants its rows back, or got them, when and why.
    :param readmitted_as: the txid that stands for its rows now.
    :param size: how many rows the source counted in the batch, and why it took so many; None if it cannot tell.
    :param lost: rows of the source that come before the batch and were accepted as lost, in words.
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
    pinned: bool = False
    stale: bool = False
    blocked: str | None = None
    yielded: int | None = None
    replay: Mapping[str, Any] | None = None
    skip: Mapping[str, str] | None = None
    readmit: Mapping[str, str] | None = None
    readmitted_as: int | None = None
    size: Mapping[str, Any] | None = None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class TransactionDetails:
    """One transaction with what only a single one is read for.

    :param batch: its rows and position, while the ledger keeps them; of a partitioned source those by partition, of
        every partition there is; of a skipped one its rows alone, until it is re-admitted.
    :param acks: per task (`task` or `task[index]`) what it contributed, while the transaction is open.
    """

    transaction: TransactionView
    batch: Metadata | None
    acks: Mapping[str, Ack] = field(default_factory=dict)


@dataclass(frozen=True)
class TopologyView:
    """One topology.

    :param transactions: newest first: all open ones, as many final ones as were asked for, and those skipped ones that
        may still be re-admitted.
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


def topology_record(store: Store, paths: Paths) -> TopologyRecord:
    """What holds for all transactions of a topology.

    :raises UnknownTransaction: there is no such topology.
    """
    return _need(store, TopologyRecord, paths.record, f"topology {paths.topology!r}")


def topology_view(store: Store, paths: Paths, *, recent: int = RECENT) -> TopologyView:
    """A topology with its open transactions and the `recent` last final ones.

    Records that become final while it reads appear as they were or as they are, never twice.

    :raises UnknownTransaction: there is no such topology.
    :raises UnreadableRecord: naming the record.
    """
    record = topology_record(store, paths)
    current = _need(store, Counter, paths.current, "current txid").txid
    allocated = _need(store, Counter, paths.allocated, "allocated txid").txid
    line = _Line(record, current, _opened(store, paths, _txids(store, paths.transactions)))
    views = _open_views(store, paths, line, tuple(line.opened))
    skipped = {each: found for each in _txids(store, paths.all_skipped) if (found := _skipped(store, paths, each))}
    final = [txid for txid in _txids(store, paths.histories) if txid not in line.opened]
    wanted = {*final[max(len(final) - recent, 0) :], *(txid for txid, found in skipped.items() if not _is_back(found))}
    for txid in sorted(wanted - set(line.opened)):
        history = _history(store, paths, txid, skipped.get(txid))
        if history is not None:  # else it was rotated away meanwhile
            views.append(_view_final(history, skipped.get(txid)))
    ordered = tuple(sorted(views, key=lambda view: -view.txid))
    return TopologyView(
        paths.topology, record, current, allocated, ordered, _owner(store, paths), repairs(store, paths)
    )


def transaction_details(store: Store, paths: Paths, txid: int) -> TransactionDetails:
    """One transaction, open or final.

    :raises UnknownTransaction: there is none of this txid, or its history is forgotten.
    """
    topology = topology_record(store, paths)
    current = _need(store, Counter, paths.current, "current txid").txid
    line = _Line(topology, current, _opened(store, paths, [*range(current, txid), txid]))
    batch = _batch(store, paths, txid)
    if txid in line.opened:
        (view,) = _open_views(store, paths, line, (txid,))
        acks = {_task(key): entry for key, entry in _acks(store, paths, txid).items()}
        return TransactionDetails(view, batch, acks)
    skipped = _skipped(store, paths, txid)
    if skipped is not None and not _is_back(skipped):
        batch = Metadata(0, skipped.rows, None)
    history = _history(store, paths, txid, skipped)
    if history is None:
        raise UnknownTransaction(what=f"transaction {txid} of topology {paths.topology!r}", path=paths.history(txid))
    return TransactionDetails(_view_final(history, skipped), batch)


def repairs(store: Store, paths: Paths) -> tuple[RepairRecord, ...]:
    """What people did to the ledger of a topology, oldest first."""
    found = (_get(store, RepairRecord, paths.repair(number)) for number in _txids(store, paths.repairs))
    return tuple(record for record in found if record is not None)


# --- one transaction ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """The open transactions as they stand in line.

    :param stale: those that start elsewhere than their predecessor ends.
    """

    topology: TopologyRecord
    current: int
    opened: Mapping[int, TransactionRecord]
    stale: frozenset[int] = frozenset()

    @property
    def first(self) -> str:
        """The one that all others wait for, in words; "" if it is not to be seen."""
        record = self.opened.get(self.current)
        if record is None:
            return ""
        attempt = TransactionAttempt(self.current, record.attempt)
        return f"transaction {attempt} (run {record.run_id}, {record.phase.value})"


def _open_views(store: Store, paths: Paths, line: _Line, txids: tuple[int, ...]) -> list[TransactionView]:
    line = replace(line, stale=_stale(store, paths, line))
    return [_view_open(paths.topology, txid, line, _acks(store, paths, txid)) for txid in txids]


def _stale(store: Store, paths: Paths, line: _Line) -> frozenset[int]:
    chain: dict[int, TransactionRecord] = {}
    while (txid := line.current + len(chain)) in line.opened:
        chain[txid] = line.opened[txid]
    if not chain:
        return frozenset()
    try:
        position = digest(position_before(Reader(store), paths, line.current))
    except UnreadableRecord:
        if store.get(paths.meta(line.current - 1)) is None and store.get(paths.transaction(line.current)) is None:
            return frozenset()  # the turn has moved on meanwhile, and nobody needs the record any more
        raise
    return frozenset(broken(chain, current=line.current, position=position))


def _view_open(topology: str, txid: int, line: _Line, acks: Mapping[Instance, Ack]) -> TransactionView:
    record = line.opened[txid]
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
        waiting_for=_waiting_for(topology, txid, line, acks),
        open=True,
        pinned=record.pinned,
        stale=txid in line.stale,
        blocked=_blocked(txid, line),
        yielded=record.yielded if record.run_id in line.topology.yielded else None,
        replay=record.replay,
        skip=record.skip,
        size=record.size,
        lost=tuple(record.lost),
    )


def _view_final(history: History, skipped: Skipped | None) -> TransactionView:
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
        waiting_for=_waiting_for_readmission(skipped),
        open=False,
        skip=history.skip,
        readmit=None if skipped is None else skipped.readmit,
        readmitted_as=history.readmitted_as,
        size=history.size,
        lost=tuple(history.lost),
    )


def _forgotten(txid: int, skipped: Skipped) -> History:
    """The history of a transaction of which only that it was skipped is remembered."""
    outcome = Outcome.READMITTED if _is_back(skipped) else Outcome.SKIPPED
    unknown: dict[str, Any] = dict.fromkeys(("processed", "granted_at", "rows"))
    return History(
        txid=txid,
        attempts=0,
        run_id=skipped.run_id,
        outcome=outcome,
        began="",
        ended=skipped.skip["when"],
        ack_val="0" * 16,
        op=skipped.op,
        skip=skipped.skip,
        readmitted_as=skipped.readmitted_as,
        **unknown,
    )


def _waiting_for(topology: str, txid: int, line: _Line, acks: Mapping[Instance, Ack]) -> str:
    record = line.opened[txid]
    if (reason := _blocked(txid, line)) is not None:
        return f"a person: it is replayed no more ({reason}): airflow tx replay {topology} {txid}, or airflow tx skip"
    if txid in line.stale:
        return f"a replay: transaction {txid - 1} ended elsewhere than its batch starts"
    if record.run_id in line.topology.yielded and record.skip is None:
        return f"the run of transaction {record.yielded}, to which it gave its run slot; then it is started again"
    if record.skip is not None:
        return "its skip" if txid == line.current or not line.first else f"{line.first}, then it is skipped"
    if record.phase is Phase.FAILED:
        return f"a replay: airflow tx replay {topology} {txid}, or clear its failed task"
    if record.phase is Phase.PROCESSING:
        tasks = missing_acks(acks, _must_ack(record, acks))
        return f"an ack of {', '.join(tasks)}" if tasks else "its committer"
    return line.first if txid > line.current and line.first else "its committer"


def _waiting_for_readmission(skipped: Skipped | None) -> str | None:
    if skipped is None or skipped.readmit is None or _is_back(skipped):
        return None
    return f"begin of run {skipped.run_id}, which takes its rows again"


def _blocked(txid: int, line: _Line) -> str | None:
    """Why it is replayed no more; the mark stays a while after a person has replayed it, or wants it skipped."""
    mark, record = line.topology.blocked or {}, line.opened[txid]
    holds = (mark.get("txid"), mark.get("attempt")) == (txid, record.attempt) and record.skip is None
    return str(mark["reason"]) if holds else None


def _is_back(skipped: Skipped) -> bool:
    return skipped.readmitted_as is not None


# --- records -----------------------------------------------------------------------------------------------------


def _opened(store: Store, paths: Paths, txids: Iterable[int]) -> dict[int, TransactionRecord]:
    found = {txid: _get(store, TransactionRecord, paths.transaction(txid)) for txid in txids}
    return {txid: record for txid, record in found.items() if record is not None}


def _skipped(store: Store, paths: Paths, txid: int) -> Skipped | None:
    return _get(store, Skipped, paths.skipped(txid))


def _history(store: Store, paths: Paths, txid: int, skipped: Skipped | None) -> History | None:
    found = _get(store, History, paths.history(txid))
    return _forgotten(txid, skipped) if found is None and skipped is not None else found


def _batch(store: Store, paths: Paths, txid: int) -> Metadata | None:
    """Rows and position, put together; None once the ledger does not keep them any more."""
    if store.get(paths.meta(txid)) is None:
        return None
    try:
        return whole(Reader(store), paths, txid)
    except UnreadableRecord:
        if store.get(paths.meta(txid)) is None:
            return None  # it went meanwhile
        raise


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
