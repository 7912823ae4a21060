"""The ledger of one topology. It runs each step as one multi and reads records. Source: docs/protocol.md §1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from airflow_tx.base.errors import (
    OutcomeUnknown,
    Refused,
    RequirementFailed,
    StoreError,
    StoreUnavailable,
    TooMuchContention,
    UnknownTransaction,
    UnreadableRecord,
)
from airflow_tx.ledger import answers
from airflow_tx.ledger.api import (
    Clock,
    Create,
    Ids,
    Paths,
    Store,
    SystemClock,
    SystemIds,
    Watch,
    ack_element,
    ack_name,
    decode_name,
    encode_name,
    names_below,
    txids_below,
)
from airflow_tx.ledger.attempt import TaskTry, Token, of_lane
from airflow_tx.ledger.batch import BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.json_text import dumps
from airflow_tx.ledger.reading import (
    NO_TOPOLOGY,
    Answers,
    KnownRecords,
    Reader,
    RotatingTransactionalState,
    TurnReading,
    Unanswered,
    listed_acks,
    records_at,
)
from airflow_tx.ledger.records import (
    AlarmNote,
    Behind,
    Binding,
    Counter,
    Followed,
    Loss,
    Metadata,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
)
from airflow_tx.ledger.steps import (
    alarm,
    commit,
    correction,
    end,
    loss,
    processing,
    recovery,
    replay,
    roll_forward,
    run_slots,
    version,
    watcher,
)
from airflow_tx.ledger.steps.begin import (
    BeginAnswer,
    BoundStep,
    begin,
    begin_started,
    in_one_multi,
    open_topology,
)
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp, is_committed, note_removed, remove

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

PASSES = 100
LOOKS_AT_POSITION = 3
UNANSWERED = 5  # After this many lost responses, the servers probably refuse the multi.


@dataclass(frozen=True)
class BoundCall(Generic[T]):
    """A step together with its arguments, ready to be decided."""

    step: Callable[..., Decision[T]]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __call__(self, read: Reader, stamp: Stamp, paths: Paths) -> Decision[T]:
        """Decide the step."""
        return self.step(read, stamp, paths, *self.args, **self.kwargs)


@dataclass(frozen=True)
class OwnStep(Generic[P, T]):
    """A step of one ledger. A call of the object runs the step."""

    ledger: Ledger
    step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the step on the ledger. Raises the errors of `Ledger.run`."""
        return self.ledger.run(self.step, *args, **kwargs)

    def preview(self, *args: P.args, **kwargs: P.kwargs) -> Decision[T]:
        """Decide the step, but write nothing. Raises the errors of `Ledger.preview`."""
        return self.ledger.preview(self.step, *args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundStep[T]:
        """Return the step with its arguments, for `Ledger.run` or `Ledger.joined`."""
        return BoundCall(self.step, args, kwargs)


def _name_of(step: Any) -> str:
    if isinstance(step, BoundCall):
        step = step.step
    return str(step.func.__name__ if isinstance(step, partial) else step.__name__)


class Step(Generic[P, T]):
    """Descriptor that makes a step a method of the ledger."""

    def __init__(self, step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]]) -> None:
        self._step = step

    def __get__(self, ledger: Ledger, owner: object = None) -> OwnStep[P, T]:
        return OwnStep(ledger, self._step)


