"""The views of topologies and transactions for commands and the UI. This module writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

from airflow_tx.base.errors import UnknownTransaction, UnknownTxid, UnreadableRecord
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.api import Paths, Store, names_below, txids_below
from airflow_tx.ledger.attempt import of_lane
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.json_text import Record, replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.reading import LedgerReader, LedgerReading, listed_acks
from airflow_tx.ledger.receipt import ASIDE, Outcome, Receipt, rejected_of
from airflow_tx.ledger.records import (
    Ack,
    AlarmNote,
    Behind,
    Metadata,
    Phase,
    RaisedAlarms,
    RepairRecord,
    RollingNote,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
)
from airflow_tx.ledger.steps.processing import Instance, tasks_of
from airflow_tx.ledger.upstream.corrections import NotedCorrections, noted_corrections
from airflow_tx.ledger.views.status import (
    AcceptedLoss,
    Steps,
    TransactionView,
    WaitingRun,
    Words,
    can_return,
    deed,
    forgotten,
    moment,
    person,
    remembered,
    replay_of,
    unquoted,
    view_final,
    view_open,
    view_unreadable,
)

# --- view ---------------------------------------------------------------------------------------------------------


_R = TypeVar("_R", bound=Record)

RECENT = 50


@dataclass(frozen=True)
class TransactionDetails:
    """One transaction, with facts that are read only for the view of a single transaction.

    :param batch: metadata and position of the batch as long as the ledger keeps them, by partition if the source is
        partitioned. A skipped transaction that can be readmitted has only the metadata.
    :param acks: the ack of each task instance, while the transaction is open.
    :param partitioned: whether metadata and position are by partition.
    :param receipt: the receipt in the history. For an open transaction with a grant, the part already known.
    :param fenced: the states to which a grant was about to write, while the transaction is open.
    :param before: the position of the source before the batch, while the transaction is open.
    """

    transaction: TransactionView
    batch: Metadata | None
    acks: Mapping[Instance, Ack] = field(default_factory=dict)
    partitioned: bool = False
    receipt: Receipt | None = None
    fenced: tuple[str, ...] = ()
    before: Any = None

    @property
    def rejected(self) -> dict[str, tuple[int | None, int]]:
        """The number of rows that each task read and kept aside; see `rejected_of`."""
        acks = {
            instance: ack
            for instance, ack in self.acks.items()
            if any(each.get("name", "").startswith(ASIDE) for each in ack.outputs)
        }
        return rejected_of((self.receipt and self.receipt.tasks) or tasks_of(acks))

    @property
    def metadata(self) -> Any:
        """The metadata of the batch. For a final transaction, it is from the receipt."""
        return (self.receipt and self.receipt.metadata) if self.batch is None else self.batch.rows

    @property
    def position(self) -> Any:
        """The position after the batch, as long as the ledger keeps it. None for a skipped transaction."""
        return self.batch.position if self.batch is not None and self.batch.attempt else None


def columns(facts: object, names: Iterable[str], /, **spelled: Any) -> dict[str, Any]:
    """Return the values of the columns of one row, for commands and for the Transactions page.

    :param facts: an object such as a `TransactionView` or a `Receipt`. The value of a column is the attribute of the
        same name. For a view, it can also be an attribute of its record.
    :param names: the names of the columns, in order.
    :param spelled: the values of columns that have no attribute or differ in form from their attribute.
    """
    record = facts.document if isinstance(facts, TransactionView) else facts

    def fact(name: str) -> Any:
        return getattr(facts if hasattr(facts, name) else record, name)

    return {name: spelled[name] if name in spelled else fact(name) for name in names}


@dataclass(frozen=True)
class TopologyView:
    """One topology, with its transactions.

    :param transactions: all open transactions, the requested number of final ones, and the skipped ones that can still
        be readmitted; newest first.
    :param owner: description of the process that has the turn to commit; None if there is none.
    :param rotating_state: the path of the topology's `RotatingTransactionalState`.
    :param repairs: the repairs of the ledger, oldest first.
    :param wishes: the requested restatements that no run has begun, by txid.
    :param unreadable: a sentence about each record that cannot be read, with the reason.
    :param behind: the transactions that are recorded as behind.
    :param ahead: number of upstream transactions not yet taken, or the reason why they cannot be taken. None if not
        requested or unknown.
    """

    name: str
    record: TopologyRecord
    current: int
    allocated: int
    transactions: tuple[TransactionView, ...]
    rotating_state: str
    owner: Mapping[str, Any] | None = None
    repairs: tuple[RepairRecord, ...] = ()
    wishes: tuple[Wish, ...] = ()
    unreadable: tuple[str, ...] = ()
    behind: tuple[NotedCorrections, ...] = ()
    ahead: int | str | None = None

    @cached_property
    def opened(self) -> tuple[TransactionView, ...]:
        """The open transactions. The transaction that has the turn is first."""
        return tuple(
            sorted((each for each in self.transactions if each.open), key=lambda each: each.txid)
        )

    @property
    def losses(self) -> tuple[AcceptedLoss, ...]:
        """The accepted losses of rows, in the order of the repairs."""
        found = ((each, repair) for repair in self.repairs for each in repair.losses)
        return tuple(
            AcceptedLoss(
                partition=each.partition or None, description=each.description, **deed(repair)
            )
            for each, repair in found
        )

    @property
    def waiting_runs(self) -> tuple[WaitingRun, ...]:
        """The runs that yielded their run slots before they had a transaction."""
        return tuple(
            WaitingRun(
                run_id=run_id,
                waiting_for=f"the run of transaction {entry.blocking}; then it is started again",
                since=datetime.fromisoformat(entry.when),
            )
            for run_id, entry in self.record.yielded.items()
            if entry.txid is None
        )


@contextmanager
def whole_record(path: str) -> Iterator[None]:
    """Convert errors inside the block to UnreadableRecord: a field is missing or has the wrong type."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnreadableRecord(path=path, reason=f"{type(error).__name__}: {error}") from error


