"""The book of ends: one permanent line for each final transaction. Source: docs/protocol.md §12.

The history forgets old transactions, and a binding can be found only by its run key. For every transaction, the book
permanently records which transaction of the chain counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import Create, Paths, Put, Write
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.receipt import Outcome, Receipt
from airflow_tx.ledger.records import (
    BookPage,
    EndLine,
    TakenRange,
    TopologyRecord,
    TransactionRecord,
    encode,
)

LINES_A_PAGE = 50
"""Number of lines per page. Even with long lines, a page is far smaller than the limit of a multi."""


class Book:
    """One topology's book of ends. It reads each page at most once."""

    def __init__(self, read: Reader, paths: Paths) -> None:
        self._read = read
        self._paths = paths
        self._pages: dict[int, dict[int, EndLine]] = {}
        self._stored: set[int] = set()

    def line(self, txid: int) -> EndLine | None:
        """Read the line of a transaction. Return None if it is not final, or ended before the book began."""
        return self._page(txid // LINES_A_PAGE).get(txid)

    def lines(self, first: int, last: int) -> dict[int, EndLine]:
        """Read the lines of transactions from `first` to `last`, by txid. Transactions without a line are omitted."""
        pages = range(first // LINES_A_PAGE, last // LINES_A_PAGE + 1)
        found = (line for number in pages for line in self._page(number).items())
        return {txid: line for txid, line in found if first <= txid <= last}

    def with_lines(self, lines: Iterable[EndLine]) -> tuple[Write, ...]:
        """Return the writes that add these lines to the book or replace existing ones."""
        changed = dict[int, dict[int, EndLine]]()
        for line in lines:
            number = line.txid // LINES_A_PAGE
            changed.setdefault(number, dict(self._page(number)))[line.txid] = line
        writes = [self._write(number, page) for number, page in sorted(changed.items())]
        is_first = any(isinstance(each, Create) for each in writes)
        is_first = is_first and not self._read.exists(self._paths.ends)
        folder = (Create(self._paths.ends, b""),) if is_first else ()
        return (*folder, *writes)

    def _write(self, number: int, page: Mapping[int, EndLine]) -> Write:
        data = encode(BookPage([page[txid] for txid in sorted(page)]))
        path = self._paths.page(number)
        return Put(path, data) if number in self._stored else Create(path, data)

    def _page(self, number: int) -> dict[int, EndLine]:
        if number not in self._pages:
            found = self._read.find(BookPage, self._paths.page(number))
            self._stored |= set() if found is None else {number}
            lines = [] if found is None else found.lines
            self._pages[number] = {line.txid: line for line in lines}
        return self._pages[number]


def end_line(receipt: Receipt, taken: TakenRange | None = None) -> EndLine:
    """Create the line of a final transaction from its receipt."""
    return EndLine(
        receipt.txid,
        receipt.birth,
        receipt.key,
        Outcome(receipt.outcome),
        rows={state: each.keys for state, each in receipt.written.items() if each.keys},
        first=0 if receipt.replaces is None else receipt.replaces.begins,
        taken=taken,
    )


def chained(lines: Iterable[EndLine]) -> dict[int, EndLine]:
    """Link the lines of each chain. Each line names the first transaction, whose line names the one that counts now.

    :param lines: lines in the order of the txids.
    """
    found = dict[int, EndLine]()
    for line in lines:
        before = found.get(line.first)
        if before is not None and before.first:
            line = replace(line, first=before.first)
        found[line.txid] = line
        if line.first in found and line.outcome is Outcome.COMMITTED:
            found[line.first] = replace(found[line.first], end=line.txid)
    return found


def ended_lines(
    read: Reader,
    paths: Paths,
    topology: TopologyRecord,
    record: TransactionRecord,
    receipt: Receipt,
) -> tuple[Write, ...]:
    """Return the writes that record the end of a transaction in the book. Return () if the topology keeps no book.

    :param record: the transaction's record before its end.
    """
    if not topology.book:
        return ()
    line = end_line(receipt, _taken(read, paths, topology, record))
    book = Book(read, paths)
    before = book.line(line.first) if line.first else None
    if before is not None and before.first:
        # When this restatement began, the restated transaction had no line in the book.
        line = replace(line, first=before.first)
    return book.with_lines([line, *_ended(book, line)])


def _taken(
    read: Reader, paths: Paths, topology: TopologyRecord, record: TransactionRecord
) -> TakenRange | None:
    """Return the upstream range of an open transaction's batch. Return None if it has none, or if it is unknown."""
    if not topology.upstream:
        return None
    rows = RotatingTransactionalState(read, paths).get_state(record.txid).rows
    # A replay may have found no rows, or the DAG's previous source may have decided the batch.
    with suppress(UnreadableRecord):
        return TakenRange.of(rows).in_line(again=record.pinned and record.replaces is None)
    return None


def _ended(book: Book, line: EndLine) -> list[EndLine]:
    """Return the updated line of the chain's first transaction, if the book has it and the restatement is committed."""
    counts = line.first and line.outcome is Outcome.COMMITTED
    begins = book.line(line.first) if counts else None
    return [] if begins is None else [replace(begins, end=line.txid)]
