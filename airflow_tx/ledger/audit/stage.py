"""Check whether a topology took each upstream transaction once, and which ones count.

Source: docs/protocol.md §12. A contradiction is a finding. Other facts are notes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from airflow_tx.base.remedy import Command
from airflow_tx.ledger.batch_words import counted
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import EndLine, TakenRange
from airflow_tx.ledger.upstream.corrections import NotedCorrections, TakenRanges, noted_corrections
from airflow_tx.ledger.upstream.reading import UpstreamReading

RowsUpstream = Callable[[Collection[int]], Mapping[int, int]]
"""A function that returns how many rows each given transaction has in the upstream table."""
COUNTED_AT_ONCE = 1000
"""Maximum number of transactions whose rows one call counts."""


@dataclass
class StageAudit:
    """Compares the ranges of a topology with the book of its upstream topology.

    :param ledger: the ledger of the reading topology.
    :param table: name of the upstream state that is the table; "" if unknown.
    :param rows: function that counts the rows of the table; None if they are not compared.
    :ivar findings: the contradictions, one line each.
    :ivar notes: facts such as upstream transactions not yet taken.
    """

    ledger: ReadOnlyLedger
    table: str = ""
    rows: RowsUpstream | None = None
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self) -> None:
        """Compare the upstream ranges, the transactions that count, and the rows.

        :raises UnreadableRecord: a record cannot be read. The error names the record.
        """
        lines = self._fresh
        upstream, problem = UpstreamReading.of_reader(self.ledger, self.table)
        if problem is not None:
            self.findings.append(problem)
        elif upstream is None:
            self.findings.append(f"topology {self.name!r} has no ledger")
        elif lines:
            self._compare_ranges(lines, upstream)
            for line in lines:
                self._compare_counts(line, upstream)
            self._compare_rows(lines, upstream)

    @cached_property
    def name(self) -> str:
        """The name of the upstream topology."""
        return self.ledger.topology().upstream

    @cached_property
    def _own(self) -> TakenRanges:
        return TakenRanges(self.ledger)

    @cached_property
    def _fresh(self) -> list[tuple[EndLine, TakenRange]]:
        """The lines whose batch took new upstream transactions, in the order of the txids.

        They are read first, so that the upstream ledger is sure to have all these transactions.
        """
        book = self.ledger.topology().book
        lines = self._own.book.lines(book, self.ledger.current() - 1)
        taken = [
            (each, each.taken) for _, each in sorted(lines.items()) if each.outcome is not None
        ]
        return [
            (line, taken)
            for line, taken in taken
            if taken is not None and not line.first and not taken.again
        ]

    @cached_property
    def _noted(self) -> Mapping[int, NotedCorrections]:
        noted = noted_corrections(self.ledger, self.ledger.noted_behind())
        return {each.txid: each for each in noted}

    # --- ranges

    def _compare_ranges(
        self, lines: list[tuple[EndLine, TakenRange]], upstream: UpstreamReading
    ) -> None:
        (_, first), (_, last) = lines[0], lines[-1]
        for (before, taken), (after, following) in pairwise(lines):
            where = f"transactions {before.txid} and {after.txid}"
            if following.first > taken.last + 1:
                span = _span(taken.last + 1, following.first - 1)
                self.findings.append(
                    f"{where}: {self.name} {span} is in no range of either transaction"
                )
            elif following.first <= taken.last:
                span = _span(following.first, min(taken.last, following.last))
                self.findings.append(
                    f"{where}: {self.name} {span} is in the ranges of both transactions"
                )
        if first.first > 1:
            self.notes.append(f"its first range begins with {self.name} {first.first}")
        if last.last >= upstream.current:
            went_back = f"{self.name} went back: {upstream.current} commits next, but {last.last} was already read"
            self.findings.append(went_back)
        elif upstream.left_from(last.last + 1):
            span = _span(last.last + 1, upstream.current - 1)
            self.notes.append(f"no transaction has read {self.name} {span} yet")

    # --- what counts

    def _compare_counts(self, line: tuple[EndLine, TakenRange], upstream: UpstreamReading) -> None:
        fresh, taken = line
        holder = self._own.readmitted(fresh)
        if holder.outcome is not Outcome.COMMITTED:
            span = _span(taken.first, taken.last)
            self.notes.append(f"transaction {holder.txid} was skipped: {self.name} {span}")
            return
        counts = self._own.counting(holder)
        read = counts.taken or taken
        where = f"transaction {counts.txid}"
        if (read.first, read.last) != (taken.first, taken.last):
            spans = (
                f"{_span(read.first, read.last)}, but {_span(taken.first, taken.last)} was taken"
            )
            self.findings.append(f"{where}: it has the range {spans} before")
        ends = dict(_ends(upstream, taken))
        for txid in range(taken.first, min(taken.last + 1, upstream.current)):
            if upstream.line_if_any(txid) is None:
                self.findings.append(f"{where}: {self.name} has no line of its transaction {txid}")
        behind = {txid: end for txid, end in ends.items() if read.end_of(txid) < end}
        for txid, end in ends.items():
            if read.end_of(txid) > end:
                told = f"{self.name} went back: {read.end_of(txid)} was read for {txid}, but {end} counts"
                self.findings.append(f"{where}: {told}")
        if behind:
            self._tell_behind(counts.txid, behind)

    def _tell_behind(self, txid: int, behind: Mapping[int, int]) -> None:
        named = ", ".join(f"{each} ({end} counts)" for each, end in behind.items())
        told = f"transaction {txid} is behind a correction of {self.name} {named}"
        noted = self._noted.get(txid)
        if noted is None:
            self.notes.append(f"{told}: no restatement is requested yet")
        else:
            where = self.findings if noted.is_left else self.notes
            again = Command(
                "restate", self.ledger.paths.topology, options=("--follow", "--why", "TEXT")
            )
            rest = f". Request it: {again}" if noted.is_left else ""
            where.append(f"{told}: {noted.becomes}{rest}")

    # --- rows

    def _compare_rows(
        self, lines: list[tuple[EndLine, TakenRange]], upstream: UpstreamReading
    ) -> None:
        if self.rows is None:
            return
        ends = sorted({end for _, taken in lines for _, end in _ends(upstream, taken)})
        # While an upstream transaction is open, rows may be missing for a short time.
        where = self.notes if upstream.may_settle(lines[-1][1]) else self.findings
        for start in range(0, len(ends), COUNTED_AT_ONCE):
            some = ends[start : start + COUNTED_AT_ONCE]
            found = self.rows(some)
            for end in some:
                said = upstream.rows_of(upstream.line(end))
                if found[end] != said:
                    where.append(
                        f"table {self.table}: it has {counted(found[end], 'rows')} of transaction {end} of "
                        f"{self.name}, which committed {said}"
                    )


def _ends(upstream: UpstreamReading, taken: TakenRange) -> Iterator[tuple[int, int]]:
    """Yield each transaction of a range that begins a chain, with the transaction that counts now."""
    for txid, line in upstream.lines(taken.first, taken.last).items():
        if line.counts:
            yield txid, line.end or txid


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
