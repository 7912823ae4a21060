"""Corrections of an upstream topology, and the committed transactions that lack them. Source: docs/protocol.md §12.

They are found by comparing the two books of ends. A transaction is behind while the line that counts for it names an
older end than the upstream book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from airflow_tx.ledger.book import Book
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import Behind, EndLine, TakenRange, TransactionRecord, Wish
from airflow_tx.ledger.steps.correction import ComparedUpTo
from airflow_tx.ledger.upstream.reading import UpstreamReading


@dataclass(frozen=True)
class Correction:
    """The corrections that a committed transaction lacks.

    :param txid: the transaction that lacks the corrections. It begins its chain.
    :param counts: the transaction that counts for it.
    :param key: the run key of its run.
    :param ends: the end that counts now, by the upstream transaction that begins the chain.
    :param first: the first upstream transaction in its range.
    :param last: the last upstream transaction in its range.
    :param noted: the record of this transaction in the ledger; None if there is none.
    :param final_since: function that reads the time at which an upstream transaction became final.
    """

    txid: int
    counts: int
    key: str
    ends: Mapping[int, int]
    first: int
    last: int
    noted: Behind | None = None
    final_since: Callable[[int], datetime | None] = field(
        default=lambda txid: None, repr=False, compare=False
    )

    @property
    def since(self) -> datetime | None:
        """Read when the first of these ends became final. Return None if the upstream ledger has forgotten the time."""
        return min(filter(None, map(self.final_since, self.ends.values())), default=None)

    @property
    def is_noted(self) -> bool:
        """Whether the ledger has recorded exactly these ends, so that no new restatement is requested."""
        return self.noted is not None and self.noted.is_of(self.ends)

    @property
    def reason(self) -> str:
        """Return the reason for the restatement of the transaction."""
        told = ", ".join(f"{txid} restated by {end}" for txid, end in sorted(self.ends.items()))
        return f"upstream {told}"


NOTED_EVERY = 100
"""Number of transactions without a correction after which the cursor is saved in the ledger."""
SETTLES = timedelta(minutes=10)
"""Maximum time that a restatement waits for further corrections of its range."""


@dataclass(frozen=True)
class Corrections:
    """The corrections of an upstream topology at one moment.

    :param behind: the transactions that lack corrections.
    :param under_way: transactions of `behind` with an open or requested restatement.
    :param postponed: transactions of `behind` whose range will soon get more corrections.
    :param comparison: the result of this comparison, which the ledger will record.
    :param compared: the last upstream transaction that earlier comparisons covered (the cursor).
    """

    behind: tuple[Correction, ...]
    under_way: frozenset[int]
    postponed: frozenset[int]
    comparison: ComparedUpTo
    compared: int

    @property
    def is_due(self) -> bool:
        """Whether the ledger must be updated now, because a correction needs an action or the cursor has moved far."""
        ahead = self.comparison.txid - self.compared >= NOTED_EVERY
        return bool(self.due or self.comparison.caught_up) or ahead

    @property
    def due(self) -> tuple[Correction, ...]:
        """The corrections that need an action now."""
        later = self.under_way | self.postponed
        return tuple(each for each in self.behind if not each.is_noted and each.txid not in later)

    @property
    def left(self) -> tuple[Correction, ...]:
        """The corrections for which no restatement will be requested automatically."""
        return tuple(
            each for each in self.behind if each.is_noted and each.txid not in self.under_way
        )


@dataclass
class CorrectionReader:
    """Compares a topology's book of ends with its upstream topology's book.

    :param ledger: the ledger of the reading topology.
    """

    ledger: ReadOnlyLedger
    upstream: UpstreamReading
    _behind: dict[int, dict[int, int]] = field(default_factory=dict)

    def read(self, now: datetime) -> Corrections:
        """Compare the corrections after the cursor, and the transactions that are recorded as behind."""
        noted = self._noted
        cursor = self._cursor
        for txid, note in noted.items():
            self._compare_noted(txid, note)
        held = False
        lines = self.upstream.lines(cursor + 1, self.upstream.current - 1)
        for txid, line in sorted(lines.items()):
            is_correction = line.first and line.outcome is Outcome.COMMITTED
            held = (is_correction and self._holds_up(line)) or held
            cursor = cursor if held else txid
        behind = tuple(self._correction(txid) for txid in sorted(self._behind))
        caught_up = [txid for txid in noted if txid not in self._behind]
        under_way = {each.txid for each in behind if self._is_under_way(each.txid, each.counts)}
        last = self.upstream.line_if_any(cursor)
        birth = "" if last is None else last.birth
        comparison = ComparedUpTo(self.upstream.topology.incarnation, cursor, birth, caught_up)
        postponed = {each.txid for each in behind if self._is_postponed(each, now)}
        return Corrections(
            behind, frozenset(under_way), frozenset(postponed), comparison, self._cursor
        )

    # --- one correction

    def _holds_up(self, line: EndLine) -> bool:
        """Compare one correction. Return whether a later call must compare it again."""
        if self._own.last_taken < line.first:
            return True  # no final transaction has taken the corrected transaction yet
        holder = self._own.holder(line.first)
        if holder is None or holder.outcome is None:
            return False  # the corrected transaction is before the first range of the topology
        if holder.outcome is not Outcome.COMMITTED:
            return self._is_wanted_back(holder.txid)
        counts = self._own.counting(holder)
        if counts.taken is None or counts.taken.end_of(line.first) >= line.txid:
            return False
        self._note(holder, line.first)
        noted = self._noted.get(holder.txid)
        is_noted = noted is not None and noted.is_of(self._behind[holder.txid])
        return not is_noted or self._is_under_way(holder.txid, counts.txid)

    def _compare_noted(self, txid: int, note: Behind) -> None:
        """Compare again a transaction that is recorded as behind."""
        holder = self._own.book.line(txid)
        counts = None if holder is None else self._own.counting(holder)
        if holder is None or counts is None or counts.taken is None:
            return
        for name in note.ends:
            end = self._end(int(name))
            if counts.taken.end_of(int(name)) < end:
                self._note(holder, int(name))

    def _note(self, holder: EndLine, txid: int) -> None:
        self._behind.setdefault(holder.txid, {})[txid] = self._end(txid)

    def _correction(self, txid: int) -> Correction:
        holder = self._own.book.line(txid)
        assert holder is not None
        assert holder.taken is not None
        counts = self._own.counting(holder)
        taken = holder.taken
        ends = self._behind[txid]
        noted = self._noted.get(txid)
        return Correction(
            txid,
            counts.txid,
            holder.key,
            ends,
            taken.first,
            taken.last,
            noted,
            self.upstream.final_since,
        )

    def _is_postponed(self, correction: Correction, now: datetime) -> bool:
        """Return whether more corrections of the same range are expected soon."""
        chains = self.upstream.chains_in_restatement
        if not any(correction.first <= txid <= correction.last for txid in chains):
            return False
        since = [self.upstream.final_since(end) for end in correction.ends.values()]
        return all(each is not None and now - each < SETTLES for each in since)

    def _end(self, txid: int) -> int:
        line = self.upstream.line(txid)
        return line.end or line.txid

    # --- the topology that reads

    @cached_property
    def _own(self) -> TakenRanges:
        return TakenRanges(self.ledger)

    @cached_property
    def _cursor(self) -> int:
        found = self.ledger.followed()
        known = found is not None and found.incarnation == self.upstream.topology.incarnation
        begins = max(self.upstream.topology.book - 1, 0)
        return max(found.txid, begins) if found is not None and known else begins

    @cached_property
    def _noted(self) -> Mapping[int, Behind]:
        return self.ledger.noted_behind()

    @cached_property
    def _opened(self) -> Mapping[int, TransactionRecord]:
        return self.ledger.open_records()

    @cached_property
    def _wishes(self) -> tuple[Wish, ...]:
        return self.ledger.wishes()

    def _is_under_way(self, txid: int, counts: int) -> bool:
        """Return whether a restatement of a transaction is open or requested."""
        wanted = any(wish.txid == counts for wish in self._wishes)
        opened = (each.replaces for each in self._opened.values() if each.replaces is not None)
        return wanted or any(each.begins == txid for each in opened)

    def _is_wanted_back(self, txid: int) -> bool:
        """Return whether a skipped transaction's readmission is requested but not yet final."""
        skipped = self.ledger.skipped(txid)
        if skipped is None or skipped.readmit is None:
            return False
        again = skipped.readmitted_as
        return not again or self._own.book.line(again) is None


