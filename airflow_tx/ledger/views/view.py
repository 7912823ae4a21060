"""The read model for commands and the UI: what the ledger says of topologies and transactions. It writes nothing."""

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
    """One transaction with what only a single one is read for.

    :param batch: its rows and position, while the ledger keeps them. A partitioned source has them by partition. A
        skipped transaction has its rows alone, until it is re-admitted.
    :param acks: per instance of a task what it contributed, while the transaction is open.
    :param partitioned: whether rows and position are by partition.
    :param receipt: as its history keeps it; while the transaction is granted, as far as the receipt is known.
    :param fenced: the states that a grant was about to write, while the transaction is open.
    :param before: where the source stood before its batch, while it is open.
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
        """Count what its tasks read and have kept aside, as `rejected_of`."""
        acks = {
            instance: ack
            for instance, ack in self.acks.items()
            if any(each.get("name", "").startswith(ASIDE) for each in ack.outputs)
        }
        return rejected_of((self.receipt and self.receipt.tasks) or tasks_of(acks))

    @property
    def metadata(self) -> Any:
        """Give the metadata of the batch: a final transaction has it in its receipt."""
        return (self.receipt and self.receipt.metadata) if self.batch is None else self.batch.rows

    @property
    def position(self) -> Any:
        """Give the position after the batch, while the ledger keeps it: a skipped transaction keeps its rows alone."""
        return self.batch.position if self.batch is not None and self.batch.attempt else None


def columns(facts: object, names: Iterable[str], /, **spelled: Any) -> dict[str, Any]:
    """Give the columns of one row, for commands and for the Transactions page alike.

    :param facts: such as a `TransactionView` or a `Receipt`: a column is the fact of the same name, of a view also one
        of its record.
    :param names: of the columns, in the order of the row.
    :param spelled: the columns that are no fact, or that are shown in other words.
    """
    record = facts.document if isinstance(facts, TransactionView) else facts

    def fact(name: str) -> Any:
        return getattr(facts if hasattr(facts, name) else record, name)

    return {name: spelled[name] if name in spelled else fact(name) for name in names}


@dataclass(frozen=True)
class TopologyView:
    """One topology.

    :param transactions: newest first: all open ones, as many final ones as were asked for, and those skipped ones that
        may still be re-admitted.
    :param owner: what the holder of the commit turn says of itself; None: no process holds the turn.
    :param rotating_state: the path of its `RotatingTransactionalState`.
    :param repairs: what people did to the ledger, oldest first.
    :param wishes: what people want restated and no run has begun, by txid.
    :param unreadable: which records cannot be read, and why: a sentence each.
    :param behind: the transactions that are noted as behind corrections of the upstream topology.
    :param ahead: how many transactions of that topology were not taken yet, or why they cannot be; None: that was not
        asked, or is not known.
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
        """Give the open transactions, the one whose turn it is first."""
        return tuple(
            sorted((each for each in self.transactions if each.open), key=lambda each: each.txid)
        )

    @property
    def losses(self) -> tuple[AcceptedLoss, ...]:
        """List what people accepted as lost, in the order of the repairs."""
        found = ((each, repair) for repair in self.repairs for each in repair.losses)
        return tuple(
            AcceptedLoss(
                partition=each.partition or None, description=each.description, **deed(repair)
            )
            for each, repair in found
        )

    @property
    def waiting_runs(self) -> tuple[WaitingRun, ...]:
        """List the runs that gave up their run slots before they had a transaction."""
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
    """Read what a record has within: what is missing there, or of another kind, makes the record unreadable."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnreadableRecord(path=path, reason=f"{type(error).__name__}: {error}") from error


class LedgerView(ReadOnlyLedger):
    """Reads what commands and the Transactions page show of a topology."""

    @cached_property
    def _book(self) -> Book:
        return self.book()

    def view(self, *, recent: int = RECENT) -> TopologyView:
        """Read a topology with its open transactions and the `recent` last final ones.

        Records that become final while it reads appear in their old or their new form, never twice.

        A record that cannot be read is named, and the others are shown.

        :raises UnknownTransaction: there is no such topology.
        :raises UnreadableRecord: naming the record of the topology, or a counter.
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
        # Without a view, the history was rotated in between.
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
        """Read the records below a folder, by number, and note each that cannot be read."""
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
        """List the transactions that are noted as behind corrections, and note each record that cannot be read."""
        notes = self._readable(Behind, self.paths.all_behind, unreadable)
        try:
            return noted_corrections(self, notes)
        except UnreadableRecord as error:
            unreadable.append(unquoted(error))
            return ()

    def alarms(self) -> Mapping[str, AlarmNote]:
        """Read which alarms are raised, each with the time since when. Raises as `view`."""
        record = self.reader.peek_if_any(RaisedAlarms, self.paths.alarms) or RaisedAlarms()
        return record.raised

    def details(self, txid: int) -> TransactionDetails:
        """Read one transaction, open or final.

        :raises UnknownTransaction: there is none of this txid, or its history is forgotten.
        :raises UnreadableRecord: naming the record.
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
        """Name the final transactions that are remembered, in order.

        :param book: the first one of which the book of ends tells; 0: none.
        """
        kept = txids_below(self.store, self.paths.histories)
        if not book:
            return tuple(kept)
        current = self.current()
        oldest = min(kept, default=current)
        newer = {*kept, *range(max(oldest, book), current)}
        return (*range(book, oldest), *sorted(newer))

    def open_txids(self) -> tuple[int, ...]:
        """Name the open transactions, in order."""
        return tuple(txids_below(self.store, self.paths.transactions))

    def final_transaction(self, txid: int) -> TransactionView | None:
        """Read one final transaction, or why it cannot be read; None: it is not remembered."""
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
        """Read a final transaction, None: it is not one, and the metadata of its batch, of an open one as well.

        Of one that cannot be read, the view says why.
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
        """Add to committed transactions who wants them restated, which transaction counts instead, and what they lack.

        Their bindings say that. None is read in a ledger in which no restatement was ever requested.
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
        # A rebuilt ledger binds a run to what it knows: never to what came later.
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
        """Give what is known of a transaction without history; None: nothing is."""
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
            return None  # the owner is for display only
        return owner if isinstance(owner, dict) else None

    def _is_remembered(self, txid: int) -> bool:
        """Ask whether there is a record of a final transaction, without a read that depends on the txid."""
        return txid in txids_below(self.store, self.paths.histories) or txid in txids_below(
            self.store, self.paths.all_skipped
        )

    def _unknown(self, txid: int) -> UnknownTxid:
        return UnknownTxid(txid=txid, topology=self.paths.topology, path=self.paths.history(txid))


def topology_view(store: Store, paths: Paths, *, recent: int = RECENT) -> TopologyView:
    """Read a topology with its open transactions and the `recent` last final ones: see `LedgerView.view`."""
    return LedgerView(store, paths).view(recent=recent)


def transaction_details(store: Store, paths: Paths, txid: int) -> TransactionDetails:
    """Read one transaction, open or final: see `LedgerView.details`."""
    with whole_record(paths.transaction(txid)):
        return LedgerView(store, paths).details(txid)


# --- health -------------------------------------------------------------------------------------------------------
# How a topology is, in one sentence, and what to do about it: for commands and the UI alike.


class HealthCode(str, Enum):
    """How a topology is, in one word: the most urgent first."""

    BLOCKED = "blocked"
    UNREADABLE = "unreadable"
    FAILED = "failed"
    LATE = "late"
    WAITS = "waits"
    FINE = "fine"

    @property
    def urgency(self) -> int:
        """Rank the codes: 0 needs a person first."""
        return list(HealthCode).index(self)


@dataclass(frozen=True, kw_only=True)
class TopologyState:
    """How a topology is, in one sentence.

    :param since: when that began, if it is known.
    :param txid: the transaction that is to be seen to, or that the others wait for. The sentence begins with it, unless
        the code is "late".
    :param rest: the sentence behind the transaction; null: it does not begin with one.
    :param remedy: what a person can do; null: nothing needs to be done.
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
    """Say how a topology is: its first open transaction decides, since all others wait for that one.

    :param alarms: the raised ones, see `raised_alarms`.
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
        nothing = "No transaction is open." if view.allocated else "There was no transaction yet."
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
        sentence=f"{sentence} Nothing commits until that is done.",
        since=moment(noted.when),
        remedy=Remedy.of(
            "If that command has died, repeat it: ",
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
    """Make the health of a topology whose sentence begins with a transaction."""
    return TopologyState(txid=txid, sentence=f"Transaction {txid}{rest}", rest=rest, **fields)


def _failed(view: TopologyView, first: TransactionView) -> TopologyState:
    why = "its predecessor ended elsewhere than its batch starts" if first.stale else first.cause
    what = "must be replayed" if first.stale else "has failed"
    rest = _ended(f" {what}{f': {why}' if why else ''}")
    if first.skip is not None:
        rest += " It is to be skipped."
    return _of_transaction(
        first.txid,
        rest,
        code=HealthCode.FAILED,
        since=first.began,
        remedy=transaction_remedy(view.name, first),
    )


def transaction_remedy(name: str, view: TransactionView) -> Remedy | None:
    """Say what a person can do about an open transaction; None: nothing needs to be done.

    :param name: of its topology, for commands.
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
