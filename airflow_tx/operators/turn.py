"""Whose turn it is to commit, and how to wait for it: a pure decision. Source: DESIGN §6, waiting for the turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths, ack_element
from airflow_tx.protocol.processing import missing_acks, must_ack
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import Ack, Counter, Phase, TransactionRecord

# How many in line wait in their worker.
WARM_PLACES = 2
_ON_THEIR_WAY = (Phase.PROCESSED, Phase.COMMITTING)


class Wait(str, Enum):
    """What a committer does now."""

    NOT = "not"
    WARM = "warm"
    DEFERRED = "deferred"


@dataclass(frozen=True)
class Earlier:
    """An open transaction before this one.

    :param ready: nothing but its commit is to come: its tasks have acked, whether or not its committer has noticed.
    """

    txid: int
    run_id: str
    phase: Phase
    ready: bool


@dataclass(frozen=True)
class Line:
    """The line before a transaction, as read.

    :param op: of its own record: another one means that something happened to it; None: it is final.
    :param acks: of its own record.
    :param earlier: open transactions from `current` on, those that are close.
    :param skip: whether the one whose turn it is is to be skipped, by whoever sees it.
    """

    txid: int
    current: int
    op: str | None = None
    phase: Phase | None = None
    earlier: Mapping[int, Earlier] = field(default_factory=dict)
    skip: bool = False
    acks: str = ""


def decide(line: Line) -> Wait:
    """How to wait: in the worker only if nothing is needed for the turn to come but commits.

    A worker slot is then held for moments only; held longer, it may be the one that an earlier transaction needs.
    """
    if line.current >= line.txid:
        return Wait.NOT
    if line.txid - line.current > WARM_PLACES:
        return Wait.DEFERRED
    return Wait.WARM if all(each.ready for each in line.earlier.values()) else Wait.DEFERRED


def standing(line: Line) -> list[list[object]]:
    """The earlier transactions as plain JSON: a committer that has waited in its worker for them for as long as it may
    waits elsewhere until something is new."""
    if decide(line) is not Wait.WARM:
        return []
    return [[each.txid, each.run_id, each.phase.value, each.ready] for each in line.earlier.values()]


def wakes(line: Line, *, op: str | None, waited: Sequence[Sequence[object]]) -> dict[str, Any] | None:
    """The event that wakes a committer which waits elsewhere than in its worker; None: none yet.

    :param op: of its own record when it began to wait.
    :param waited: see `standing`.
    """
    near = decide(line) is not Wait.DEFERRED and not (waited and standing(line) == waited)
    if line.skip or near:
        return {"reason": "its turn is near", "current": line.current}
    return {"reason": "its record changed"} if line.op != op else None


def look(store: Store, paths: Paths, txid: int, mapped: Collection[str], read: Reader | None = None) -> Line:
    """Read the line; what is far away is not read.

    :param mapped: the tasks with map indexes: how many instances they will have is not known here.
    :param read: reads the records, for a caller who wants to keep them.
    """
    read = read or Reader(store)
    current = read.peek(Counter, paths.current).txid
    if current >= txid:
        return Line(txid, current)
    own = read.peek_if_any(TransactionRecord, paths.transaction(txid))
    earlier, skip = {}, False
    for each in range(current, min(txid, current + WARM_PLACES)):
        record = read.peek_if_any(TransactionRecord, paths.transaction(each))
        if record is not None:  # else it became final in between
            skip |= each == current and record.skip is not None
            ready = record.phase in _ON_THEIR_WAY or _all_acked(store, paths, each, record, mapped)
            earlier[each] = Earlier(each, record.run_id, record.phase, ready)
    if own is None:
        return Line(txid, current, None, None, earlier, skip)
    return Line(txid, current, own.op, own.phase, earlier, skip, own.acks)


def watched(paths: Paths, line: Line) -> tuple[str, ...]:
    """The records whose change may change the decision; every ack touches the one that holds the acks."""
    return (
        paths.current,
        paths.acks(line.txid, line.acks),
        *(paths.transaction(each) for each in (*line.earlier, line.txid)),
    )


def _all_acked(store: Store, paths: Paths, txid: int, record: TransactionRecord, mapped: Collection[str]) -> bool:
    folder = paths.acks(txid, record.acks)
    children = store.children(folder)
    if record.phase is not Phase.PROCESSING or children is None:  # None: it became final in between
        return children is None
    read = Reader(store)
    found = {ack_element(name): read.peek_if_any(Ack, f"{folder}/{name}") for name in children.names}
    acks = {key: ack for key, ack in found.items() if ack is not None}
    return not missing_acks(acks, must_ack(record, acks, mapped))