class LedgerView(ReadOnlyLedger):
    """Reads the facts about a topology that commands and the Transactions page show."""

    @cached_property
    def _book(self) -> Book:
        return self.book()

    def view(self, *, recent: int = RECENT) -> TopologyView:
        """Read a topology with its open transactions and the last `recent` final ones.

        A transaction that becomes final during the read appears once, as open or as final. Unreadable records are
        reported, and the others are still shown.

        :raises UnknownTransaction: there is no such topology.
        :raises UnreadableRecord: the record of the topology, or a counter, cannot be read.
        """
        ledger = self._reading()
        views = [self._open_view(txid, ledger) for txid in {*ledger.opened, *ledger.unreadable}]
        unreadable = [str(each.document.error) for each in views if each.is_unreadable]
        skipped = self._readable(Skipped, self.paths.all_skipped, unreadable)
        final = [
            each
            for each in self.final_txids(book=ledger.topology.book)
            if each not in ledger.opened
        ]
        wanted = {
            *final[max(len(final) - recent, 0) :],
            *(txid for txid, each in skipped.items() if can_return(each)),
        }
        found = map(self.final_transaction, sorted(wanted - {each.txid for each in views}))
        # There is no view if the ledger forgot the transaction during the read.
        views += [each for each in found if each is not None]
        ordered = tuple(sorted(self.with_restatements(views), key=lambda view: -view.txid))
        return TopologyView(
            name=self.paths.topology,
            record=ledger.topology,
            current=ledger.current,
            allocated=ledger.allocated,
            transactions=ordered,
            rotating_state=self.paths.metas,
            owner=self._owner(ledger),
            repairs=tuple(self._readable(RepairRecord, self.paths.repairs, unreadable).values()),
            wishes=tuple(self._readable(Wish, self.paths.wishes, unreadable).values()),
            behind=self.behind(unreadable),
            unreadable=tuple(unreadable),
        )

    def _open_view(self, txid: int, ledger: LedgerReading) -> TransactionView:
        path = self.paths.transaction(txid)
        try:
            if txid in ledger.unreadable:
                raise ledger.unreadable[txid]
            record = ledger.opened[txid]
            with whole_record(path):
                return view_open(self.paths.topology, txid, ledger, self._acks(record))
        except UnreadableRecord as error:
            return view_unreadable(txid, error, is_open=True)

    def _readable(self, cls: type[_R], folder: str, unreadable: list[str]) -> dict[int, _R]:
        """Read the records below a folder, by number. Add the reason for each unreadable record to `unreadable`."""
        found = {}
        for number in txids_below(self.store, folder):
            path = f"{folder}/{number}"
            try:
                record = self.reader.peek_if_any(cls, path)
            except UnreadableRecord as error:
                unreadable.append(unquoted(error))
            else:
                if record is not None:
                    found[number] = record
        return found

    def behind(self, unreadable: list[str]) -> tuple[NotedCorrections, ...]:
        """Read the transactions that are behind. Add the reason for each unreadable record to `unreadable`."""
        notes = self._readable(Behind, self.paths.all_behind, unreadable)
        try:
            return noted_corrections(self, notes)
        except UnreadableRecord as error:
            unreadable.append(unquoted(error))
            return ()

    def alarms(self) -> Mapping[str, AlarmNote]:
        """Read the raised alerts with the times at which they were raised, by kind. Raises the errors of `view`."""
        record = self.reader.peek_if_any(RaisedAlarms, self.paths.alarms) or RaisedAlarms()
        return record.raised

    def details(self, txid: int) -> TransactionDetails:
        """Read one transaction, open or final.

        :raises UnknownTransaction: there is no such transaction, or the ledger has forgotten it.
        :raises UnreadableRecord: a record cannot be read; the error names it.
        """
        ledger = self._reading(last=txid)
        topology = ledger.topology
        if txid in ledger.unreadable:
            raise ledger.unreadable[txid]
        has_line = 0 < topology.book <= txid < ledger.current
        if txid not in ledger.opened and not has_line and not self._is_remembered(txid):
            raise self._unknown(txid)
        batch = self.kept_batch(txid)
        if txid in ledger.opened:
            record = ledger.opened[txid]
            acks = self._acks(record)
            before = self.kept_batch(txid - 1)
            return TransactionDetails(
                transaction=view_open(self.paths.topology, txid, ledger, acks),
                batch=batch,
                acks=acks,
                partitioned=topology.partitioned,
                receipt=record.receipt,
                fenced=tuple(record.fenced),
                before=topology.origin
                if before is None or before.position is None
                else before.position,
            )
        skipped = self.skipped(txid)
        if skipped is not None and can_return(skipped):
            batch = Metadata(0, skipped.rows, None)
        history = self._history(txid, skipped)
        if history is None:
            raise self._unknown(txid)
        (final,) = self.with_restatements([view_final(history, skipped)])
        return TransactionDetails(
            final, batch, partitioned=topology.partitioned, receipt=history.receipt
        )

    def final_txids(self, *, book: int = 0) -> tuple[int, ...]:
        """Return the final transactions that the history or the book of ends has, in the order of the txids.

        :param book: the first transaction in the book of ends; 0 if the topology keeps no book.
        """
        kept = txids_below(self.store, self.paths.histories)
        if not book:
            return tuple(kept)
        current = self.current()
        oldest = min(kept, default=current)
        newer = {*kept, *range(max(oldest, book), current)}
        return (*range(book, oldest), *sorted(newer))

    def open_txids(self) -> tuple[int, ...]:
        """Return the open transactions, in the order of the txids."""
        return tuple(txids_below(self.store, self.paths.transactions))

    def final_transaction(self, txid: int) -> TransactionView | None:
        """Read the view of a final transaction. Return None if the ledger has forgotten it.

        If the record cannot be read, the view gives the reason.
        """
        path = self.paths.history(txid)
        try:
            with whole_record(path):
                return self._final_view(txid)
        except UnreadableRecord as error:
            node = self.store.get(path)
            return view_unreadable(txid, error, ended=None if node is None else node.modified)

    def _final_view(self, txid: int) -> TransactionView | None:
        history = self.outcome(txid)
        if history is not None and history.final.outcome is Outcome.COMMITTED:
            return view_final(history, None)
        skipped = self.skipped(txid)
        history = history or self._forgotten(txid, skipped)
        return None if history is None else view_final(history, skipped)

    def searched(self, txid: int) -> tuple[TransactionView | None, Any]:
        """For a search, read the view of a transaction and the metadata of its batch.

        The view is None if the transaction is not final. If a record cannot be read, the view gives the reason.
        """
        path = self.paths.history(txid)
        try:
            history = self.outcome(txid)
            if history is None:
                path = self.paths.meta(txid)
                batch = self.kept_batch(txid)
                known = None if batch is not None else self._forgotten(txid, None)
                view = None if known is None else view_final(known, None)
                return view, None if batch is None else batch.rows
            with whole_record(path):
                return view_final(history, None), history.receipt and history.receipt.metadata
        except UnreadableRecord as error:
            return view_unreadable(txid, error), None

    def with_restatements(self, views: Iterable[TransactionView]) -> list[TransactionView]:
        """Add to each committed transaction its requested restatement, its replacement and its missing corrections.

        Bindings are read only if a restatement was ever requested in this ledger.
        """
        behind = {each.txid: str(each) for each in self.behind([])}
        found = [
            replace(view, behind=behind[view.txid]) if view.txid in behind else view
            for view in views
        ]
        if not self.was_restated():
            return found
        return [
            self._with_restatement(view) if view.status == Outcome.COMMITTED.value else view
            for view in found
        ]

    def _with_restatement(self, view: TransactionView) -> TransactionView:
        try:
            key = view.document.key
            binding = self.binding(key) if key else None
            wish = self.reader.peek_if_any(Wish, self.paths.wish(view.txid))
        except UnreadableRecord as error:
            return replace(view, document=replace(view.document, error=unquoted(error)))
        if wish is not None:
            view = replace(view, wish=person(wish))
        # A rebuilt ledger may bind the run to an earlier transaction.
        if binding is None or binding.txid <= view.txid:
            return view
        return replace(view, restated_by=binding.txid)

    def _reading(self, *, last: int | None = None) -> LedgerReading:
        found = LedgerReader(self.store, self.paths).settled(last=last, shown=True)
        if not found.exists:
            raise UnknownTransaction(
                what=f"topology {self.paths.topology!r}", path=self.paths.record
            )
        return found

    def _history(self, txid: int, skipped: Skipped | None) -> TransactionRecord | None:
        return self.outcome(txid) or self._forgotten(txid, skipped)

    def _forgotten(self, txid: int, skipped: Skipped | None) -> TransactionRecord | None:
        """Return the known facts about a transaction that the history has forgotten. Return None if there are none."""
        if skipped is not None:
            return forgotten(txid, skipped)
        line = self._book.line(txid)
        return None if line is None else remembered(line)

    def _acks(self, record: TransactionRecord) -> dict[tuple[str, int], Ack]:
        folder = self.paths.acks(record.acks)
        return listed_acks(self.store, folder, names_below(self.store, folder))

    def _owner(self, ledger: LedgerReading) -> Mapping[str, Any] | None:
        first = ledger.opened.get(ledger.current)
        if first is None or not first.nonce:
            return None
        node = self.store.get(
            self.paths.lane(first.request)
            if of_lane(first.request)
            else self.paths.owner(first.nonce)
        )
        try:
            owner = None if node is None else json.loads(node.data)
        except ValueError:
            return None  # invalid data does not matter, since the owner is only displayed
        return owner if isinstance(owner, dict) else None

    def _is_remembered(self, txid: int) -> bool:
        """Return whether the ledger has a record of a final transaction. The txid never becomes part of a path."""
        return txid in txids_below(self.store, self.paths.histories) or txid in txids_below(
            self.store, self.paths.all_skipped
        )

    def _unknown(self, txid: int) -> UnknownTxid:
        return UnknownTxid(txid=txid, topology=self.paths.topology, path=self.paths.history(txid))


