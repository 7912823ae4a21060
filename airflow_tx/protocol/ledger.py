"""The ledger: every step of the protocol as a method of one object. Source: protocol.md §2."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from airflow_tx.errors import StoreError, TooMuchContention, UnreadableRecord
from airflow_tx.protocol import begin as beginning
from airflow_tx.protocol import commit as committing
from airflow_tx.protocol import correction, end, garbage, loss, processing, recovery, run_slots, skip
from airflow_tx.protocol import topology as opening
from airflow_tx.protocol.api import Clock, Ids, Store
from airflow_tx.protocol.attempt import Token, TransactionAttempt
from airflow_tx.protocol.audit import Audit
from airflow_tx.protocol.batch import BeginRequest, Loss, Proposal
from airflow_tx.protocol.commit import AcquireRequest, CommitRequest
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.processing import Instance, TaskTry
from airflow_tx.protocol.reader import PRESENT, Reader
from airflow_tx.protocol.records import TopologyRecord, TransactionRecord
from airflow_tx.protocol.recovery import ReplayRequest
from airflow_tx.protocol.run_slots import Waiter
from airflow_tx.protocol.runner import StepRunner
from airflow_tx.protocol.step import (
    AlreadyCommitted,
    AlreadySkipped,
    Begun,
    Bidding,
    Blocked,
    Committed,
    Decision,
    Done,
    Granted,
    NeedBatch,
    NeedCurrent,
    NeedRows,
    NeedRunState,
    NeedTopology,
    NoData,
    NotNeeded,
    NotYet,
    Processed,
    Repaired,
    ReplayNoted,
    Restarted,
    Result,
    SkipGranted,
    Started,
    ToBeSkipped,
    WindowFull,
)
from airflow_tx.protocol.topology import TopologyRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

PASSES = 100
LOOKS = 3

Decide = Callable[[TransactionAttempt, Any], "tuple[Any, ...] | None"]
"""Asks the source: (attempt, position before) → (rows, position after[, size]), or None without data: `Proposed`."""
DecideAgain = Callable[[TransactionAttempt, Any], Any]
"""Asks the source: (attempt, rows as they were decided) → the rows of the same place as they are now."""
RunState = Callable[[str], str | None]
"""Asks Airflow: run_id → state of that run, or None if it was deleted."""
IsCurrent = Callable[[], bool]
"""Asks Airflow whether the asking try is the current one of its task: not retried, cleared or deleted since."""


@dataclass(frozen=True)
class LedgerOptions:
    """:param history: how many final transactions are remembered."""

    history: int = 1000


class Ledger(StepRunner):
    """The transactions of one topology, as one process sees them.

    Nothing here waits: an answer such as `NotYet` goes back to the caller, who decides how to wait.
    """

    def __init__(
        self,
        store: Store,
        paths: Paths,
        *,
        clock: Clock,
        ids: Ids,
        options: LedgerOptions | None = None,
    ) -> None:
        super().__init__(store, paths, clock=clock, ids=ids)
        self.options = options or LedgerOptions()

    def begin(
        self,
        request: BeginRequest,
        *,
        decide: Decide,
        run_state: RunState,
        decide_again: DecideAgain = lambda attempt, rows: rows,
        is_current: IsCurrent = lambda: True,
    ) -> Begun | NoData | WindowFull | AlreadyCommitted:
        """Step `begin`, asking the source and Airflow where it must, and making the ledger on first use.

        :raises Refused: see `beginning.begin`.
        """
        proposal: Proposal | None = None
        states: dict[str, str | None] = {}
        current: dict[str, bool] = {}
        for _ in range(PASSES):
            step = partial(
                beginning.begin,
                paths=self.paths,
                request=request,
                proposal=proposal,
                run_states=states,
                current=current,
            )
            result = self.run(step)
            if isinstance(result, NeedTopology):
                self.open(request.topology)
            elif isinstance(result, NeedBatch):
                proposal = Proposal(result.attempt.txid, result.base, decide(result.attempt, result.position))
            elif isinstance(result, NeedRows):
                again = decide_again(result.attempt, result.metadata)
                proposal = Proposal(result.attempt.txid, result.asked, (again, None))
            elif isinstance(result, NeedRunState):
                states[result.run_id] = run_state(result.run_id)
            elif isinstance(result, NeedCurrent):
                current[result.found] = is_current()
            else:
                if isinstance(result, Begun):
                    self.sweep()
                return cast("Begun | NoData | WindowFull | AlreadyCommitted", result)
        raise TooMuchContention(step="begin", subject=request.run_id, times=PASSES)

    def pace(self) -> list[list[float]]:
        """Of the last committed transactions, how many rows each had and how many seconds it was in process."""
        record = Reader(self.store).peek_if_any(TopologyRecord, self.paths.record)
        return [] if record is None else record.pace

    def standing(self) -> Any:
        """Where the source stands after the last final transaction; what this process has just read is not read again.

        :raises UnreadableRecord: naming the record.
        """
        return self._seen(loss.standing)

    def deciding_from(self) -> list[Any]:
        """Every place from which rows will still be decided; see `accepting.deciding_from`."""
        self.store.sync()
        self._known.clear()
        return self._seen(loss.deciding_from)

    def _seen(self, look: Callable[[Reader, Paths], T]) -> T:
        for _ in range(LOOKS):
            try:
                return look(Reader(self.store, self._known), self.paths)
            except UnreadableRecord:
                self._known.clear()  # the turn moves on, and takes away what lies behind it
        return look(Reader(self.store), self.paths)

    def accept_loss(self, losses: Sequence[Loss], audit: Audit) -> Repaired:
        """Rows that the source lost; see `accepting.accept_loss`. If it fails midway, the rest can be accepted again.

        :return: the last of as many repairs as it takes.
        """
        for start in range(0, max(len(losses), 1), loss.PORTION):
            portion = tuple(losses[start : start + loss.PORTION])
            done = self.run(partial(loss.accept_loss, paths=self.paths, losses=portion, audit=audit))
        return cast(Repaired, done)

    def open(self, request: TopologyRequest) -> None:
        """Make the ledger of this topology, or bring it up to date with the DAG.

        :raises Refused: see `opening.open_topology`.
        """
        self.store.ensure(self.paths.root)
        self.run(
            partial(
                opening.open_topology,
                paths=self.paths,
                request=request,
                incarnation=self.ids.nonce(),
            )
        )

    def start(
        self, attempt: TransactionAttempt, task: TaskTry, *, is_current: IsCurrent = lambda: True
    ) -> Started | AlreadyCommitted:
        """Step `start`, asking Airflow where another try has started before; see `processing.start`."""
        emitted, current = self.ids.message_id(), dict[str, bool]()
        for _ in range(PASSES):
            step = partial(
                processing.start, paths=self.paths, attempt=attempt, task=task, emitted=emitted, current=current
            )
            result = self.run(step)
            if not isinstance(result, NeedCurrent):
                return cast("Started | AlreadyCommitted", result)
            current[result.found] = is_current()
        raise TooMuchContention(step="start", subject=task.task, times=PASSES)

    def ack(
        self,
        attempt: TransactionAttempt,
        task: TaskTry,
        *,
        rows: int | None = None,
        outputs: Collection[Any] = (),
    ) -> Done:
        """Step `ack`; see `processing.ack`."""
        step = partial(
            processing.ack,
            paths=self.paths,
            attempt=attempt,
            task=task,
            rows=rows,
            outputs=list(outputs),
        )
        return cast(Done, self.run(step))

    def fail(self, attempt: TransactionAttempt, task: TaskTry, reason: str) -> Done:
        """Step `fail`; see `processing.fail`."""
        return cast(
            Done,
            self.run(
                partial(
                    processing.fail,
                    paths=self.paths,
                    attempt=attempt,
                    task=task,
                    reason=reason,
                )
            ),
        )

    def processed(
        self,
        attempt: TransactionAttempt,
        *,
        rows_digest: str,
        expected: Collection[Instance] | None = None,
    ) -> Processed | AlreadyCommitted:
        """Step `processed`; see `processing.processed`."""
        step = partial(
            processing.processed,
            paths=self.paths,
            attempt=attempt,
            rows_digest=rows_digest,
            expected=expected,
        )
        return cast("Processed | AlreadyCommitted", self.run(step))

    def acquire(self, request: AcquireRequest) -> Granted | NotYet | Restarted | ToBeSkipped | AlreadyCommitted:
        """Step `acquire`; see `committing.acquire`."""
        step = partial(
            committing.acquire,
            paths=self.paths,
            request=request,
            nonce=self.ids.nonce(),
        )
        return cast("Granted | NotYet | Restarted | ToBeSkipped | AlreadyCommitted", self.run(step))

    def commit_failed(self, attempt: TransactionAttempt, epoch: int | None, reason: str) -> Done:
        """A commit that nobody tries again by itself; see `committing.commit_failed`."""
        step = partial(committing.commit_failed, paths=self.paths, attempt=attempt, epoch=epoch, reason=reason)
        return cast(Done, self.run(step))

    def take_output(self, token: Token, outputs: Mapping[str, str]) -> Done:
        """See `committing.take_output`."""
        return cast(Done, self.run(partial(committing.take_output, paths=self.paths, token=token, outputs=outputs)))

    def commit(
        self,
        token: Token,
        *,
        states: Collection[str],
        rows: int | None = None,
        ack_val: int = 0,
    ) -> Committed:
        """Step `commit`; see `committing.commit`."""
        request = CommitRequest(token, tuple(states), rows, ack_val, self.options.history)
        # The history of so many commits ago is there: assume so, and read only if the multi says otherwise.
        if token.txid > self.options.history:
            self._known.nodes.setdefault(self.paths.history(token.txid - self.options.history), PRESENT)
        return self._ended(partial(committing.commit, paths=self.paths, request=request))

    def note_skip(self, txid: int, audit: Audit) -> Done | AlreadySkipped:
        """Step `skip`; see `skipping.note_skip`."""
        return cast("Done | AlreadySkipped", self.run(partial(skip.note_skip, **self._of(txid), audit=audit)))

    def withdraw_skip(self, txid: int) -> Done:
        """Step `replay` of a person; see `skipping.withdraw_skip`."""
        return cast(Done, self.run(partial(skip.withdraw_skip, **self._of(txid))))

    def note_changed(self, txid: int, states: Mapping[str, bool], audit: Audit) -> Done | AlreadySkipped:
        """The corrected file; see `changing.note_changed`."""
        step = partial(correction.note_changed, **self._of(txid), states=states, audit=audit)
        return cast("Done | AlreadySkipped", self.run(step))

    def grant_skip(self, txid: int, states: Mapping[str, bool]) -> SkipGranted | NotYet | AlreadySkipped:
        """The grant of a skip; see `skipping.grant_skip`."""
        step = partial(skip.grant_skip, **self._of(txid), states=states, nonce=self.ids.nonce())
        return cast("SkipGranted | NotYet | AlreadySkipped", self.run(step))

    def commit_skip(self, token: Token, *, states: Collection[str]) -> Committed:
        """The end of a skip; see `skipping.commit_skip`."""
        step = partial(
            skip.commit_skip,
            paths=self.paths,
            token=token,
            states=tuple(states),
            history=self.options.history,
        )
        return self._ended(step)

    def readmit(self, txid: int, audit: Audit) -> Done:
        """Step `readmit`; see `skipping.readmit`."""
        return cast(Done, self.run(partial(skip.readmit, **self._of(txid), audit=audit)))

    def bid(self, waiter: Waiter, *, overdue: str = "") -> Bidding | NotNeeded:
        """First half of `yield`; see `yielding.bid`."""
        step = partial(run_slots.bid, paths=self.paths, waiter=waiter, overdue=overdue)
        return cast("Bidding | NotNeeded", self.run(step))

    def give_way(self, waiter: Waiter) -> Done | NotNeeded:
        """Second half of `yield`; see `yielding.give_way`."""
        return cast("Done | NotNeeded", self.run(partial(run_slots.give_way, paths=self.paths, waiter=waiter)))

    def came_back(self, run_id: str) -> Done:
        """The end of a `yield`; see `yielding.came_back`."""
        return cast(Done, self.run(partial(run_slots.came_back, paths=self.paths, run_id=run_id)))

    def note_replay(self, request: ReplayRequest) -> ReplayNoted | Blocked | AlreadyCommitted:
        """An automatic replay; see `recovering.note_replay`."""
        step = partial(recovery.note_replay, paths=self.paths, request=request)
        return cast("ReplayNoted | Blocked | AlreadyCommitted", self.run(step))

    def unblock(self) -> Done:
        """See `recovering.unblock`."""
        return cast(Done, self.run(partial(recovery.unblock, paths=self.paths)))

    def _ended(self, step: partial[Decision | Result]) -> Committed:
        ended = cast(Committed, self.run(step))
        if ended.here:
            self.sweep()
        return ended

    def sweep(self) -> None:
        """Remove what the last step, or one whose process died, has left. What goes wrong here fails no step."""
        try:
            # Known by now: the step has read it.
            topology = Reader(self.store, self._known).peek_if_any(TopologyRecord, self.paths.record)
            if topology is None or not topology.garbage:
                return
            for each in topology.garbage:
                garbage.remove(self.store, f"{self.paths.base}/{each}")
            self.run(partial(garbage.forget, paths=self.paths, folders=topology.garbage))
        except StoreError as error:
            log.info("Old records of %s are left to the next transaction: %s", self.paths.topology, error)

    def _of(self, txid: int) -> dict[str, Any]:
        return {"paths": self.paths, "txid": txid}

    def holds(self, token: Token) -> bool:
        """Whether `token` is still the grant that the ledger knows: an outranked committer, or a broken ledger?"""
        self.store.sync()
        read = Reader(self.store)
        record = read.peek_if_any(TransactionRecord, self.paths.transaction(token.txid))
        return end.holds(record, read.peek(TopologyRecord, self.paths.record), token)
