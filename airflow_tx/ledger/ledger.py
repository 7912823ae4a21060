"""The ledger of one topology: runs the steps on a store, one multi each, and reads it. Source: docs/protocol.md §1."""

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
UNANSWERED = (
    5  # passes; a multi that has no answer even then may be one that the servers do not take
)


@dataclass(frozen=True)
class BoundCall(Generic[T]):
    """A step with its arguments."""

    step: Callable[..., Decision[T]]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __call__(self, read: Reader, stamp: Stamp, paths: Paths) -> Decision[T]:
        """Decide the step."""
        return self.step(read, stamp, paths, *self.args, **self.kwargs)


@dataclass(frozen=True)
class OwnStep(Generic[P, T]):
    """A step of one ledger, which a call runs."""

    ledger: Ledger
    step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the step. Raises as `Ledger.run`."""
        return self.ledger.run(self.step, *args, **kwargs)

    def preview(self, *args: P.args, **kwargs: P.kwargs) -> Decision[T]:
        """Decide the step, and write nothing. Raises as `Ledger.preview`."""
        return self.ledger.preview(self.step, *args, **kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundStep[T]:
        """Give the step with its arguments, for `Ledger.run` or `Ledger.joined`."""
        return BoundCall(self.step, args, kwargs)


def _name_of(step: Any) -> str:
    if isinstance(step, BoundCall):
        step = step.step
    return str(step.func.__name__ if isinstance(step, partial) else step.__name__)


class Step(Generic[P, T]):
    """Make a step a method of the ledger."""

    def __init__(self, step: Callable[Concatenate[Reader, Stamp, Paths, P], Decision[T]]) -> None:
        self._step = step

    def __get__(self, ledger: Ledger, owner: object = None) -> OwnStep[P, T]:
        return OwnStep(ledger, self._step)


class ReadOnlyLedger:
    """Reads the ledger of one topology, for a caller that runs no step.

    Each method reads its record from the store. A `Ledger` remembers records that never change.
    """

    def __init__(self, store: Store, paths: Paths) -> None:
        self.store = store
        self.paths = paths
        self._look = Reader(store)

    @property
    def reader(self) -> Reader:
        """Reads each record from the store."""
        return self._look

    @property
    def _remembering(self) -> Reader:
        """Reads records that never change, which a process may remember."""
        return self._look

    def current(self) -> int:
        """Read the txid whose turn it is to commit.

        :raises UnreadableRecord: the topology has not begun.
        """
        return self.reader.peek(Counter, self.paths.current).txid

    def current_if_any(self) -> int | None:
        """Like `current`; None: the topology has not begun."""
        return self._txid_at(self.paths.current)

    def allocated(self) -> int:
        """Read the last txid that was handed out.

        :raises UnreadableRecord: the topology has not begun.
        """
        return self.reader.peek(Counter, self.paths.allocated).txid

    def allocated_if_any(self) -> int | None:
        """Like `allocated`; None: the topology has not begun."""
        return self._txid_at(self.paths.allocated)

    def _txid_at(self, path: str) -> int | None:
        found = self.reader.peek_if_any(Counter, path)
        return None if found is None else found.txid

    def turn(self, *, with_topology: bool = False) -> TurnReading:
        """Read whose turn it is to commit."""
        current = self.current()
        return TurnReading(
            current=current,
            opened=self.opened([current]),
            topology=self.topology() if with_topology else NO_TOPOLOGY,
        )

    def status(self, txid: int) -> TransactionRecord | None:
        """Read the record of an open transaction; None: it is final, or has not begun."""
        return self.reader.peek_if_any(TransactionRecord, self.paths.transaction(txid))

    def opened(self, txids: Iterable[int]) -> dict[int, TransactionRecord]:
        """Read the records of those transactions that are open."""
        records = {txid: self.paths.transaction(txid) for txid in txids}
        return records_at(self.reader, TransactionRecord, records)

    def outcome(self, txid: int) -> TransactionRecord | None:
        """Read what became of a final transaction; None: that is forgotten."""
        return self._remembering.peek_if_any(TransactionRecord, self.paths.history(txid))

    def skipped(self, txid: int) -> Skipped | None:
        """Read the rows of a transaction that was skipped; None: it was not."""
        return self.reader.peek_if_any(Skipped, self.paths.skipped(txid))

    def all_skipped(self) -> dict[int, Skipped]:
        """Read the rows of every transaction that was skipped, by txid."""
        txids = txids_below(self.store, self.paths.all_skipped)
        return records_at(self.reader, Skipped, {each: self.paths.skipped(each) for each in txids})

    def is_committed(self, txid: int) -> bool:
        """Ask whether a transaction without an open record is committed."""
        return is_committed(self.reader, self.paths, txid)

    def binding(self, key: str) -> Binding | None:
        """Read which transaction a run has; None: it has none.

        :param key: of the run.
        """
        return self.reader.peek_if_any(Binding, self.paths.run(key))

    def bound(self, key: str) -> Binding:
        """Read which transaction a run has, which has one.

        :raises UnreadableRecord: it has none.
        """
        return self.reader.peek(Binding, self.paths.run(key))

    def bound_keys(self) -> frozenset[str]:
        """Name the keys of all runs that have a transaction."""
        return frozenset(map(decode_name, names_below(self.store, self.paths.runs)))

    def wishes(self) -> tuple[Wish, ...]:
        """List what people want restated and no run has begun, by txid."""
        return replay.wishes(self.store, self.paths)

    def restating(self, binding: Binding) -> int | None:
        """Read which open transaction restates the one of a run; None: none does."""
        return replay.restating(self.reader, self.paths, binding)

    def book(self) -> Book:
        """Open the book of ends."""
        return Book(self.reader, self.paths)

    def followed(self) -> Followed | None:
        """Read how far the corrections of the upstream topology were compared; None: they never were."""
        return self.reader.peek_if_any(Followed, self.paths.followed)

    def noted_behind(self) -> dict[int, Behind]:
        """Read which transactions are noted as behind a correction, by txid."""
        txids = txids_below(self.store, self.paths.all_behind)
        return records_at(self.reader, Behind, {each: self.paths.behind(each) for each in txids})

    def is_wanted_restated(self, txid: int) -> bool:
        """Ask whether a person wants a committed transaction restated."""
        return self.reader.peek_if_any(Wish, self.paths.wish(txid)) is not None

    def repairs(self) -> tuple[RepairRecord, ...]:
        """Read what people did to the ledger of a topology, oldest first."""
        numbers = txids_below(self.store, self.paths.repairs)
        found = {number: self.paths.repair(number) for number in numbers}
        return tuple(records_at(self.reader, RepairRecord, found).values())

    def kept_batch(self, txid: int) -> Metadata | None:
        """Read the rows and the position of a batch; None once the ledger does not keep them any more."""
        if self.store.get(self.paths.meta(txid)) is None:
            return None
        try:
            return RotatingTransactionalState(self.reader, self.paths).get_state(txid)
        except UnreadableRecord:
            if self.store.get(self.paths.meta(txid)) is None:
                return None  # it was removed in between
            raise

    def topology(self) -> TopologyRecord:
        """Read what holds for all transactions."""
        return self.reader.peek(TopologyRecord, self.paths.record)

    def topology_if_any(self) -> TopologyRecord | None:
        """Like `topology`; None: the topology has not begun."""
        return self.reader.peek_if_any(TopologyRecord, self.paths.record)

    def beside(self, topology: str) -> ReadOnlyLedger:
        """Give the ledger of another topology below the same root."""
        return ReadOnlyLedger(self.store, Paths(self.paths.root, topology))

    def is_listed(self) -> bool:
        """Ask whether the root lists this topology, without a read that depends on its name."""
        children = self.store.children(self.paths.root.rstrip("/") or "/")
        return children is not None and encode_name(self.paths.topology) in children.names

    def existing_topology(self) -> TopologyRecord:
        """Read what holds for all transactions of a topology.

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
        """Find the transactions that a living lane works on. A transaction with an error has left its lane."""
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
        """Watch whose turn it is to commit."""
        return self.store.watch(self.paths.current)

    def watch_line(self, txids: Iterable[int], acks: str) -> AbstractContextManager[Watch]:
        """Watch the turn, the records of transactions, and the acks of one attempt.

        :param acks: as the record of the transaction has it.
        """
        records = map(self.paths.transaction, txids)
        return self.store.watch(self.paths.current, self.paths.acks(acks), *records)

    def announce_owner(self, nonce: str, shown: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Show who holds the turn, for display alone."""
        return self.store.announce(self.paths.owner(nonce), dumps(shown).encode())

    def announce_lane(
        self, task_try: str, shown: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """Show that a lane works on the transactions that it has begun under this try, for display alone."""
        return self.store.announce(self.paths.lane(task_try), dumps(shown).encode())

    def acked(self, record: TransactionRecord) -> frozenset[tuple[str, int]] | None:
        """Name the task instances that have started or acked; None: the transaction is final by now."""
        children = self.store.children(self.paths.acks(record.acks))
        return None if children is None else frozenset(map(ack_element, children.names))

    def has_all_acks(
        self,
        record: TransactionRecord,
        acked: Collection[tuple[str, int]],
        mapped: Collection[str],
    ) -> bool:
        """Ask whether every task that must ack has.

        :param acked: as `acked` gives it; `mapped`: tasks that ack by their instances only.
        """
        names = [ack_name(*instance) for instance in acked]
        acks = listed_acks(self.store, self.paths.acks(record.acks), names)
        return not processing.missing_acks(acks, processing.must_ack(record, acks, mapped))

    def was_restated(self) -> bool:
        """Ask whether a restatement was ever requested."""
        return self.store.children(self.paths.wishes) is not None

    def raised_alarms(self) -> Mapping[str, AlarmNote]:
        """Read which alarms are raised, and for what."""
        return alarm.raised_alarms(self.reader, self.paths)

    def entries_in_use(self) -> set[str]:
        """Name the journal entries that open restatements take back, or that a person wants taken back."""
        return replay.entries_in_use(self.reader, self.paths)

    def held_at(
        self, topology: TopologyRecord, taken_back: Mapping[str, str], sole: Collection[str] = ()
    ) -> str:
        """Digest what the ledger knows of the values that states hold: see `replay.held_at`."""
        return replay.held_at(self.reader, self.paths, topology, taken_back, sole)

    def version_of(self, txids: Sequence[int]) -> str:
        """Read the version of transactions, on which a preview was decided."""
        return version.version_of(self.reader, self.paths, txids)

    def position(self) -> Any:
        """Read where the source stands after the last final transaction; what was just read is not read again.

        :raises UnreadableRecord: naming the record.
        """
        return loss.position_now(self.reader, self.paths)

    def position_before(self, txid: int) -> Any:
        """Read where the source stood before a transaction.

        :raises UnreadableRecord: the metadata is not kept any more.
        """
        return RotatingTransactionalState(self.reader, self.paths).position_before(txid)

    def next_position(self) -> Any:
        """Read from where the next new transaction is decided."""
        return loss.next_position(self.reader, self.paths)

    def start_after(self, topology: TopologyRecord, position: Any) -> Any:
        """Give the position from which rows are decided, after the losses that a person accepted."""
        return loss.start_after(self.reader, self.paths, topology, position).position


class Ledger(ReadOnlyLedger):
    """The transactions of one topology, as one process sees them.

    Nothing here waits: an answer such as `NotYet` goes back to the caller, who decides how to wait. It remembers the
    records that it wrote itself, so that its next step need not read them again; such a memory is only ever used for a
    multi that checks it. Several threads may run steps on one ledger.

    :param clock: None: the machine's time; `ids`: None: its random numbers.
    :param history: how many final transactions are remembered.
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

    # Each step, as a method: `ledger.ack(...)` runs it, `ledger.ack.preview(...)` only decides.

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
        """Run one step: its result, once its multi is done, or its answer, once it is certain.

        :raises Refused, UnreadableRecord: what the step raises, decided on what everybody has written until now.
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
            if not read.still_holds():
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

    @staticmethod
    def joined(
        first: BoundStep[T], then: Callable[[T], BoundStep[U] | None]
    ) -> BoundStep[answers.Joined[T, U]]:
        """Make one step of two: the second one follows from the answer of the first, in the same multi."""
        return partial(in_one_multi, first=first, then=then)

    # --- reading

    def past_time(self) -> datetime:
        """Read a time that is past by two clocks, of this machine and of the store: one may be wrong."""
        now = self.clock.now()
        node = self.store.get(self.paths.record)
        return min(now, (node and node.modified) or now)

    def incarnation(self) -> str:
        """Name this life of the ledger; what was just read is not read again."""
        read = Reader(self.store, self._known)
        record = read.peek(TopologyRecord, self.paths.record)
        self._keep(read)
        return record.incarnation

    def pace(self, unit: str = "rows") -> list[list[float]]:
        """Read how many rows each of the last committed transactions had, and how many seconds it was in process.

        :param unit: what was counted, if it is not rows.
        """
        record = Reader(self.store).peek_if_any(TopologyRecord, self.paths.record)
        pace = [] if record is None else record.pace
        return [each[:2] for each in pace if (each[2:] or ["rows"]) == [unit]]

    def position(self) -> Any:
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

    def remember(self, look: ReadOnlyLedger) -> None:
        """Keep what a caller has just read, so that the next step need not; its multi checks it."""
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
            elif synced and read.still_holds():
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