def topology_view(store: Store, paths: Paths, *, recent: int = RECENT) -> TopologyView:
    """Read a topology with its open transactions and the last `recent` final ones; see `LedgerView.view`."""
    return LedgerView(store, paths).view(recent=recent)


def transaction_details(store: Store, paths: Paths, txid: int) -> TransactionDetails:
    """Read one transaction, open or final; see `LedgerView.details`."""
    with whole_record(paths.transaction(txid)):
        return LedgerView(store, paths).details(txid)


# --- health -------------------------------------------------------------------------------------------------------
# The state of a topology as one sentence with a remedy, for commands and the UI.


class HealthCode(str, Enum):
    """The state of a topology as one word. The codes are ordered, with the most urgent one first."""

    BLOCKED = "blocked"
    UNREADABLE = "unreadable"
    FAILED = "failed"
    LATE = "late"
    WAITS = "waits"
    FINE = "fine"

    @property
    def urgency(self) -> int:
        """The rank of the code. 0 is the most urgent."""
        return list(HealthCode).index(self)


@dataclass(frozen=True, kw_only=True)
class TopologyState:
    """The state of a topology in one sentence.

    :param since: time at which this state began; None if unknown.
    :param txid: the transaction that needs attention or that the others wait for. The sentence begins with it, unless
        the code is "late".
    :param rest: the part of the sentence after the transaction; null if the sentence does not begin with one.
    :param remedy: the action for the user; null if no action is needed.
    """

    code: HealthCode
    since: datetime | None = None
    txid: int | None = None
    sentence: Words
    rest: Words | None = None
    remedy: Steps | None = None

    def __str__(self) -> str:
        return Remedy.behind(self.sentence, self.remedy)


