"""The turn to commit: the line before a transaction, how to wait in it, and the commit when the turn has come."""

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
"""Seconds that a committer waits in its worker for messages; workers of another DAG may need its slot."""
_MESSAGE_POLL = 0.5
_ROLLING_POLL = 1.0
_LOOK = 1.0
BRIEF = 5.0
"""Seconds that a committer waits in its worker for a line that does not move: a deferral takes longer."""
RESUMED = 2.0
"""Seconds that Airflow takes to start a deferred task again, behind `[tx] min_deferral`."""
DEFERRAL = 10.0 + RESUMED
"""Seconds that a deferral takes by default."""
WARM_PLACES = 2
"""How many in line wait in their worker for commits alone, unless `[tx] warm_places` says otherwise."""
MOST_IN_WORKERS = 16
"""How many in line hold a worker slot at all, however many transactions are in flight."""
MOST_ACKS_READ = 100
"""Of a transaction with more acks than these it is not read whether they are all there: its committer notes that.

Everybody behind it reads its line every second: of thousands of mapped tasks that would be thousands of requests each.
"""
_ON_THEIR_WAY = (Phase.PROCESSED, Phase.COMMITTING)


class Move(Enum):
    """The next step of a committer."""

    FORGET = "drop what was read: something happened to its transaction"
    SKIP = "skip the transaction whose turn it is"
    COMMIT = "take the turn"
    WAIT = "wait in the worker"
    WAIT_BRIEFLY = "wait in the worker, but not for long"
    POLL = "wait in the worker for messages"
    DEFER = "wait elsewhere"
    DEFER_FOR_MESSAGES = "wait elsewhere for messages"


