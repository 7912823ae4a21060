"""The lane. The coordinator processes and commits transactions itself. If a transaction fails, it becomes a run.

A lane may be killed at any line of its code, continue late, or exist twice. The ledger treats a lane like a run, with
the same steps, tokens and fences.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_tx.base import compat
from airflow_tx.base.errors import SkippedTransaction, StoreError, TxError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.coordinator.lane_applications import LaneApplications
from airflow_tx.coordinator.lane_plan import LanePlan
from airflow_tx.coordinator.lane_tasks import (
    LaneCommit,
    LaneOutputs,
    LaneProgress,
    LaneTransaction,
    LaneTurn,
)
from airflow_tx.coordinator.plan import LedgerSnapshot
from airflow_tx.ledger import (
    LANE_TRY,
    Begun,
    NoData,
    Store,
    TaskTry,
    TransactionAttempt,
    WindowFull,
)
from airflow_tx.outputs import TryDir
from airflow_tx.transaction import (
    advice_of,
    allocate,
    clean_up,
    commit_in_turn,
    problem_of,
    send_failure,
)

# --- lane window --------------------------------------------------------------------------------------------------
# The transactions that a lane works on. Its two threads and the threads of its applications share
# them.


class LaneWindow:
    """The open transactions that a lane has begun and still owns.

    :ivar changed: a condition that is notified at each change.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._open: set[int] = set()
        self._processed: dict[int, LaneTransaction] = {}
        self._applied: list[LaneTransaction] = []
        self._closed = False

    @property
    def txids(self) -> frozenset[int]:
        with self.changed:
            return frozenset(self._open)

    def add(self, txid: int) -> None:
        """Add a transaction to the window."""
        with self.changed:
            self._open.add(txid)

    def drop(self, txid: int) -> None:
        """Remove a transaction that is final or has left the lane."""
        with self.changed:
            self._open.discard(txid)
            self.changed.notify_all()

    def processed(self, transaction: LaneTransaction) -> None:
        """Pass a processed transaction to the committing thread, which commits transactions in the order of txids."""
        with self.changed:
            self._processed[transaction.begun.txid] = transaction
            self.changed.notify_all()

    def next_processed(self) -> LaneTransaction | None:
        """Wait until the earliest transaction of the window is processed.

        Return it, or None if the window is closed.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._closed or self._first in self._processed)
            return self._processed.pop(self._first, None)

    def close(self) -> None:
        """End the wait of `next_processed`."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    @property
    def _first(self) -> int:
        return min(self._open, default=0)

    # --- in the thread that processes

    def applied(self, transaction: LaneTransaction) -> None:
        """Keep a transaction while it waits for its application or for rows."""
        self._applied.append(transaction)

    def take_over(self) -> list[LaneTransaction]:
        """Return the kept transactions that can continue, and remove them from the kept transactions."""
        found = [each for each in self._applied if each.is_ready]
        self._applied = [each for each in self._applied if each not in found]
        return found

    def wait_below(self, count: int, until: float) -> bool:
        """Wait until the window has fewer than `count` transactions, a kept transaction can continue, or time is up.

        :param count: the number of transactions. 0 has the same effect as 1.
        :param until: the end of the wait, by the monotonic clock.
        :return: whether the wait is over. Otherwise call `take_over`, continue these transactions, and wait again.
        """
        deadlines = [
            each.again_at if each.application is None else each.application.deadline
            for each in self._applied
        ]
        with self.changed:
            self.changed.wait_for(
                lambda: self._is_below(count) or any(each.is_ready for each in self._applied),
                max(min([until, *deadlines]) - time.monotonic(), 0.0),
            )
            return self._is_below(count) or time.monotonic() >= until

    def _is_below(self, count: int) -> bool:
        return len(self._open) < max(count, 1)


# --- lane ---------------------------------------------------------------------------------------------------------