def topology_health(
    view: TopologyView, alarms: Mapping[str, AlarmNote] | None = None
) -> TopologyState:
    """Return the state of a topology: the state of its first open transaction, for which all others wait.

    :param alarms: the raised alerts, see `raised_alarms`.
    """
    health = _by_transactions(view)
    late = (alarms or {}).get("late")
    if late is None or health.code.urgency < HealthCode.LATE.urgency:
        return health
    return replace(
        health,
        code=HealthCode.LATE,
        sentence=f"It is late. {health.sentence}",
        rest=None,
        since=moment(late.when),
    )


def _by_transactions(view: TopologyView) -> TopologyState:
    if view.unreadable:
        return TopologyState(code=HealthCode.UNREADABLE, sentence=" ".join(view.unreadable[:3]))
    if view.record.rolling is not None:
        return _rolling(view, view.record.rolling)
    opened = view.opened
    blocked = next((each for each in opened if each.blocked), None)
    if blocked is not None:
        return _blocked(view, blocked)
    if not opened:
        nothing = (
            "No transaction is open." if view.allocated else "There has been no transaction yet."
        )
        return TopologyState(code=HealthCode.FINE, sentence=nothing)
    first = opened[0]
    if first.failed or first.stale:
        return _failed(view, first)
    return _under_way(view, first, opened)