@dataclass(frozen=True, kw_only=True)
class WaitingLine(TurnReading):
    """The line before a transaction, as read: its own record, and those from `current` on that are close.

    :param txid: the transaction that waits.
    :param ready: those before it to which only their commit is to come: their tasks have acked, whether or not their
        committer has noticed; of many tasks, once it has.
    :param messages: whether it waits for messages of its own, before it waits for its turn.
    :param places: how many in line wait in their worker.
    """

    txid: int
    ready: frozenset[int] = frozenset()
    messages: bool = False
    places: int = WARM_PLACES

    @property
    def earlier(self) -> dict[int, TransactionRecord]:
        """Return the records of the transactions before it that are close."""
        return {txid: record for txid, record in self.opened.items() if txid < self.txid}

    @property
    def op(self) -> str | None:
        """Return the nonce of its own record: another one means that something happened to it; None: it is final."""
        own = self.opened.get(self.txid)
        return None if own is None else own.op

    @property
    def skip(self) -> bool:
        """Whether the transaction whose turn it is is to be skipped, by the first that finds it."""
        first = self.earlier.get(self.current)
        return first is not None and first.skip is not None

    @property
    def move(self) -> Move:
        """How to wait: in the worker, and more than briefly only if nothing is needed for the turn to come but commits.

        A worker slot is then held for moments only; held longer, it may be the one that an earlier transaction needs.
        """
        if self.current >= self.txid:
            return Move.COMMIT
        if self.txid - self.current > max(self.places, MOST_IN_WORKERS):
            return Move.DEFER
        only_commits = self.is_near and self.ready.issuperset(self.earlier)
        return Move.WAIT if only_commits else Move.WAIT_BRIEFLY

    @property
    def is_near(self) -> bool:
        """Whether it waits at one of the warm places; of a line that is longer not every record is read."""
        return self.txid - self.current <= self.places

    @property
    def waited_for(self) -> list[list[object]]:
        """The earlier transactions as plain JSON; a committer waits for the same ones in its worker only once."""
        if self.move is not Move.WAIT:
            return []
        return [
            [txid, each.run_id, each.phase.value, txid in self.ready]
            for txid, each in self.earlier.items()
        ]

    def wake_event(
        self, *, op: str | None, waited: Sequence[Sequence[object]]
    ) -> dict[str, Any] | None:
        """Give the event that wakes a committer which waits elsewhere than in its worker; None: none yet.

        :param op: of its own record when it began to wait.
        :param waited: its current `waited_for`.
        """
        near = self.move in (Move.COMMIT, Move.WAIT) and not (waited and self.waited_for == waited)
        if self.skip or near:
            return {"reason": "its turn is near", "current": self.current}
        return {"reason": "its record changed"} if self.op != op else None

    @property
    def watched(self) -> tuple[int, ...]:
        """The transactions whose records may change the decision."""
        # Many may wait far away: only the turn itself wakes them.
        earlier = self.earlier if self.is_near else ()
        return (*earlier, self.txid)

    @property
    def acks(self) -> str:
        """The name of its own acks, as its record has it."""
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
    """Read the line; what is far away is not read.

    :param mapped: the tasks with map indexes: how many instances they will have is not known here.
    :param works_again: a task of its own works again, so that its own record matters at its turn, too.
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
    """Ask whether nothing but its commit is to come for a transaction."""
    if record.phase in _ON_THEIR_WAY:
        return True

    acked = ledger.acked(record)
    if acked is None:
        return True  # it became final in between
    if record.phase is Phase.FAILED or len(acked) > MOST_ACKS_READ:
        return False
    return ledger.has_all_acks(record, acked, mapped)


# --- the next move ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinePace:
    """Until when a committer waits in its worker, and how fast the line moves, by the clock of its caller.

    :param began: when it began to wait; `patience`: seconds to wait in the worker at most.
    :param away: seconds that a deferral takes. A turn that is nearer than this is waited for in the worker.
    :param first: whose turn it was when the line was read first, and `since` when that was; 0: it is not read yet.
    :param current: whose turn it was when the line was read last, and `moved` since when.
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
        """Give the end of a wait for transactions that only have to commit."""
        return self.began + self.patience

    def seen(self, current: int, now: float) -> LinePace:
        """Return the pace once the turn is at a transaction."""
        if current == self.current:
            return self
        begun = self if self.first else replace(self, first=current, since=now)
        return replace(begun, current=current, moved=now)

    def left(self, txid: int, now: float) -> float:
        """Estimate the seconds until the turn of a transaction; endless if the line stands still."""
        passed = self.current - self.first
        if passed <= 0 or now - self.moved >= BRIEF:
            return math.inf
        return (txid - self.current) * (now - self.since) / passed

    def until(self, move: Move, txid: int, now: float) -> float:
        """Give the end of a wait in the worker; of a line that moves fast enough, when to look again.

        :param move: how the committer waits; `txid`: of its transaction.
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

    :param completion: whether everything of its own transaction has acked.
    :param before: the line of the last reading.
    :param tried: the transaction that it has tried to skip; it waits for that one like for any other.
    """
    # Another nonce: a task works again, the transaction has failed, or there is a newer attempt.
    if before is not None and line.op is not None and line.op != before.op:
        return Move.FORGET
    if line.skip and tried != line.current:
        return Move.SKIP
    # For a task of its own that works again it waits in any line.
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
    """Commit when it is the turn.

    :param patience: seconds to wait in the worker at most.
    :param places: how many in line wait there for commits alone.
    :param away: seconds that a deferral takes.
    :return: None: it is committed; else the line in which to wait elsewhere.
    :raises Refused, StateError, StagingError: it cannot be committed now.
    """
    pace = LinePace(clock(), patience, away)
    while True:
        try:
            return _in_turn(commit, store, pace, places=places, clock=clock)
        except RollingForward as rolling:
            # Nothing that can be watched says when this is over.
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
                "Transaction %s of %s waits: %s. It fails if they are not %g s after its begin (processing_timeout).",
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
    """Wait before the turn is asked for again, if nothing has changed since it was not to be had."""
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
        # A change before the watches were set would never be noticed.
        if _read(commit, look, places=line.places, works_again=line.op is not None) == line:
            commit.log.info(
                "Transaction %s of %s waits: the turn is at %s",
                line.txid,
                commit.spec.topology,
                line.current,
            )
            watch.wait(max(seconds, 0.0))


def _log_wait(commit: Commit, line: WaitingLine) -> None:
    """Say which run it waits for, the state of that run, and what to do."""
    first = line.earlier.get(line.current)
    if first is None:
        return
    topology = commit.spec.topology
    state = compat.run_state(commit.ti, commit.spec.dag_id, first.run_id)
    if state is None and of_lane(first.request):
        commit.log.info(
            "Transaction %s of %s waits for transaction %s (%s), in the lane of its coordinator. "
            "There is nothing to do: what leaves the lane becomes a run.",
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
    """Say what a person can do about a transaction that waits.

    :param state: of the run that it waits for.
    """
    if state == "running":
        return Remedy.of(
            "There is nothing to do, unless a task of that run stays scheduled. Then deferred "
            "tasks of waiting runs hold every slot of its pool (include_deferred): give the pool "
            "a slot for each active run."
        )
    if state == "queued":
        return (
            "That run needs a run slot: one of the runs that wait makes room for it if it stays "
            "queued. Airflow never starts a run of a cancelled or paused backfill: "
        ) + Command.of("replay", topology, txid)
    again = f"start a run with the run id {run_id}" if state is None else "clear that run"
    return Remedy.of(
        f"To continue, {again}, or replay it: ",
        Command.of("replay", topology, txid),
        "; to continue without it: ",
        Command.of("skip", topology, txid, "--why", "TEXT"),
    )