@dataclass
class TakenRanges:
    """The upstream transactions that a topology has taken, according to its own book of ends.

    :param ledger: the ledger of the reading topology.
    """

    ledger: ReadOnlyLedger

    @cached_property
    def book(self) -> Book:
        """The book of ends of the reading topology."""
        return self.ledger.book()

    def counting(self, line: EndLine) -> EndLine:
        """Return the line of the transaction that counts instead of the one in `line`."""
        found = self.book.line(line.end) if line.end else None
        return found or line

    def counting_for(self, txid: int) -> int | None:
        """Return the transaction that counts for an upstream transaction. Return None if none has taken it yet.

        :param txid: the upstream transaction, which begins its chain.
        """
        found = self.holder(txid)
        return None if found is None else self.counting(found).txid

    def ahead(self) -> int | str | None:
        """Return the number of upstream transactions that are final but not yet taken.

        :return: the number, or a clause that explains why they cannot be taken. None if the topology has no upstream
            topology.
        """
        name = self.ledger.topology().upstream
        if not name:
            return None
        upstream, problem = UpstreamReading.of_reader(self.ledger)
        if problem is not None or upstream is None:
            return problem or f"topology {name!r} has not begun"
        return upstream.left_from(self.last_taken + 1)

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        return self.ledger.topology().book, self.ledger.current() - 1

    @cached_property
    def last_taken(self) -> int:
        """The last upstream transaction that a final transaction has taken."""
        first, last = self._bounds
        found = self._fresh_before(last, first)
        return 0 if found is None or found.taken is None else found.taken.last

    def holder(self, txid: int) -> EndLine | None:
        """Return the final transaction whose range contains an upstream transaction. Return None if there is none."""
        found = self._first_holder(txid)
        return None if found is None else self.readmitted(found)

    def readmitted(self, found: EndLine) -> EndLine:
        """Follow the readmissions of `found`. Return the final transaction that now has its batch."""
        seen = set[int]()
        while found.outcome is Outcome.SKIPPED and found.txid not in seen:
            seen.add(found.txid)
            skipped = self.ledger.skipped(found.txid)
            again = None if skipped is None else skipped.readmitted_as
            found = (self.book.line(again) if again else None) or found
        return found

    def _first_holder(self, txid: int) -> EndLine | None:
        """Find the first transaction that took an upstream transaction, by bisecting the ascending ranges."""
        first, last = self._bounds
        while first <= last:
            middle = (first + last) // 2
            found = self._fresh_before(middle, first)
            if found is None or found.taken is None or txid > found.taken.last:
                first = middle + 1
            elif txid < found.taken.first:
                last = found.txid - 1
            else:
                return found
        return None

    def _fresh_before(self, last: int, first: int) -> EndLine | None:
        """Return the newest transaction from `first` to `last` that took new upstream transactions."""
        return next(self._fresh(last, first), None)

    def _fresh(self, last: int, first: int) -> Iterator[EndLine]:
        for txid in range(last, first - 1, -1):
            line = self.book.line(txid) if txid else None
            if line is not None and line.taken is not None and not line.first:
                if not line.taken.again:
                    yield line


