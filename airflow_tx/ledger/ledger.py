"""The ledger of one topology: runs the steps on a store, one multi each, and reads it. Source: docs/protocol.md §1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_tx.base.errors import (
    OutcomeUnknown,
    Refused,
    RequirementFailed,
    StoreError,
    StoreUnavailable,
    TooMuchContention,
    UnreadableRecord,
)
from airflow_tx.ledger import answers
from airflow_tx.ledger.answers import BeginRequest, Loss, Outside, TopologyRequest
from airflow_tx.ledger.api import Clock, Create, Ids, Paths, Store
from airflow_tx.ledger.attempt import TaskTry, Token, TransactionAttempt
from airflow_tx.ledger.audit import loss
from airflow_tx.ledger.reading import NO_TOPOLOGY, TurnReading, read_opened
from airflow_tx.ledger.records import Counter, History, TopologyRecord, TransactionRecord
from airflow_tx.ledger.steps import end, processing
from airflow_tx.ledger.steps.begin import (
    BeginAnswer,
    BoundStep,
    begin,
    begin_started,
    open_topology,
)
from airflow_tx.ledger.steps.step import (
    Answers,
    Audit,
    Decision,
    KnownRecords,
    Reader,
    Stamp,
    Unanswered,
    note_removed,
    remove,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

PASSES = 100
LOOKS_AT_POSITION = 3
UNANSWERED = (
    5  # passes; a multi that has no answer even then may be one that the servers do not take
)


class Ledger:
    """The transactions of one topology, as one process sees them.

    Nothing here waits: an answer such as `NotYet` goes back to the caller, who decides how to wait. It remembers the
    records that it wrote itself, so that its next step need not read them again; such a memory is only ever used for a
    multi that checks it. Several threads may run steps on one ledger.

    :param history: how many final transactions are remembered.
    """

    def __init__(
        self, store: Store, paths: Paths, *, clock: Clock, ids: Ids, history: int = 1000
    ) -> None:
        self.store = store
        self.paths = paths
        self.clock = clock
        self.ids = ids
        self.history = history
        self._known = KnownRecords()

    # --- steps

    def run(
        self,
        step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one step: its result, once its multi is done, or its answer, once it is certain.

        :raises Refused, UnreadableRecord: what the step raises, decided on what everybody has written until now.
        :raises OutcomeUnknown, StoreUnavailable, TooMuchContention: see `Store.multi`.
        """
        name = step.func.__name__ if isinstance(step, partial) else step.__name__
        answered: Answers = {}

        def bound(read: Reader, stamp: Stamp, paths: Paths) -> Decision[T]:
            return step(read, stamp, paths, *args, **kwargs)

        for _ in range(PASSES):
            result = self._run(name, bound, answered)
            if not isinstance(result, Unanswered):
                return result
            answered[result.kind] = (result.about, result.call())
        raise TooMuchContention(step=name, subject=self.paths.topology, times=PASSES)

    def preview(
        self,
        step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Decision[T]:
        """Decide one step on what everybody has written until now, and write nothing.

        :raises Refused, UnreadableRecord: what the step raises.
        :raises TooMuchContention: other steps write all the time.
        """
        for _ in range(PASSES):
            self.store.sync()
            read = Reader(self.store)
            try:
                decided: Decision[T] | Refused | UnreadableRecord = step(
                    read, self._stamp(), self.paths, *args, **kwargs
                )
            except (Refused, UnreadableRecord) as error:
                decided = error
            if not self._confirmed(read):
                continue
            if isinstance(decided, Decision):
                return decided
            raise decided
        raise TooMuchContention(step=step.__name__, subject=self.paths.topology, times=PASSES)

    def begin(
        self, request: BeginRequest, outside: Outside, *, task: TaskTry | None = None
    ) -> BeginAnswer:
        """Run the step `begin`, asking the source and Airflow where it must, and making the ledger on first use.

        :param task: starts in the same multi: a task of a process that begins a new transaction and works on it.
        :raises Refused: nothing has changed.
        """
        step = begin if task is None else partial(begin_started, task=task)
        return self.run(step, request, outside, open_first=partial(self.open, request.topology))

    def open(self, request: TopologyRequest) -> None:
        """Make the ledger of this topology, or bring it up to date with the DAG.

        :raises TopologyClaimed, SourceKindChanged, SourceShapeChanged: it is not changed.
        """
        self.store.ensure(self.paths.root)
        self.run(open_topology, request)

    def start(
        self,
        attempt: TransactionAttempt,
        task: TaskTry,
        *,
        is_current: Callable[[], bool] = lambda: True,
    ) -> answers.Done | answers.AlreadyCommitted:
        """Run the step `start`, asking Airflow where another try has started before.

        :raises StaleAttempt, StaleTry: a newer attempt, or a newer try of this task, exists.
        """
        return self.run(processing.start, attempt, task, is_current=is_current)

    def accept_loss(
        self, losses: Sequence[Loss], audit: Audit, *, known: Sequence[int] | None = None
    ) -> answers.Repaired:
        """Note that these rows are lost. If it fails midway, the rest can be accepted again.

        :param known: see `loss.note_losses`.
        :return: the last of as many repairs as it takes.
        :raises LossRefused: nothing is lost. PreviewOutdated: others were accepted since.
        """
        limit = loss.LOSSES_A_RECORD
        first, *rest = (
            losses[start : start + limit] for start in range(0, len(losses) or 1, limit)
        )
        done = self.run(loss.note_losses, first, audit, known=known)
        for portion in rest:
            done = self.run(loss.note_losses, portion, audit)
        return done

    def sweep(self) -> None:
        """Remove what the last step, or one whose process died, has left. What goes wrong here fails no step."""
        try:
            record = Reader(self.store, self._known).peek_if_any(
                TopologyRecord, self.paths.record
            )  # known by now
            if record is None or not record.garbage:
                return
            for each in record.garbage:
                remove(self.store, f"{self.paths.base}/{each}")
            self.run(note_removed, record.garbage)
        except StoreError as error:
            log.info(
                "Old records of %s are left to the next transaction: %s", self.paths.topology, error
            )

    # --- reading

    def turn(self, *, with_topology: bool = False) -> TurnReading:
        """Read whose turn it is to commit."""
        read = Reader(self.store)
        current = read.peek(Counter, self.paths.current).txid
        return TurnReading(
            current=current,
            opened=read_opened(read, self.paths, [current]),
            topology=self.topology() if with_topology else NO_TOPOLOGY,
        )

    def status(self, txid: int) -> TransactionRecord | None:
        """Read the record of an open transaction; None: it is final, or has not begun."""
        return Reader(self.store).peek_if_any(TransactionRecord, self.paths.transaction(txid))

    def outcome(self, txid: int) -> History | None:
        """Read what became of a final transaction; None: that is forgotten."""
        return Reader(self.store, self._known).peek_if_any(History, self.paths.history(txid))

    def topology(self) -> TopologyRecord:
        """Read what holds for all transactions."""
        return Reader(self.store).peek(TopologyRecord, self.paths.record)

    def past_time(self) -> datetime:
        """Read a time that is past by two clocks, of this machine and of the store: one may be wrong."""
        now = self.clock.now()
        node = self.store.get(self.paths.record)
        return min(now, (node and node.modified) or now)

    def incarnation(self) -> str:
        """Name this life of the ledger; what was just read is not read again."""
        read = Reader(self.store, self._known)
        record = read.peek(TopologyRecord, self.paths.record)
        self.remember(read)
        return record.incarnation

    def pace(self, unit: str = "rows") -> list[list[float]]:
        """Read how many rows each of the last committed transactions had, and how many seconds it was in process.

        :param unit: what was counted, if it is not rows.
        """
        record = Reader(self.store).peek_if_any(TopologyRecord, self.paths.record)
        pace = [] if record is None else record.pace
        return [each[:2] for each in pace if (each[2:] or ["rows"]) == [unit]]

    def position(self) -> Any:
        """Read where the source stands after the last final transaction; what was just read is not read again.

        :raises UnreadableRecord: naming the record.
        """
        return self._seen(loss.position_now)

    def deciding_from(self) -> list[Any]:
        """Read every position from which rows will still be decided, as everybody has written it until now."""
        self.store.sync()
        self._known.clear()
        return self._seen(loss.deciding_from)

    def holds(self, token: Token) -> bool:
        """Ask whether `token` is still the grant that the ledger knows: an outranked committer, or a broken ledger?"""
        self.store.sync()
        return end.holds(self.status(token.txid), self.topology(), token)

    def remember(self, read: Reader) -> None:
        """Keep what a caller has just read, so that the next step need not; its multi checks it."""
        self._known.nodes.update(
            {path: node for path, node in read.seen.nodes.items() if node is not None}
        )

    def _seen(self, question: Callable[[Reader, Paths], T]) -> T:
        for _ in range(LOOKS_AT_POSITION):
            try:
                return question(Reader(self.store, self._known), self.paths)
            except UnreadableRecord:
                self._known.clear()  # the turn moves to the next one, and earlier records may be removed
        return question(Reader(self.store), self.paths)

    # --- one pass

    def _run(self, name: str, step: BoundStep[T], answered: Answers) -> T | Unanswered:
        synced = False
        for number in range(PASSES):
            # After a sync it reads everything again: no cached record may decide an answer.
            known = None if synced else self._known
            read = Reader(self.store, known, hasty=number == 0, answers=answered)
            stamp = self._stamp()
            try:
                decided: Decision[T] | Refused | UnreadableRecord = step(read, stamp, self.paths)
            except Unanswered as question:
                # The multi that follows the answer checks what led to the question.
                self._known.add(read.seen)
                return question
            except (Refused, UnreadableRecord) as error:
                decided = error
            if isinstance(decided, Decision) and decided.writes:
                if self._send(read, decided, stamp, again=number < UNANSWERED):
                    return self._swept(decided.result)
            elif synced and self._confirmed(read):
                if isinstance(decided, Decision):
                    return self._swept(decided.result)
                raise decided
            else:
                # What writes nothing is decided on what everybody has written until now, never on a memory.
                self.store.sync()
                synced = True
            self._known.clear()
        raise TooMuchContention(step=name, subject=self.paths.topology, times=PASSES)

    def _stamp(self) -> Stamp:
        now = self.clock.now().isoformat(timespec="milliseconds")
        return Stamp(now, self.ids.nonce(), self.ids.message_id(), self.history)

    def _confirmed(self, read: Reader) -> bool:
        """Ask whether all read records held at one moment: an answer must not mix records of different times."""
        requirements = read.requirements(frozenset())
        try:
            if requirements:
                self.store.multi(requirements, ())
        except (RequirementFailed, OutcomeUnknown):
            return False
        return True

    def _send(self, read: Reader, decision: Decision[object], stamp: Stamp, *, again: bool) -> bool:
        created = frozenset(write.path for write in decision.writes if isinstance(write, Create))
        after = self._known.made_by(
            decision.writes, read.seen
        )  # before it is sent: other threads note more
        try:
            self.store.multi(read.requirements(created), decision.writes)
        except RequirementFailed:
            return False
        except OutcomeUnknown as unknown:
            self._known.clear()
            try:
                self.store.sync()
                found = self.store.get(decision.proof)
            except StoreUnavailable:
                raise unknown from None  # not that one: it says that nothing was written
            made = found is not None and f'"op":"{stamp.op}"'.encode() in found.data
            if made or again:
                return made
            raise
        self._known.take(after, read.seen)
        return True

    def _swept(self, answer: T) -> T:
        final = answer.first if isinstance(answer, answers.Joined) else answer
        if isinstance(final, (answers.Begun, answers.Committed)):
            self.sweep()
        return answer