def _rolling(view: TopologyView, noted: RollingNote) -> TopologyState:
    states = sorted(noted.found)
    sentence = f"State {' '.join(states)} is being written again from the journal."
    return TopologyState(
        code=HealthCode.WAITS,
        sentence=f"{sentence} No transaction commits until that is done.",
        since=moment(noted.when),
        remedy=Remedy.of(
            "If the roll forward has died, repeat it: ",
            Command.of("repair", view.name, "--roll-forward", *states),
            ". Then: ",
            Command.of("replay", view.name, "--failed"),
        ),
    )


def _blocked(view: TopologyView, blocked: TransactionView) -> TopologyState:
    mark = view.record.blocked
    return _of_transaction(
        blocked.txid,
        f" is replayed no more: {_ended(str(blocked.blocked))} Nothing commits after it.",
        code=HealthCode.BLOCKED,
        since=None if mark is None else moment(mark.when),
        remedy=blocked.to_do,
    )


def _of_transaction(txid: int, rest: str, **fields: Any) -> TopologyState:
    """Return the state of a topology, as a sentence that begins with a transaction."""
    return TopologyState(txid=txid, sentence=f"Transaction {txid}{rest}", rest=rest, **fields)


def _failed(view: TopologyView, first: TransactionView) -> TopologyState:
    why = "its batch does not start where its predecessor ended" if first.stale else first.cause
    what = "must be replayed" if first.stale else "has failed"
    rest = _ended(f" {what}{f': {why}' if why else ''}")
    if first.skip is not None:
        rest += " It will be skipped."
    return _of_transaction(
        first.txid,
        rest,
        code=HealthCode.FAILED,
        since=first.began,
        remedy=transaction_remedy(view.name, first),
    )


def transaction_remedy(name: str, view: TransactionView) -> Remedy | None:
    """Return the action that a user can take for an open transaction. Return None if no action is needed.

    :param name: name of the topology, for commands.
    """
    if view.blocked:
        return view.to_do
    if not view.failed and not view.stale:
        return None
    return view.to_do or view.document.remedy or replay_of(name, view.txid)


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _under_way(
    view: TopologyView, first: TransactionView, opened: Sequence[TransactionView]
) -> TopologyState:
    behind = len(opened) - 1
    waiting = "" if not behind else f"; {behind} {'waits' if behind == 1 else 'wait'} behind it"
    if first.status == Phase.COMMITTING.value:
        rest = f" is being committed{waiting}."
        return _of_transaction(first.txid, rest, code=HealthCode.FINE, since=first.granted)
    processed = [each for each in opened[1:] if each.status == Phase.PROCESSED.value]
    code = HealthCode.WAITS if processed else HealthCode.FINE
    since = processed[0].processed if processed else first.processed or first.began
    rest = f" waits for {first.waiting_for}{waiting}."
    return _of_transaction(first.txid, rest, code=code, since=since)