class ReadOnlyLedger:
    """Reads the ledger of one topology, for callers that run no steps.

    Each call reads from the store. A `Ledger`, in contrast, remembers records that never change.
    """

    def __init__(self, store: Store, paths: Paths) -> None:
        self.store = store
        self.paths = paths
        self._look = Reader(store)

    @property
    def reader(self) -> Reader:
        """Return a reader that reads every record from the store."""
        return self._look

    @property
    def _remembering(self) -> Reader:
        """The reader for records that never change. The reader of a `Ledger` remembers them."""
        return self._look

    def current(self) -> int:
        """Read the txid that has the turn to commit.

        :raises UnreadableRecord: the topology has not begun.
        """
        return self.reader.peek(Counter, self.paths.current).txid

    def current_if_any(self) -> int | None:
        """Read the txid that has the turn. Return None if the topology has not begun."""
        return self._txid_at(self.paths.current)

    def allocated(self) -> int:
        """Read the last allocated txid.

        :raises UnreadableRecord: the topology has not begun.
        """
        return self.reader.peek(Counter, self.paths.allocated).txid

    def allocated_if_any(self) -> int | None:
        """Read the last allocated txid. Return None if the topology has not begun."""
        return self._txid_at(self.paths.allocated)

    def _txid_at(self, path: str) -> int | None:
        found = self.reader.peek_if_any(Counter, path)
        return None if found is None else found.txid

    def turn(self, *, with_topology: bool = False) -> TurnReading:
        """Read the transaction that has the turn to commit, with any further facts that the caller requests."""
        current = self.current()
        return TurnReading(
            current=current,
            opened=self.opened([current]),
            topology=self.topology() if with_topology else NO_TOPOLOGY,
        )

    def status(self, txid: int) -> TransactionRecord | None:
        """Read the record of an open transaction. Return None if it is final or has not begun."""
        return self.reader.peek_if_any(TransactionRecord, self.paths.transaction(txid))

    def opened(self, txids: Iterable[int]) -> dict[int, TransactionRecord]:
        """Read the records of the open transactions among these."""
        records = {txid: self.paths.transaction(txid) for txid in txids}
        return records_at(self.reader, TransactionRecord, records)

    def outcome(self, txid: int) -> TransactionRecord | None:
        """Read the record of a final transaction. Return None if it is no longer in the history."""
        return self._remembering.peek_if_any(TransactionRecord, self.paths.history(txid))

    def skipped(self, txid: int) -> Skipped | None:
        """Read the skip record of a transaction. Return None if the transaction was not skipped."""
        return self.reader.peek_if_any(Skipped, self.paths.skipped(txid))

    def all_skipped(self) -> dict[int, Skipped]:
        """Read all skip records, by txid."""
        txids = txids_below(self.store, self.paths.all_skipped)
        return records_at(self.reader, Skipped, {each: self.paths.skipped(each) for each in txids})

    def is_committed(self, txid: int) -> bool:
        """Return whether a transaction without an open record is committed."""
        return is_committed(self.reader, self.paths, txid)

    def binding(self, key: str) -> Binding | None:
        """Read the binding of a run. Return None if the run has no transaction.

        :param key: the run key.
        """
        return self.reader.peek_if_any(Binding, self.paths.run(key))

    def bound(self, key: str) -> Binding:
        """Read the binding of a run, which must have a transaction.

        :raises UnreadableRecord: the run has no transaction.
        """
        return self.reader.peek(Binding, self.paths.run(key))

    def bound_keys(self) -> frozenset[str]:
        """Return the run keys of all runs that have a transaction."""
        return frozenset(map(decode_name, names_below(self.store, self.paths.runs)))

    def wishes(self) -> tuple[Wish, ...]:
        """Read the requested restatements that no run has begun, by txid."""
        return replay.wishes(self.store, self.paths)

    def restating(self, binding: Binding) -> int | None:
        """Return the open transaction that restates the transaction of a run. Return None if there is none."""
        return replay.restating(self.reader, self.paths, binding)

    def book(self) -> Book:
        """Open the book of ends."""
        return Book(self.reader, self.paths)

    def followed(self) -> Followed | None:
        """Return the last correction of the upstream topology that was checked, or None if none was checked yet."""
        return self.reader.peek_if_any(Followed, self.paths.followed)

    def noted_behind(self) -> dict[int, Behind]:
        """Read the records of transactions that lack corrections, by txid."""
        txids = txids_below(self.store, self.paths.all_behind)
        return records_at(self.reader, Behind, {each: self.paths.behind(each) for each in txids})

    def is_wanted_restated(self, txid: int) -> bool:
        """Return whether a restatement of a committed transaction is requested."""
        return self.reader.peek_if_any(Wish, self.paths.wish(txid)) is not None

    def repairs(self) -> tuple[RepairRecord, ...]:
        """Read the repairs of a topology's ledger, oldest first."""
        numbers = txids_below(self.store, self.paths.repairs)
        found = {number: self.paths.repair(number) for number in numbers}
        return tuple(records_at(self.reader, RepairRecord, found).values())

    def kept_batch(self, txid: int) -> Metadata | None:
        """Read the metadata and the position of a batch. Return None if the ledger no longer keeps them."""
        if self.store.get(self.paths.meta(txid)) is None:
            return None
        try:
            return RotatingTransactionalState(self.reader, self.paths).get_state(txid)
        except UnreadableRecord:
            if self.store.get(self.paths.meta(txid)) is None:
                return None  # Another process has removed the record since.
            raise

    def topology(self) -> TopologyRecord:
        """Read the topology record, which must exist."""
        return self.reader.peek(TopologyRecord, self.paths.record)

    def topology_if_any(self) -> TopologyRecord | None:
        """Read the topology record. Return None if the topology has not begun."""
        return self.reader.peek_if_any(TopologyRecord, self.paths.record)

    def beside(self, topology: str) -> ReadOnlyLedger:
        """Return the ledger of another topology below the same root."""
        return ReadOnlyLedger(self.store, Paths(self.paths.root, topology))

    def is_listed(self) -> bool:
        """Return whether the root lists this topology. The path that is read does not contain the topology's name."""
        children = self.store.children(self.paths.root.rstrip("/") or "/")
        return children is not None and encode_name(self.paths.topology) in children.names

    def existing_topology(self) -> TopologyRecord:
        """Read the topology record.

        :raises UnknownTransaction: there is no such topology.
        """
        record = self.topology_if_any()
        if record is None:
            raise UnknownTransaction(
                what=f"topology {self.paths.topology!r}", path=self.paths.record
            )
        return record

    def open_records(self) -> dict[int, TransactionRecord]:
        """Read the records of all open transactions, by txid."""
        return self.opened(txids_below(self.store, self.paths.transactions))

    def in_lane(self, opened: Mapping[int, TransactionRecord]) -> frozenset[int]:
        """Return the transactions that a running lane is processing. A transaction with an error has left its lane."""
        tries = {
            txid: each.request
            for txid, each in opened.items()
            if of_lane(each.request) and each.error is None
        }
        alive = {
            each
            for each in set(tries.values())
            if self.store.get(self.paths.lane(each)) is not None
        }
        return frozenset(txid for txid, each in tries.items() if each in alive)

    def watch_turn(self) -> AbstractContextManager[Watch]:
        """Watch the turn to commit for a change."""
        return self.store.watch(self.paths.current)

    def watch_line(self, txids: Iterable[int], acks: str) -> AbstractContextManager[Watch]:
        """Watch the turn, the records of transactions, and the acks of one attempt.

        :param acks: name of the folder with the acks, as in the record of the transaction.
        """
        records = map(self.paths.transaction, txids)
        return self.store.watch(self.paths.current, self.paths.acks(acks), *records)

    def announce_owner(self, nonce: str, shown: Mapping[str, Any]) -> AbstractContextManager[None]:
        """While the block runs, keep an ephemeral record of who has the turn, for display only."""
        return self.store.announce(self.paths.owner(nonce), dumps(shown).encode())

    def announce_lane(
        self, task_try: str, shown: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """While the block runs, keep an ephemeral record that a lane is working, for display only."""
        return self.store.announce(self.paths.lane(task_try), dumps(shown).encode())

    def acked(self, record: TransactionRecord) -> frozenset[tuple[str, int]] | None:
        """Return the task instances that have started or acked. Return None if the transaction is final."""
        children = self.store.children(self.paths.acks(record.acks))
        return None if children is None else frozenset(map(ack_element, children.names))

    def has_all_acks(
        self,
        record: TransactionRecord,
        acked: Collection[tuple[str, int]],
        mapped: Collection[str],
    ) -> bool:
        """Return whether every task that must ack has acked.

        :param acked: the result of `acked`.
        :param mapped: the mapped tasks, of which only the mapped instances ack.
        """
        names = [ack_name(*instance) for instance in acked]
        acks = listed_acks(self.store, self.paths.acks(record.acks), names)
        return not processing.missing_acks(acks, processing.must_ack(record, acks, mapped))

    def was_restated(self) -> bool:
        """Return whether a restatement was ever requested."""
        return self.store.children(self.paths.wishes) is not None

    def raised_alarms(self) -> Mapping[str, AlarmNote]:
        """Read the raised alerts and their subjects, by kind."""
        return alarm.raised_alarms(self.reader, self.paths)

    def entries_in_use(self) -> set[str]:
        """Return the names of the journal entries that open or requested restatements replace."""
        return replay.entries_in_use(self.reader, self.paths)

    def held_at(
        self, topology: TopologyRecord, taken_back: Mapping[str, str], sole: Collection[str] = ()
    ) -> str:
        """Return a digest of the facts on which a difference depends; see `replay.held_at`."""
        return replay.held_at(self.reader, self.paths, topology, taken_back, sole)

    def version_of(self, txids: Sequence[int]) -> str:
        """Return the version of these transactions. A preview uses it to detect later changes."""
        return version.version_of(self.reader, self.paths, txids)

    def position(self) -> Any:
        """Read the source's position after the last final transaction. A `Ledger` may return it from memory.

        :raises UnreadableRecord: a record is missing or damaged; the error names it.
        """
        return loss.position_now(self.reader, self.paths)

    def position_before(self, txid: int) -> Any:
        """Read the source's position before a transaction.

        :raises UnreadableRecord: the ledger no longer keeps this position.
        """
        return RotatingTransactionalState(self.reader, self.paths).position_before(txid)

    def next_position(self) -> Any:
        """Read the position at which the next new transaction begins."""
        return loss.next_position(self.reader, self.paths)

    def start_after(self, topology: TopologyRecord, position: Any) -> Any:
        """Return `position`, or the position after the accepted losses that follow it."""
        return loss.start_after(self.reader, self.paths, topology, position).position


class Ledger(ReadOnlyLedger):
    """The ledger of one topology, for one process.

    No method waits. A step returns an answer such as `NotYet`, and the caller decides how to wait. The ledger remembers
    the records that it wrote, so that the next step need not read them. Each multi checks the remembered versions.
    Several threads may run steps on one ledger.

    :param clock: the clock; None uses the machine's time.
    :param ids: the source of random ids; None uses the machine's random numbers.
    :param history: number of final transactions that the history keeps.
    """

    def __init__(
        self,
        store: Store,
        paths: Paths,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        history: int = 1000,
    ) -> None:
        self.store = store
        self.paths = paths
        self.clock = clock or SystemClock()
        self.ids = ids or SystemIds()
        self.history = history
        self._known = KnownRecords()

    # --- steps

    # Each step is a method: `ledger.ack(...)` runs the step, and `ledger.ack.preview(...)` only
    # decides it.

    start = Step(processing.start)
    ack = Step(processing.ack)
    fail = Step(processing.fail)
    fail_messages = Step(processing.fail_messages)
    processed = Step(processing.processed)

    acquire = Step(commit.acquire)
    take_output = Step(commit.take_output)
    note_commit_failed = Step(commit.note_commit_failed)
    accept_checks = Step(commit.accept_checks)
    commit = Step(commit.commit)

    note_skip = Step(end.note_skip)
    withdraw_skip = Step(end.withdraw_skip)
    grant_skip = Step(end.grant_skip)
    commit_skip = Step(end.commit_skip)
    check_skipped = Step(end.check_skipped)
    note_readmission = Step(end.note_readmission)
    find_open = Step(end.find_open)

    note_replay = Step(recovery.note_replay)
    note_person = Step(recovery.note_person)
    note_action = Step(version.note_action)
    unblock = Step(recovery.unblock)
    bid = Step(run_slots.bid)
    note_yield = Step(run_slots.note_yield)
    came_back = Step(run_slots.came_back)
    note_alarm = Step(alarm.note_alarm)
    open_watcher = Step(watcher.open_watcher)
    note_handed_on = Step(watcher.note_handed_on)

    note_changed = Step(replay.note_changed)
    want_restated = Step(replay.want)
    withdraw_wish = Step(replay.withdraw)
    want_correction = Step(correction.want_correction)
    note_behind = Step(correction.note_behind)
    note_compared = Step(correction.note_compared)

    note_origin = Step(loss.note_origin)
    begin_roll_forward = Step(replay.begin_roll_forward_with_wishes)
    end_roll_forward = Step(roll_forward.end_roll_forward)
    back = Step(roll_forward.back)

    def run(
        self,
        step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run one step: decide it, send its multi, and return its answer.

        :raises Refused, UnreadableRecord: raised by the step, after it has read all earlier writes.
        :raises OutcomeUnknown, StoreUnavailable, TooMuchContention: see `Store.multi`.
        """
        name = _name_of(step)
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
        """Decide one step, with all earlier writes visible, but write nothing.

        :raises Refused, UnreadableRecord: raised by the step.
        :raises TooMuchContention: other steps changed the records during every pass.
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
            if not read.still_holds():
                continue
            if isinstance(decided, Decision):
                return decided
            raise decided
        raise TooMuchContention(step=step.__name__, subject=self.paths.topology, times=PASSES)

    def begin(
        self, request: BeginRequest, outside: Outside, *, task: TaskTry | None = None
    ) -> BeginAnswer:
        """Run the step `begin`. It queries the source and Airflow if necessary, and creates the ledger on first use.

        :param task: task that starts in the same multi, if the process that begins the transaction also processes it.
        :raises Refused: the ledger has not changed.
        """
        step = begin if task is None else partial(begin_started, task=task)
        return self.run(step, request, outside, open_first=partial(self.open, request.topology))

    def open(self, request: TopologyRequest) -> None:
        """Create the ledger of this topology, or update the topology record from the DAG.

        :raises TopologyClaimed, SourceKindChanged, SourceShapeChanged: the ledger is not changed.
        """
        self.store.ensure(self.paths.root)
        self.run(open_topology, request)

    def accept_loss(
        self, losses: Sequence[Loss], audit: Audit, *, known: Sequence[int] | None = None
    ) -> answers.Repaired:
        """Record that the loss of these rows is accepted. If the call fails midway, repeat it with the remaining rows.

        :param known: numbers of the repairs that had accepted losses at the preview; None allows any.
        :return: the answer of the last repair.
        :raises LossRefused: nothing is lost.
        :raises PreviewOutdated: other losses were accepted since the preview.
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
        """Delete obsolete records that the last step or a dead process left. A failure is only logged."""
        try:
            record = Reader(self.store, self._known).peek_if_any(
                TopologyRecord, self.paths.record
            )  # This record is usually remembered.
            if record is None or not record.garbage:
                return
            for each in record.garbage:
                remove(self.store, f"{self.paths.base}/{each}")
            self.run(note_removed, record.garbage)
        except StoreError as error:
            log.info(
                "Old records of %s are left to the next transaction: %s", self.paths.topology, error
            )

    @staticmethod
    def joined(
        first: BoundStep[T], then: Callable[[T], BoundStep[U] | None]
    ) -> BoundStep[answers.Joined[T, U]]:
        """Join two steps that share one multi.

        `then` receives the answer of the first step and returns the second step.
        """
        return partial(in_one_multi, first=first, then=then)

    # --- reading

    def past_time(self) -> datetime:
        """Return a time that is certainly in the past, even if this machine's clock is fast."""
        now = self.clock.now()
        node = self.store.get(self.paths.record)
        return min(now, (node and node.modified) or now)

    def incarnation(self) -> str:
        """Return the incarnation of the ledger, possibly from memory."""
        read = Reader(self.store, self._known)
        record = read.peek(TopologyRecord, self.paths.record)
        self._keep(read)
        return record.incarnation

    def pace(self, unit: str = "rows") -> list[list[float]]:
        """Read the number of rows and the processing time in seconds of each recently committed transaction.

        :param unit: unit of the counts, such as files.
        """
        record = Reader(self.store).peek_if_any(TopologyRecord, self.paths.record)
        pace = [] if record is None else record.pace
        return [each[:2] for each in pace if (each[2:] or ["rows"]) == [unit]]

    def position(self) -> Any:
        return self._seen(loss.position_now)

    def deciding_from(self) -> list[Any]:
        """After a sync, read every position from which a new transaction or a replay will decide its rows."""
        self.store.sync()
        self._known.clear()
        return self._seen(loss.deciding_from)

    def holds(self, token: Token) -> bool:
        """Return whether the ledger still holds the grant of `token`.

        If not, a newer committer has outranked this one.
        """
        self.store.sync()
        return end.holds(self.status(token.txid), self.topology(), token)

    def remember(self, look: ReadOnlyLedger) -> None:
        """Remember the records that `look` has read for the next step, whose multi checks their versions."""
        self._keep(look.reader)

    def _keep(self, read: Reader) -> None:
        self._known.nodes.update(
            {path: node for path, node in read.seen.nodes.items() if node is not None}
        )

    @property
    def reader(self) -> Reader:
        return Reader(self.store)

    @property
    def _remembering(self) -> Reader:
        return Reader(self.store, self._known)

    def _seen(self, question: Callable[[Reader, Paths], T]) -> T:
        for _ in range(LOOKS_AT_POSITION):
            try:
                return question(Reader(self.store, self._known), self.paths)
            except UnreadableRecord:
                self._known.clear()  # The turn has moved on, so earlier records may be deleted.
        return question(Reader(self.store), self.paths)

    # --- one pass

    def _run(self, name: str, step: BoundStep[T], answered: Answers) -> T | Unanswered:
        synced = False
        for number in range(PASSES):
            # After a sync, read everything from the store, since remembered records must not decide
            # an answer.
            known = None if synced else self._known
            read = Reader(self.store, known, hasty=number == 0, answers=answered)
            stamp = self._stamp()
            try:
                decided: Decision[T] | Refused | UnreadableRecord = step(read, stamp, self.paths)
            except Unanswered as question:
                # The multi of the next pass checks the records that led to this query.
                self._known.add(read.seen)
                return question
            except (Refused, UnreadableRecord) as error:
                decided = error
            if isinstance(decided, Decision) and decided.writes:
                if self._send(read, decided, stamp, again=number < UNANSWERED):
                    return self._swept(decided.result)
            elif synced and read.still_holds():
                if isinstance(decided, Decision):
                    return self._swept(decided.result)
                raise decided
            else:
                # A step that writes nothing must read all earlier writes and use no remembered
                # record.
                self.store.sync()
                synced = True
            self._known.clear()
        raise TooMuchContention(step=name, subject=self.paths.topology, times=PASSES)

    def _stamp(self) -> Stamp:
        now = self.clock.now().isoformat(timespec="milliseconds")
        return Stamp(now, self.ids.nonce(), self.ids.message_id(), self.history)

    def _send(self, read: Reader, decision: Decision[object], stamp: Stamp, *, again: bool) -> bool:
        created = frozenset(write.path for write in decision.writes if isinstance(write, Create))
        after = self._known.made_by(
            decision.writes, read.seen
        )  # Do this before sending, since other threads may record later versions.
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
                raise unknown from None  # StoreUnavailable would mean that nothing was written.
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