# The seconds after which a lane ends, so that the next one imports the current modules of the DAG
# file.
STINT = 600.0
# If this many transactions in a row have left the lane, new transactions become runs.
LEFT_IN_A_ROW = 3
# The number of commits between two deletions of old data.
CLEAN_EVERY = 50
_POLL = 0.5
_JOIN = 30.0


class TurnNotReached(TxError):
    """A transaction of a lane has waited too long for an earlier transaction outside the lane."""

    template = "it did not get the turn within {seconds:g} s, because transaction {current} has it"


class AnyLane(ABC):
    """The interface of a lane for its coordinator. `Lane` and `NoLane` implement it.

    :ivar begun: the number of transactions that the lane has begun.
    :ivar left: the number of transactions that have left the lane.
    """

    begun = 0
    left = 0

    @property
    @abstractmethod
    def working(self) -> frozenset[int]:
        """Return the open txids that the lane has begun and still owns."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Return whether the lane must end, because the file of the DAG or of an application may have changed."""

    @property
    @abstractmethod
    def rests(self) -> bool:
        """Return whether the lane begins no more transactions because its last ones have all left it."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[None]:
        """Keep the lane open during the `with` block.

        At its end, transactions that are not committed leave the lane.
        """

    @abstractmethod
    def open_in(self, look: LedgerSnapshot) -> frozenset[int]:
        """Return the open transactions of the ledger that a lane works on."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until a transaction becomes final or leaves the lane, but no longer than this number of seconds."""

    @abstractmethod
    def work(self, seconds: float) -> Begun | NoData | WindowFull:
        """Begin and process transactions for some seconds, while the source has rows.

        Return the ledger's last response.

        :raises Refused, SourceError, ConfigError: the lane could not begin a transaction.
        :raises StoreError: the ledger cannot be reached.
        """


class NoLane(AnyLane):
    """Replaces the lane of a topology that has no lane. Every new transaction becomes a run."""

    working: frozenset[int] = frozenset()
    is_over = False
    rests = True

    def opened(self) -> AbstractContextManager[None]:
        return nullcontext()

    def open_in(self, look: LedgerSnapshot) -> frozenset[int]:
        return look.lane

    def wait(self, seconds: float) -> None:
        raise AssertionError("there is no lane")

    def work(self, seconds: float) -> Begun | NoData | WindowFull:
        raise AssertionError("there is no lane")


