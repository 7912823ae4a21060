"""Wait for the turn to commit. A committer reads the records of earlier transactions, and waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import RollingForward
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    Phase,
    ReadOnlyLedger,
    Store,
    TransactionRecord,
    TurnReading,
    of_lane,
)
from airflow_tx.transaction.commit.committer import Commit, Completion

MESSAGE_PATIENCE = 5.0
"""The longest wait for messages in the worker, in seconds. Other tasks may need the worker slot."""
_MESSAGE_POLL = 0.5
_ROLLING_POLL = 1.0
_LOOK = 1.0
BRIEF = 5.0
"""The seconds that a committer waits in its worker while no transaction commits. A deferral would take longer."""
RESUMED = 2.0
"""The seconds that Airflow needs, in addition to `[tx] min_deferral`, to resume a deferred task."""
DEFERRAL = 10.0 + RESUMED
"""The default duration of a deferral, in seconds."""
WARM_PLACES = 2
"""The default of `[tx] warm_places`: how many of the next transactions to commit wait in their worker."""
MOST_IN_WORKERS = 16
"""The maximum number of transactions whose committers hold a worker slot while they wait."""
MOST_ACKS_READ = 100
"""Maximum number of acks of a transaction that other committers read to check whether all tasks have acked.

If a transaction has more acks, the other committers wait until its own committer notes that all tasks have acked. All
later committers read the line every second. With thousands of mapped tasks, each would send thousands of requests.
"""
_ON_THEIR_WAY = (Phase.PROCESSED, Phase.COMMITTING)


class Move(Enum):
    """The next step of a committer."""

    FORGET = "discard the output that was read, since the transaction has changed"
    SKIP = "skip the transaction that has the turn"
    COMMIT = "take the turn"
    WAIT = "wait in the worker"
    WAIT_BRIEFLY = "wait in the worker for a short time"
    POLL = "wait in the worker for messages"
    DEFER = "defer"
    DEFER_FOR_MESSAGES = "defer until messages are acked"


@dataclass(frozen=True, kw_only=True)
class WaitingLine(TurnReading):
    """A reading of the line: the record of the waiting transaction, and the records of the next transactions to commit.

    :param txid: the waiting transaction.
    :param ready: the earlier transactions whose tasks have all acked. A transaction with many tasks is ready when its
        committer has noted this.
    :param messages: whether the transaction still waits for the acks of its messages.
    :param places: how many transactions, from the next to commit, keep their committer waiting in its worker.
    """

    txid: int
    ready: frozenset[int] = frozenset()
    messages: bool = False
    places: int = WARM_PLACES

    @property
    def earlier(self) -> dict[int, TransactionRecord]:
        """Return the records of the earlier transactions that were read."""
        return {txid: record for txid, record in self.opened.items() if txid < self.txid}

    @property
    def op(self) -> str | None:
        """Return the nonce in the record of the transaction, or None if the transaction is final.

        Each change has a new nonce.
        """
        own = self.opened.get(self.txid)
        return None if own is None else own.op

    @property
    def skip(self) -> bool:
        """Return whether the transaction that has the turn is to be skipped. Any later committer may then skip it."""
        first = self.earlier.get(self.current)
        return first is not None and first.skip is not None

    @property
    def move(self) -> Move:
        """Return how to wait.

        A committer waits long in its worker only if all earlier transactions merely need their commit.

        If an earlier transaction still has tasks to run, these tasks may need the worker slot.
        """
        if self.current >= self.txid:
            return Move.COMMIT
        if self.txid - self.current > max(self.places, MOST_IN_WORKERS):
            return Move.DEFER
        only_commits = self.is_near and self.ready.issuperset(self.earlier)
        return Move.WAIT if only_commits else Move.WAIT_BRIEFLY

    @property
    def is_near(self) -> bool:
        """Return whether the transaction is among the next `places` to commit, so all earlier records were read."""
        return self.txid - self.current <= self.places

    @property
    def waited_for(self) -> list[list[object]]:
        """Return the earlier transactions as plain JSON.

        A committer waits only once for the same ones in its worker.
        """
        if self.move is not Move.WAIT:
            return []
        return [
            [txid, each.run_id, each.phase.value, txid in self.ready]
            for txid, each in self.earlier.items()
        ]

    def wake_event(
        self, *, op: str | None, waited: Sequence[Sequence[object]]
    ) -> dict[str, Any] | None:
        """Return the event that wakes a deferred committer, or None to let it sleep.

        :param op: the value of `op` when the committer deferred.
        :param waited: the value of `waited_for` when the committer deferred.
        """
        near = self.move in (Move.COMMIT, Move.WAIT) and not (waited and self.waited_for == waited)
        if self.skip or near:
            return {"reason": "its turn is near", "current": self.current}
        return {"reason": "its record changed"} if self.op != op else None

    @property
    def watched(self) -> tuple[int, ...]:
        """Return the transactions whose records can change the next step."""
        # Many transactions may be far from the turn. Their committers watch only the turn and their
        # own record.
        earlier = self.earlier if self.is_near else ()
        return (*earlier, self.txid)

    @property
    def acks(self) -> str:
        """Return the name of the acks node in the record of the transaction."""
        own = self.opened.get(self.txid)
        return "" if own is None else own.acks


def read_line(
    ledger: ReadOnlyLedger,
    txid: int,
    mapped: Collection[str],
    *,
    places: int = WARM_PLACES,
    works_again: bool = False,
) -> WaitingLine:
    """Read the line, without the records of transactions that are far from the turn.

    :param txid: the waiting transaction.
    :param mapped: ids of the mapped tasks, whose number of instances is unknown here.
    :param places: how many transactions, from the next to commit, keep their committer waiting in its worker.
    :param works_again: whether a task of the transaction works again. Then the record of the transaction is always
        read.
    """
    current = ledger.current()
    line = WaitingLine(current=current, txid=txid, places=places)
    if current >= txid and not works_again:
        return line
    near = range(current, min(txid, current + places))
    line = replace(line, opened=ledger.opened((*near, txid)))
    if not line.is_near:
        return line
    ready = (each for each, record in line.earlier.items() if _is_ready(ledger, record, mapped))
    return replace(line, ready=frozenset(ready))


def _is_ready(ledger: ReadOnlyLedger, record: TransactionRecord, mapped: Collection[str]) -> bool:
    """Return whether all tasks of a transaction have acked, so that it only needs its commit."""
    if record.phase in _ON_THEIR_WAY:
        return True

    acked = ledger.acked(record)
    if acked is None:
        return True  # The transaction has just become final.
    if record.phase is Phase.FAILED or len(acked) > MOST_ACKS_READ:
        return False
    return ledger.has_all_acks(record, acked, mapped)


# --- the next move ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinePace:
    """How long a committer has waited in its worker, and how fast earlier transactions commit.

    All times are from the caller's clock.

    :param began: when the committer began to wait.
    :param patience: the longest wait in the worker, in seconds.
    :param away: the duration of a deferral, in seconds. If the turn will come sooner, the committer waits in its
        worker.
    :param first: the txid that had the turn at the first reading; 0 before that reading.
    :param since: when the line was first read.
    :param current: the txid that had the turn at the last reading.
    :param moved: when the turn moved to `current`.
    """

    began: float
    patience: float
    away: float = DEFERRAL
    first: int = 0
    since: float = 0.0
    current: int = 0
    moved: float = 0.0

    @property
    def deadline(self) -> float:
        """Return when to stop waiting for transactions that only need their commit."""
        return self.began + self.patience

    def seen(self, current: int, now: float) -> LinePace:
        """Return the pace of the line after another reading.

        :param current: the txid that has the turn.
        """
        if current == self.current:
            return self
        begun = self if self.first else replace(self, first=current, since=now)
        return replace(begun, current=current, moved=now)

    def left(self, txid: int, now: float) -> float:
        """Estimate the seconds until a transaction has the turn, or infinity if no transaction is being committed."""
        passed = self.current - self.first
        if passed <= 0 or now - self.moved >= BRIEF:
            return math.inf
        return (txid - self.current) * (now - self.since) / passed

    def until(self, move: Move, txid: int, now: float) -> float:
        """Return until when to wait in the worker. If the line moves fast enough, this is when to read the line again.

        :param move: how the committer waits.
        :param txid: the waiting transaction.
        """
        if move is Move.WAIT:
            return self.deadline
        if move is Move.POLL:
            return self.began + min(self.patience, MESSAGE_PATIENCE)
        brief = self.began + min(self.patience, BRIEF)
        if self.left(txid, now) > self.away:
            return brief
        return max(brief, min(self.deadline, now + _LOOK))


def next_move(
    line: WaitingLine,
    completion: Completion,
    pace: LinePace,
    now: float,
    *,
    before: WaitingLine | None = None,
    tried: int = 0,
) -> Move:
    """Decide what a committer does next.

    :param line: the current reading of the line.
    :param completion: whether all tasks of the transaction have acked.
    :param before: the previous reading of the line.
    :param tried: a transaction that the committer could not skip, and now waits for.
    """
    # The nonce changes if a task works again, if the transaction fails, or if a newer attempt
    # begins.
    if before is not None and line.op is not None and line.op != before.op:
        return Move.FORGET
    if line.skip and tried != line.current:
        return Move.SKIP
    # If a task of the transaction works again, its committer waits in the worker at any place in
    # the line.
    move = Move.WAIT if completion is Completion.NOT_YET else line.move
    if completion is Completion.MESSAGES:
        move = Move.POLL
    if move in (Move.COMMIT, Move.DEFER) or now < pace.until(move, line.txid, now):
        return move
    return Move.DEFER_FOR_MESSAGES if move is Move.POLL else Move.DEFER


# --- in the worker ------------------------------------------------------------------------------------------------


def commit_in_turn(
    commit: Commit,
    store: Store,
    *,
    patience: float,
    places: int = WARM_PLACES,
    away: float = DEFERRAL,
    clock: Callable[[], float] = time.monotonic,
) -> WaitingLine | None:
    """Wait in the worker for the turn, and commit the transaction.

    :param patience: the longest wait in the worker for earlier transactions, in seconds.
    :param places: how many transactions, from the next to commit, keep their committer waiting in its worker.
    :param away: the duration of a deferral, in seconds.
    :return: None if the transaction is committed. If the committer must defer, the last `WaitingLine` that was read.
    :raises Refused, StateError, StagingError: the transaction cannot be committed now.
    """
    pace = LinePace(clock(), patience, away)
    while True:
        try:
            return _in_turn(commit, store, pace, places=places, clock=clock)
        except RollingForward as rolling:
            # No watched znode changes when a roll forward ends, so read the records at intervals.
            if clock() >= pace.deadline:
                commit.log.info("%s", rolling)
                return _read(commit, ReadOnlyLedger(store, commit.spec.paths), places=places)
            time.sleep(_ROLLING_POLL)


def _in_turn(
    commit: Commit, store: Store, pace: LinePace, *, places: int, clock: Callable[[], float]
) -> WaitingLine | None:
    line: WaitingLine | None = None
    tried = 0
    while (completion := commit.complete()) is not Completion.OVER:
        look = ReadOnlyLedger(store, commit.spec.paths)
        before = line
        works_again = completion is Completion.NOT_YET
        line = _read(commit, look, places=places, works_again=works_again)
        commit.ledger.remember(look)
        now = clock()
        pace = pace.seen(line.current, now)
        move = next_move(line, completion, pace, now, before=before, tried=tried)
        if move is Move.FORGET:
            commit.forget()
        elif move is Move.SKIP:
            tried = line.current
            commit.skip_now(tried)
        elif move is Move.POLL:
            time.sleep(_MESSAGE_POLL)
        elif move is Move.DEFER_FOR_MESSAGES:
            commit.log.info(
                "Transaction %s of %s waits: %s. It fails if they are not complete %g s after its begin "
                "(processing_timeout).",
                commit.begun.attempt,
                commit.spec.topology,
                commit.messages.waiting,
                commit.spec.timeout,
            )
            return replace(line, messages=True)
        elif move is Move.DEFER:
            _log_wait(commit, line)
            return line
        elif move is Move.COMMIT:
            if commit.try_to_commit():
                return None
            _pause(line, before)
        else:
            if completion is Completion.READY:
                commit.prepare()
            until = pace.until(move, line.txid, now)
            _watch(commit, store, line, until - clock())
    return None


def _pause(line: WaitingLine, before: WaitingLine | None) -> None:
    """Wait in the worker before the next try to take the turn, unless an earlier transaction has changed."""
    if line == before:
        time.sleep(_MESSAGE_POLL)


def _read(
    commit: Commit, look: ReadOnlyLedger, *, places: int, works_again: bool = False
) -> WaitingLine:
    txid = commit.begun.txid
    return read_line(look, txid, commit.spec.mapped, places=places, works_again=works_again)


def _watch(commit: Commit, store: Store, line: WaitingLine, seconds: float) -> None:
    look = ReadOnlyLedger(store, commit.spec.paths)
    with look.watch_line(line.watched, line.acks) as watch:
        # Read the records again. A watch does not report changes from before it was set.
        if _read(commit, look, places=line.places, works_again=line.op is not None) == line:
            commit.log.info(
                "Transaction %s of %s waits: the turn is at %s",
                line.txid,
                commit.spec.topology,
                line.current,
            )
            watch.wait(max(seconds, 0.0))


def _log_wait(commit: Commit, line: WaitingLine) -> None:
    """Log which run a committer is waiting for, the state of that run, and the remedy."""
    first = line.earlier.get(line.current)
    if first is None:
        return
    topology = commit.spec.topology
    state = compat.run_state(commit.ti, commit.spec.dag_id, first.run_id)
    if state is None and of_lane(first.request):
        commit.log.info(
            "Transaction %s of %s waits for transaction %s (%s), in the lane of its coordinator. "
            "There is nothing to do: a transaction that leaves the lane becomes a run.",
            line.txid,
            topology,
            line.current,
            first.phase.value,
        )
        return
    commit.log.info(
        "Transaction %s of %s waits for transaction %s (%s) of run %s, which %s. %s",
        line.txid,
        topology,
        line.current,
        first.phase.value,
        first.run_id,
        "was deleted" if state is None else f"is {state}",
        advice(topology, line.current, first.run_id, state),
    )


def advice(topology: str, txid: int, run_id: str, state: str | None) -> Remedy:
    """Return advice for the user about a transaction that is waiting for another.

    :param txid: the earlier transaction that it waits for.
    :param run_id: the run of the earlier transaction.
    :param state: the state of this run, or None if it was deleted.
    """
    if state == "running":
        return Remedy.of(
            "There is nothing to do, unless a task of that run stays scheduled. Then deferred tasks of waiting "
            "runs occupy every slot of its pool (include_deferred). Give the pool a slot for each active run."
        )
    if state == "queued":
        return (
            "That run needs a run slot. If it stays queued, one of the waiting runs yields to it. Airflow never "
            "starts a run of a cancelled or paused backfill: "
        ) + Command.of("replay", topology, txid)
    again = f"start a run with the run id {run_id}" if state is None else "clear that run"
    return Remedy.of(
        f"To continue, {again}, or replay it: ",
        Command.of("replay", topology, txid),
        ". To continue without it: ",
        Command.of("skip", topology, txid, "--why", "TEXT"),
    )
