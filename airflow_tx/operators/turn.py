"""Whose turn it is to commit, and how to wait for it: a pure decision. Source: DESIGN §6, waiting for the turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import Counter, Phase, TransactionRecord

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
    """An open transaction before this one."""

    txid: int
    run_id: str
    phase: Phase


@dataclass(frozen=True)
class Line:
    """The line before a transaction, as read.

    :param op: of its own record: another one means that something happened to it; None: it is final.
    :param earlier: open transactions from `current` on, those that are close.
    """

    txid: int
    current: int
    op: str | None = None
    phase: Phase | None = None
    earlier: Mapping[int, Earlier] = field(default_factory=dict)


def decide(line: Line) -> Wait:
    """How to wait: in the worker only if nothing is needed for the turn to come but commits.

    A worker slot is then held for moments only; held longer, it may be the one that an earlier transaction needs.
    """
    if line.current >= line.txid:
        return Wait.NOT
    if line.txid - line.current > WARM_PLACES:
        return Wait.DEFERRED
    ready = all(each.phase in _ON_THEIR_WAY for each in line.earlier.values())
    return Wait.WARM if ready else Wait.DEFERRED


def look(store: Store, paths: Paths, txid: int) -> Line:
    """Read the line; what is far away is not read."""
    read = Reader(store)
    current = read.peek(Counter, paths.current).txid
    if current >= txid:
        return Line(txid, current)
    own = read.peek_if_any(TransactionRecord, paths.transaction(txid))
    earlier = {}
    for each in range(current, min(txid, current + WARM_PLACES)):
        record = read.peek_if_any(TransactionRecord, paths.transaction(each))
        if record is not None:  # else it became final in between
            earlier[each] = Earlier(each, record.run_id, record.phase)
    return Line(txid, current, own.op if own else None, own.phase if own else None, earlier)


def watched(paths: Paths, line: Line) -> tuple[str, ...]:
    """The records whose change may change the decision."""
    return (paths.current, paths.transaction(line.txid), *(paths.transaction(each) for each in line.earlier))