class Lane(AnyLane):
    """Works on transactions of a topology in order.

    `work` begins and processes the transactions, and a second thread commits them.

    :param plan: the tasks and the committer of the DAG.
    :param store: the store of the ledger. It is connected while the lane is open.
    :param ti: the task instance of the coordinator.
    :param log: the log of the coordinator.
    :param patience: the longest time that a transaction may wait for its turn, in seconds.
    :param clock: a function that returns monotonic seconds.
    """

    def __init__(
        self,
        plan: LanePlan,
        store: Store,
        ti: Any,
        log: Any,
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan = plan.resolved()
        self.task_try = f"{LANE_TRY}{uuid.uuid4().hex}"
        self._spec = plan.spec
        self._store = store
        self._ti = ti
        self._log = log
        self._patience = patience
        self._clock = clock
        # Both threads share the ledger object, so that neither reads what the other has written.
        self._ledger = plan.spec.ledger(store)
        self._window = LaneWindow()
        self._applications = LaneApplications(plan.dag_file, self._window.changed, log)
        self._stopping = threading.Event()
        self._left_in_a_row = 0
        self._progress = LaneProgress(plan.spec.topology, log, clock)
        self._turn = LaneTurn()
        self._first = TaskTry(plan.tasks[0].task_id, -1, self.task_try) if plan.tasks else None
        self.begun = 0
        self.left = 0
        self._opened_at = clock()
        self._files = {file: _version(file) for file in plan.files}

    @contextmanager
    def opened(self) -> Iterator[None]:
        committer = threading.Thread(target=self._commit_all, name="airflow_tx-lane", daemon=True)
        shown = {"run_id": self._ti.run_id, "task_try": str(self._ti.id)}
        # The applications run in threads. Hide the context of the coordinator's task from them.
        context = compat.without_context() if self.plan.applications else nullcontext()
        with context, self._ledger.announce_lane(self.task_try, shown):
            committer.start()
            try:
                self._applications.prepare(
                    self.plan.applications, self._spec.window, self._rehearsal_dir
                )
                yield
            finally:
                self._stopping.set()
                self._window.close()
                self._applications.close()
                committer.join(_JOIN)

    def _rehearsal_dir(self) -> TryDir:
        """Return a new folder for a rehearsal, which removes the folder itself, since no commit would."""
        task = TaskTry("rehearsal", -1, uuid.uuid4().hex)
        return self._spec.staging().try_dir(self._spec.topology, TransactionAttempt(0, 1), task)

    @property
    def working(self) -> frozenset[int]:
        return self._window.txids

    @property
    def is_over(self) -> bool:
        changed = any(_version(file) != version for file, version in self._files.items())
        return changed or self._clock() - self._opened_at > STINT

    @property
    def rests(self) -> bool:
        return self._left_in_a_row >= LEFT_IN_A_ROW

    def open_in(self, look: LedgerSnapshot) -> frozenset[int]:
        # For the lane's own transactions, the window is more current than the ledger.
        own = {txid for txid, record in look.opened.items() if record.request == self.task_try}
        return (look.lane - own) | (own & self.working)

    def wait(self, seconds: float) -> None:
        self._wait_below(len(self.working), seconds)

    def work(self, seconds: float) -> Begun | NoData | WindowFull:
        until = self._clock() + seconds
        while True:
            self._wait_below(self._spec.window, until - self._clock())
            answer = self._advance()
            left = until - self._clock()
            if left <= 0 or isinstance(answer, NoData) or self.rests:
                return answer
            if isinstance(answer, WindowFull):
                if not self.working:
                    return answer
                self.wait(left)

    def _wait_below(self, count: int, seconds: float) -> None:
        """Wait until the lane has fewer than `count` transactions.

        During the wait, continue transactions that are ready.
        """
        until = time.monotonic() + seconds
        done = False
        while not done:
            done = self._window.wait_below(count, until)
            for transaction in self._window.take_over():
                self._process(transaction)

    # --- in the thread of the coordinator

    def _advance(self) -> Begun | NoData | WindowFull:
        begun = allocate(self._spec, self._ledger, self.task_try, first=self._first)
        if not isinstance(begun, Begun):
            return begun
        self.begun += 1
        self._window.add(begun.txid)
        outputs = LaneOutputs()
        commit = LaneCommit(
            self.plan,
            begun,
            self._ledger,
            self._ti,
            self._log,
            outputs=outputs,
            turn=self._turn,
        )
        failpoint("lane.after_begin", **commit.where)
        own = LaneTransaction(
            self.plan,
            begun,
            self._ledger,
            self.task_try,
            outputs,
            commit=commit,
            applications=self._applications,
            started=self._first,
        )
        self._process(own)
        return begun

    def _process(self, transaction: LaneTransaction) -> None:
        begun = transaction.begun
        try:
            done = transaction.process()
        except StoreError:
            self._window.drop(begun.txid)
            raise
        except (Exception, SystemExit, AirflowTaskTimeout) as error:  # noqa: BLE001 - of the user's code
            refusal = error if isinstance(error, TxError) else None
            self._leave(begun, partial(transaction.fail, refusal=refusal), error)
        else:
            if not done:
                self._window.applied(transaction)
                return
            assert transaction.commit is not None
            failpoint("lane.after_process", **transaction.commit.where)
            self._turn.waiting[begun.txid] = transaction.commit
            transaction.commit.prepare_ahead()
            self._window.processed(transaction)

    # --- in the thread that commits

    def _commit_all(self) -> None:
        while (transaction := self._window.next_processed()) is not None:
            begun = transaction.begun
            own = transaction.commit
            assert own is not None
            self._turn.waiting.pop(begun.txid, None)
            try:
                self._commit(own)
            except SkippedTransaction as error:
                self._log.warning("%s", error)
            except BaseException as error:  # noqa: BLE001 - of a state of the user's, too
                self._leave(begun, partial(self._note, own, error), error)
            else:
                self._turn.txid = begun.txid + 1
                self._progress.note(begun)
                self._left_in_a_row = 0
                if self._progress.committed % CLEAN_EVERY == 0:
                    self._clean_up(begun.txid)
            self._window.drop(begun.txid)

    def _commit(self, own: LaneCommit) -> None:
        """Commit a transaction after all earlier transactions outside the lane have become final.

        :raises TurnNotReached: an earlier transaction did not become final in time.
        """
        if own.commit_granted():
            return
        own.complete()  # Record that the transaction is processed, for later committers.
        self._await_turn(own.begun.txid)
        line = commit_in_turn(own, self._store, patience=self._patience)
        if line is not None:
            raise TurnNotReached(seconds=self._patience, current=line.current)

    def _await_turn(self, txid: int) -> None:
        if txid <= self._turn.txid:
            return
        until = self._clock() + self._patience
        while (current := self._ledger.current()) < txid:
            restated = self._is_restated_before(txid, current)
            if restated:
                until = self._clock() + self._patience
            if self._stopping.is_set() or self._clock() >= until:
                raise TurnNotReached(seconds=self._patience, current=current, restated=restated)
            with self._ledger.watch_turn() as watch:
                if self._ledger.current() == current:
                    watch.wait(_POLL)

    def _is_restated_before(self, txid: int, current: int) -> bool:
        """Return whether an open transaction before this one is a restatement. A restatement takes as long as a run."""
        opened = self._ledger.opened(range(current, txid))
        return any(record.replaces is not None for record in opened.values())

    def _note(self, own: LaneCommit, error: BaseException, reason: str) -> str:
        for_good = _is_for_good(error)
        noted = self._ledger.note_commit_failed(
            own.begun.attempt,
            own.epoch,
            reason=compat.masked(problem_of(error)) if for_good else f"the commit failed: {reason}",
            remedy=advice_of(error),
            for_good=for_good,
            checks=getattr(error, "checks", None),
        )
        send_failure(self._spec.paths, noted)
        return reason

    def _clean_up(self, txid: int) -> None:
        clean_up(self._spec, self._ledger, self._ti, txid, log=self._log)

    # --- in both threads

    def _leave(self, begun: Begun, note: Callable[[str], str], error: BaseException) -> None:
        """Release a transaction from the lane. The coordinator starts a run for it, unless its refusal is permanent."""
        reason = compat.masked(f"{type(error).__name__}: {problem_of(error)}")
        try:
            reason = note(reason)
        except TxError as refusal:
            self._log.info("%s", refusal)
        then = (
            "it stays failed until a person acts"
            if _is_for_good(error)
            else f"it becomes run {begun.run_id}"
        )
        self.left += 1
        self._log.warning(
            "Transaction %s leaves the lane (%s); %s", begun.attempt, reason, then, exc_info=error
        )
        if getattr(error, "restated", False):
            self._window.drop(begun.txid)
            return
        self._left_in_a_row += 1
        if self.rests:
            text = "%s transactions in a row have left the lane. The next transactions become runs."
            self._log.warning(text, self._left_in_a_row)
        self._window.drop(begun.txid)


def _is_for_good(error: BaseException) -> bool:
    return isinstance(error, TxError) and error.for_good


def _version(file: str) -> tuple[float, int]:
    try:
        found = os.stat(file)
    except OSError:
        return (0.0, 0)  # The bundle was removed, or the file is being written.
    return (found.st_mtime, found.st_size)
