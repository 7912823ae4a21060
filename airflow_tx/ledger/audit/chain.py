"""Check the chain of receipts for gaps and for positions that do not match. Source: docs/protocol.md §10.

A contradiction is a finding. Other facts are notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from airflow_tx.base.errors import (
    TooMuchContention,
    UnreadableRecord,
)
from airflow_tx.ledger.api import Paths, Store, decode_name, names_below, txids_below
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.book import Book, chained, end_line
from airflow_tx.ledger.json_text import as_plain, digest_of, dumps, is_shortened, replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.life import (
    LEDGER_LOST,
    ForgottenName,
    Life,
    all_taken_back,
    name_now,
    since_reset,
    taken_back,
)
from airflow_tx.ledger.reading import (
    Reader,
    RotatingTransactionalState,
    records_at,
    repairs_of,
)
from airflow_tx.ledger.receipt import Deed, FenceBatch, Outcome, Receipt
from airflow_tx.ledger.records import (
    Binding,
    Counter,
    EndLine,
    Metadata,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
)

# --- evidence -----------------------------------------------------------------------------------------------------
# The parts of the ledger and of the states that `airflow tx verify` compares. Nothing is written.


LOOKS = 50
"""Maximum number of reads of the frequently changing records until none changes during a read."""


class HeldFence(Protocol):
    """The fence of a state."""

    @property
    def incarnation(self) -> str: ...
    @property
    def token(self) -> Token: ...
    @property
    def applied(self) -> bool: ...
    @property
    def batch(self) -> str: ...
    @property
    def kept(self) -> FenceBatch | None: ...
    @property
    def change(self) -> int: ...
    @property
    def covered(self) -> HeldFence | None: ...


class HeldReceipt(Protocol):
    """A receipt in the store of a state."""

    @property
    def txid(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def hash(self) -> str: ...


@dataclass(frozen=True)
class StateEvidence:
    """The evidence from a state.

    :param fence: the fence of the state; None if it has none.
    :param receipts: the receipts of the state; None if it keeps none.
    :param receipts_kept: the minimum number of receipts that the state keeps; None means all.
    :param totals: total of each summed value column over all keys; None if the values were not read.
    :param rows: number of rows of each transaction in the state; None if they were not counted.
    """

    name: str
    fence: HeldFence | None
    receipts: Sequence[HeldReceipt] | None
    receipts_kept: int | None = None
    totals: Mapping[str, int] | None = None
    rows: Mapping[int | None, int] | None = None


@dataclass(frozen=True)
class Decisive:
    """The records that decide the batches and the turns of later transactions.

    :param allocated: the last txid. It is from the same moment as `opened`, `metas` and `LedgerEvidence.current`.
    :param opened: the records of open transactions, by txid.
    :param metas: rows and positions of open transactions and of the last final transaction.
    :param skipped: the skip records, by txid.
    :param bindings: txid in the binding of each run, by run key.
    :param entries: journal entry in the binding of each run, by run key.
    :param latest: the last txid after all other records were read.
    :param wanted: the transactions whose restatement is requested.
    """

    allocated: int
    opened: Mapping[int, TransactionRecord]
    metas: Mapping[int, Metadata]
    skipped: Mapping[int, Skipped] = field(default_factory=dict)
    bindings: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    latest: int = 0
    wanted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LedgerEvidence:
    """The evidence from the ledger.

    :param current: the transaction that has the turn. Earlier transactions are final.
    :param histories: the history records, by txid.
    :param unreadable: reason why a history record cannot be read, by txid.
    :param position: the position of the source after the last final transaction; None before the first one.
    :param repairs: the repairs, oldest first.
    :param latest: the transaction that had the turn after the states were read.
    :param decisive: the records that decide later transactions; None if they changed during every read.
    :param book: the lines of the book of ends, by txid; empty if the topology keeps no book.
    """

    name: str
    topology: TopologyRecord
    current: int
    histories: Mapping[int, TransactionRecord]
    position: Any
    repairs: Sequence[RepairRecord]
    latest: int = 0
    decisive: Decisive | None = None
    unreadable: Mapping[int, UnreadableRecord] = field(default_factory=dict)
    book: Mapping[int, EndLine] = field(default_factory=dict)

    @property
    def life(self) -> Sequence[RepairRecord]:
        """The repairs since the last reset of the ledger. Earlier repairs do not affect the current ledger."""
        return since_reset(self.repairs)

    @property
    def taken_back(self) -> set[int]:
        """The transactions that repairs have taken back since the last reset of the ledger."""
        return all_taken_back(self.life)

    @property
    def oldest(self) -> int:
        """The oldest transaction in the history, or the current transaction if the history is empty."""
        return min({*self.histories, *self.unreadable}, default=self.current)


def ledger_evidence(
    store: Store, paths: Paths, *, partly: bool = False, receipts_alone: bool = False
) -> LedgerEvidence:
    """Read a ledger while transactions may commit. Transactions that become final during the read are left out.

    :param partly: whether to continue if a record in the history cannot be read.
    :param receipts_alone: whether to read only the records that receipts need, which saves many ZooKeeper requests.
    :raises UnknownTransaction: there is no such topology.
    :raises UnreadableRecord: a record cannot be read; the error names it.
    """
    ReadOnlyLedger(store, paths).existing_topology()
    found = _at_one_moment(store, paths)

    read = Reader(store)
    histories = dict[int, TransactionRecord]()
    unreadable = dict[int, UnreadableRecord]()
    for txid in txids_below(store, paths.histories):
        try:
            histories |= records_at(read, TransactionRecord, {txid: paths.history(txid)})
        except UnreadableRecord as error:
            if not partly:
                raise
            unreadable[txid] = error
    if receipts_alone:
        final = {txid: each for txid, each in histories.items() if txid < found.current}
        return replace(found, histories=final, unreadable=unreadable)
    skipped = ReadOnlyLedger(store, paths).all_skipped()
    runs = {decode_name(name): f"{paths.runs}/{name}" for name in names_below(store, paths.runs)}
    bindings = records_at(read, Binding, runs)

    final_since = range(found.current, read.get(Counter, paths.current).txid)
    allocated = read.get(Counter, paths.allocated).txid
    decisive = found.decisive
    if decisive is not None:
        decisive = replace(
            decisive,
            skipped=skipped,
            bindings={key: binding.txid for key, binding in bindings.items()},
            entries={key: binding.entry for key, binding in bindings.items() if binding.entry},
            latest=allocated,
            wanted=frozenset(map(int, Reader(store).names_if_any(paths.wishes))),
        )
    histories = {txid: each for txid, each in histories.items() if txid not in final_since}
    book = Book(read, paths).lines(found.topology.book, found.current - 1)
    return replace(found, histories=histories, decisive=decisive, unreadable=unreadable, book=book)


def _at_one_moment(store: Store, paths: Paths) -> LedgerEvidence:
    """Read the records that change with every step. Repeat this until no record changes during the read.

    :raises UnreadableRecord: a record cannot be read; the error names it.
    """
    for number in range(LOOKS):
        store.sync()
        read = Reader(store)
        try:
            found = _moment(read, paths)
        except UnreadableRecord:
            if read.still_holds():
                raise
            continue
        if read.still_holds():
            return found
        if number == LOOKS - 1:
            return replace(found, decisive=None)
    raise TooMuchContention(step="verify", subject=paths.topology, times=LOOKS)


def _moment(read: Reader, paths: Paths) -> LedgerEvidence:
    """Read a consistent set of records. The open transactions are read from their folder, not from the counters."""
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current).txid
    allocated = read.get(Counter, paths.allocated).txid
    state = RotatingTransactionalState(read, paths)
    position = state.position_before(current)
    txids = [int(name) for name in read.names(paths.transactions)]
    opened = {txid: read.get(TransactionRecord, paths.transaction(txid)) for txid in txids}
    kept = {int(name) for name in read.names(paths.metas)}
    metas = {txid: state.get_state(txid) for txid in sorted({*opened, current - 1} & kept)}
    return LedgerEvidence(
        name=paths.topology,
        topology=topology,
        current=current,
        histories={},
        position=position,
        repairs=repairs_of(read, paths),
        decisive=Decisive(allocated, opened, metas),
    )


# --- expected -----------------------------------------------------------------------------------------------------
# The ledger that follows from receipts, repairs and open transactions. This code shares nothing
# with the steps that it checks.


@dataclass(frozen=True)
class Expected:
    """The content of a ledger that follows from its receipts, repairs and open transactions.

    :param generation: generation of the topology record, unless a roll forward is in progress.
    :param skips: the open transactions that will be skipped, in order.
    :param states: the last transaction that was written to each state, by the current name of the state.
    :param bindings: the transaction that counts and the name of its journal entry, by run key.
    :param skipped: skip records, by txid. For a long batch, a skip record has only the digest of the rows.
    :param lines: lines of the book of ends, by txid, without the upstream range of the batch.
    """

    generation: int
    skips: list[int]
    states: Mapping[str, int]
    bindings: Mapping[str, Binding]
    skipped: Mapping[int, Skipped]
    lines: Mapping[int, EndLine]


def expected(
    receipts: Mapping[int, Receipt],
    repairs: Sequence[RepairRecord],
    opened: Mapping[int, TransactionRecord],
) -> Expected:
    """Return the expected content of a ledger. `verify` compares it with the ledger, and a rebuild writes it.

    :param receipts: receipts of final transactions, by txid.
    :param repairs: all repairs, oldest first.
    :param opened: the records of open transactions, by txid.
    """
    bindings = dict[str, Binding]()
    skipped = dict[int, Skipped]()
    known: dict[int, Receipt | TransactionRecord] = {**receipts, **opened}
    for txid, each in sorted(known.items()):
        before = bindings.get(each.key)
        bindings[each.key] = _bound_after(txid, each)
        if before is not None and before.txid in skipped:
            # A later transaction of the same run is the readmission of a skipped transaction.
            kept = skipped[before.txid]
            skipped[before.txid] = replace(kept, rows=None, readmitted_as=txid)
        if isinstance(each, Receipt) and each.skip is not None:
            kept = Skipped(each.key, each.run_id, each.metadata, each.skip, op="")
            if each.replaces is not None:
                # The restated transaction counts, so the rows of the skipped restatement cannot
                # come back.
                kept = replace(kept, rows=None, replaces=each.replaces.txid)
            skipped[txid] = kept
    return Expected(
        generation=repairs[-1].generation if repairs else 1,
        skips=sorted(txid for txid, record in opened.items() if record.skip is not None),
        states={
            now: txid
            for txid, receipt in sorted(receipts.items())
            for name in receipt.written
            if not isinstance(now := name_now(repairs, name, txid), ForgottenName)
        },
        bindings=bindings,
        skipped=skipped,
        lines=chained(end_line(each) for _, each in sorted(receipts.items())),
    )


def _bound_after(txid: int, each: Receipt | TransactionRecord) -> Binding:
    """Return the binding of the run after a transaction. A restatement counts only once it is committed."""
    if each.replaces is None or _is_committed(each):
        return Binding(txid, each.journal or "")
    return Binding(each.replaces.txid, each.replaces.entry)


def _is_committed(each: Receipt | TransactionRecord) -> bool:
    return isinstance(each, Receipt) and each.outcome == Outcome.COMMITTED.value


# --- chain --------------------------------------------------------------------------------------------------------


_SHOWN = 80


class Chain:
    """The receipts of a topology. Each comparison appends to `findings` and `notes`."""

    def __init__(
        self, ledger: LedgerEvidence, states: Sequence[StateEvidence], first: int, last: int
    ) -> None:
        self.ledger = ledger
        self.states = states
        self.first = first
        self.last = last
        self.findings: list[str] = []
        self.notes: list[str] = []
        self.receipts: dict[int, Receipt] = {}
        """The receipts of the ledger. Receipts that the ledger has forgotten or lost come from the states."""
        self.pieced: set[int] = set()
        """The transactions whose receipts were merged from the states' receipts."""
        self.held: dict[str, dict[int, Receipt]] = {}
        self.changed: set[tuple[str, int]] = set()
        """The state ("" for the ledger) and the txid of each changed receipt.

        Other comparisons leave these receipts out.
        """
        self._lives: dict[str, Life] = {}
        self.begins: int | None = None
        """The first transaction of the chain without a gap, or None if there is no receipt."""
        self._read_ledger()
        self._read_states()

    def find(self, txid: int, text: str) -> None:
        """Add a finding about a transaction, if the transaction is among the compared ones."""
        if self.first <= txid <= self.last:
            self.findings.append(f"transaction {txid}: {text}")

    def life(self, state: str) -> Life:
        """Return the life of a state."""
        if state not in self._lives:
            self._lives[state] = Life.of(
                state,
                self.ledger.topology,
                self.ledger.repairs,
                self.receipts,
                self.held.get(state, {}),
            )
        return self._lives[state]

    @cached_property
    def expected(self) -> Expected:
        """The ledger content that its receipts imply."""
        now = self.ledger.decisive
        return expected(self.receipts, self.ledger.repairs, {} if now is None else now.opened)

    # --- reading

    def _read_ledger(self) -> None:
        """Read each receipt of the ledger. Compare it with its hash and with the record of its transaction."""
        ledger = self.ledger
        for txid, error in ledger.unreadable.items():
            self.find(txid, f"its record cannot be read: {_why(error)}")
            self.changed.add(("", txid))
        for txid, history in ledger.histories.items():
            if txid >= ledger.current:
                self.findings.append(
                    f"transaction {txid}: it is final, but transaction {ledger.current} has the turn"
                )
            kept = history.receipt
            receipt = self._read("", txid, kept, None if kept is None else kept.stored_hash)
            if receipt is not None:
                self.receipts[txid] = receipt
                self._compare(txid, history, receipt)

    def _read_states(self) -> None:
        """Read the receipts of the states. They replace receipts that the ledger has forgotten or lost."""
        for state in self.states:
            found = self.held[state.name] = {}
            for each in state.receipts or ():
                receipt = self._held(state, each)
                if receipt is not None:
                    found[each.txid] = receipt
        known = self.ledger.histories
        before = max(self.ledger.oldest, self.ledger.topology.rebuilt + 1)
        self.pieced = {
            txid
            for found in self.held.values()
            for txid in found
            if txid < before and txid not in known
        }
        for txid in self.pieced:
            of_states = {name: found[txid] for name, found in self.held.items() if txid in found}
            claims = {replace(each, written={}).text for each in of_states.values()}
            if len(claims) > 1:
                self.find(
                    txid, f"the receipts of {' and '.join(sorted(of_states))} contradict each other"
                )
                continue
            written = {
                name: part for each in of_states.values() for name, part in each.written.items()
            }
            self.receipts[txid] = replace(next(iter(of_states.values())), written=written)

    def _read(self, state: str, txid: int, value: Any, noted: Any) -> Receipt | None:
        """Return a receipt of a state, or of the ledger if `state` is "". Return None if the receipt was changed."""
        what = f"its receipt in state {state}" if state else "its receipt"
        try:
            receipt = value if isinstance(value, Receipt) else Receipt.from_json(value)
            if receipt.hash == noted:
                return receipt
            problem = f"was changed: its hash is {receipt.hash[:16]}, but the hash stored with it is {str(noted)[:16]}"
        except UnreadableRecord as error:
            problem = f"was changed: {_why(error)}"
        self.find(txid, f"{what} {problem}")
        self.changed.add((state, txid))
        return None

    def _held(self, state: StateEvidence, each: HeldReceipt) -> Receipt | None:
        try:
            value = json.loads(each.text)
        except ValueError:
            value = each.text
        receipt = self._read(state.name, each.txid, value, each.hash)
        if receipt is None or receipt.incarnation != self.ledger.topology.incarnation:
            return None  # The receipt is from before a reset of the ledger.
        if (each.txid, each.attempt) != (receipt.txid, receipt.attempt):
            said = f"it is of {receipt.txid}.{receipt.attempt}, but it is stored as {each.txid}.{each.attempt}"
            self.find(each.txid, f"its receipt in state {state.name} was changed: {said}")
        return receipt

    def _compare(self, txid: int, history: TransactionRecord, receipt: Receipt) -> None:
        skipped = history.final.outcome is not Outcome.COMMITTED
        pairs = {
            "txid": (history.txid, receipt.txid),
            "attempt": (history.attempt, receipt.attempt),
            "run": (history.run_id, receipt.run_id),
            "birth": (history.birth, receipt.birth),
            "outcome": ("SKIPPED" if skipped else "COMMITTED", receipt.outcome),
            "digest": (history.digest, receipt.digest),
            "lost rows": (history.lost, receipt.lost),
            "changed rows": (history.changed, receipt.changed),
            "skip": (history.skip, receipt.skip if skipped else None),
            "size": (history.size or {}, receipt.size or {}),
            "restates": (history.restates, receipt.replaces and receipt.replaces.txid),
            "incarnation": (self.ledger.topology.incarnation, receipt.incarnation),
        }
        for name, (said, kept) in pairs.items():
            if said != kept:
                self.find(
                    txid, f"the ledger says {name} {in_short(said)}, its receipt {in_short(kept)}"
                )

    # --- comparing

    def follow(self) -> None:
        """Compare each receipt with the hash in the next receipt, and report gaps in the chain."""
        ledger = self.ledger
        last = self.last
        before: Receipt | None = None
        for txid in range(min(self.receipts, default=1), last + 1):
            receipt = self.receipts.get(txid)
            if receipt is None:
                if ("", txid) in self.changed:
                    before = None  # The hash of this receipt is unknown.
                self._missing(txid)
                continue
            if self.begins is None:
                self.begins = txid
            elif before is not None and receipt.previous != before.hash:
                self._broken(before, receipt)
            before = receipt
        if (
            before is not None
            and last == ledger.current - 1
            and ledger.topology.receipt != before.hash
        ):
            if not self._rebuilt(before, ledger.topology.generation):
                named = ledger.topology.receipt[:16] or "none"
                self.findings.append(
                    f"ledger: the last receipt is of transaction {before.txid} ({before.hash[:16]}), and the "
                    f"topology record names {named}"
                )

    def _missing(self, txid: int) -> None:
        if txid in self.ledger.histories or txid in self.ledger.unreadable:
            return  # A changed receipt is already a finding.
        if any(txid in taken_back(each) for each in self.ledger.life):
            self.notes.append(
                f"transaction {txid}: it was taken back; its rows are in no transaction, or in a later one"
            )
        elif txid <= self.ledger.topology.rebuilt:
            self.notes.append(
                f"transaction {txid}: the ledger was rebuilt after it and has no record of it"
            )
        else:
            self.find(txid, "it is final, but its record in the history is missing")

    def _broken(self, before: Receipt, receipt: Receipt) -> None:
        if not receipt.previous and self._rebuilt(before, receipt.generation):
            self.begins = receipt.txid
        elif not receipt.previous and self._rebuilt_and_lost(before, receipt.generation):
            self.begins = receipt.txid
            why = "the ledger was rebuilt and then lost again; the record of who rebuilt it, and why, is lost"
            self.notes.append(f"transaction {receipt.txid}: before it, {why}")
        elif before.txid in self.pieced and not all(
            before.txid in self.held.get(name, {}) for name in receipt.written
        ):
            self.begins = receipt.txid
            self.notes.append(
                f"transaction {before.txid}: a part of its receipt is missing, so it cannot be compared"
            )
        else:
            said = f"the receipt of transaction {before.txid} is {before.hash[:16]}"
            self.find(
                receipt.txid, f"it follows receipt {receipt.previous[:16] or 'none'}, and {said}"
            )

    def _rebuilt(self, before: Receipt, generation: int) -> bool:
        return any(
            each.what == LEDGER_LOST and before.generation < each.generation <= generation
            for each in self.ledger.life
        )

    def _rebuilt_and_lost(self, before: Receipt, generation: int) -> bool:
        """Return whether the repair record of a rebuild may be missing, since the ledger was lost again later."""
        later = any(
            each.what == LEDGER_LOST and each.generation > generation for each in self.ledger.life
        )
        return later and before.generation < generation

    def positions(self) -> None:
        """Compare the start of each transaction with the end of the previous one."""
        for txid in range(max(self.first, 1), self.last + 1):
            receipt = self.receipts.get(txid)
            before = self.receipts.get(txid - 1)
            if receipt is None or (before is None and txid > 1):
                continue
            ended = None if before is None else before.after
            whose = f"transaction {txid - 1} ended at" if txid > 1 else "the source begins at"
            for where, one, two in self.apart(ended, receipt.before):
                self.findings.append(
                    f"transaction {txid}: {where}it begins at {in_short(two)}, and {whose} {in_short(one)}"
                )

    def apart(self, one: Any, two: Any) -> Iterator[tuple[str, Any, Any]]:
        """Yield the differences of two positions, one for each partition if neither position is shortened."""
        if digest_of(one) == digest_of(two):
            return
        whole = not (is_shortened(one) or is_shortened(two))
        if not (
            whole
            and self.ledger.topology.partitioned
            and isinstance(one or {}, dict)
            and isinstance(two, dict)
        ):
            yield "", one, two
            return
        for name in sorted({*(one or {}), *two}):
            if (one or {}).get(name) != two.get(name):
                yield f"partition {name}: ", (one or {}).get(name), two.get(name)

    # --- telling

    def tell(self) -> None:
        """Add notes about skips, losses, changed rows and repairs, which the reader of the report must know."""
        generation = None
        lost = [
            txid
            for txid in sorted(self.pieced)
            if max(self.first, self.ledger.oldest) < txid <= self.last
        ]
        if lost:
            why = f"transactions {lost[0]} to {lost[-1]}: the ledger has lost them"
            self.notes.append(f"{why}; the receipts of the states alone vouch for them")
        for txid in sorted(self.receipts):
            receipt = self.receipts[txid]
            before = generation
            generation = receipt.generation
            if not self.first <= txid <= self.last:
                continue
            where = f"transaction {txid}:"
            self.notes += [f"{where} before it, accepted as lost: {what}" for what in receipt.lost]
            self.notes += [
                f"{where} its rows were decided again: {_person(each)}" for each in receipt.changed
            ]
            if receipt.outcome == Outcome.SKIPPED.value and receipt.skip is not None:
                history = self.ledger.histories.get(txid)
                again = history.final.readmitted_as if history is not None else None
                after = f"; its rows are in transaction {again}" if again is not None else ""
                if receipt.replaces is not None:
                    after = f"; transaction {receipt.replaces.txid}, which it restated, counts"
                self.notes.append(f"{where} skipped: {_person(receipt.skip)}{after}")
            elif receipt.replaces is not None:
                by = f": {_person(receipt.wish)}" if receipt.wish is not None else ""
                self.notes.append(f"{where} it restates {receipt.replaces.txid}{by}")
                self.notes += [
                    f"{where} it left out state {name}, whose values a person had accepted"
                    for name, each in sorted(receipt.written.items())
                    if each.left
                ]
            for repair in self.ledger.life:
                if before is not None and before < repair.generation <= receipt.generation:
                    self.notes.append(
                        f"{where} before it, {repair.what}: {repair.told} ({repair.who}: {repair.why})"
                    )


def _why(error: UnreadableRecord) -> str:
    return str(error.fields["reason"]) + (f" ({error.value})" if "value" in error.fields else "")


def _person(noted: Deed) -> str:
    return f"{noted.why} ({noted.who}, {noted.when})"


def in_short(value: Any) -> str:
    """Format a value for display, shortened to a maximum length."""
    text = dumps(as_plain(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