# --- what is noted ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotedCorrections:
    """A transaction that is behind according to the ledger, and what will happen to it.

    :param txid: the transaction that counts.
    :param note: the record of the transaction that begins its chain.
    :param upstream: the topology whose corrections it lacks.
    :param is_wanted: whether a restatement of the transaction is requested.
    :param restated_by: the open transaction that restates it; None if there is none.
    """

    txid: int
    note: Behind
    upstream: str
    is_wanted: bool
    restated_by: int | None

    @property
    def is_left(self) -> bool:
        """Whether the transaction still lacks a restatement, and no restatement is requested."""
        return not self.is_wanted and self.restated_by is None

    def __str__(self) -> str:
        """Describe which corrections the transaction lacks, and what will happen to it."""
        named = ", ".join(sorted(self.note.ends, key=int))
        what = "a correction" if len(self.note.ends) == 1 else "corrections"
        return f"{what} of {self.upstream} {named}: {self.becomes}"

    @property
    def becomes(self) -> str:
        """Describe what will happen to the transaction next."""
        if self.restated_by is not None:
            return f"transaction {self.restated_by} restates it"
        if self.is_wanted:
            return "its restatement is requested"
        return self.note.why or "its restatement was skipped or withdrawn"


def noted_corrections(
    ledger: ReadOnlyLedger, notes: Mapping[int, Behind]
) -> tuple[NotedCorrections, ...]:
    """Return the transactions that are behind, according to this topology's ledger alone.

    :param notes: the result of `noted_behind`. Transactions that now have their corrections are left out.
    """
    if not notes:
        return ()
    upstream = ledger.topology().upstream
    ranges = TakenRanges(ledger)
    wanted = {wish.txid for wish in ledger.wishes()}
    opened = ledger.open_records().items()
    restated = {each.replaces.begins: txid for txid, each in opened if each.replaces is not None}
    found = list[NotedCorrections]()
    for txid, note in sorted(notes.items()):
        line = ranges.book.line(txid)
        counts = None if line is None else ranges.counting(line)
        if counts is not None and counts.taken is not None and _lacks(counts.taken, note):
            by = restated.get(txid)
            found.append(NotedCorrections(counts.txid, note, upstream, counts.txid in wanted, by))
    return tuple(found)


def _lacks(taken: TakenRange, note: Behind) -> bool:
    return any(taken.end_of(int(txid)) < end for txid, end in note.ends.items())
