"""The repair that adds older lines to the book of ends. Source: docs/protocol.md §12.

The lines are derived from the receipts in the ledger and its states. They are added in portions, from the newest to the
oldest, so that the book has no gap if the process dies. The repair can then be repeated to add the missing lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from airflow_tx.base.errors import PreviewOutdated, RepairRefused, UnreadableRecord
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.answers import Repaired
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.audit.chain import Chain, Expected, LedgerEvidence, StateEvidence
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.batch_words import counted
from airflow_tx.ledger.book import LINES_A_PAGE, Book, chained
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.life import ENDS, all_taken_back
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import BookPage, Counter, EndLine, TakenRange, TopologyRecord, encode
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp

MOST_OF_PAGES = 300_000
"""Maximum bytes of the pages in one multi. ZooKeeper accepts about 1 MB."""


@dataclass(frozen=True)
class OlderLines:
    """The lines missing from a book of ends, and the existing lines that they change.

    :param evidence: the evidence behind the lines.
    :param lines: the older and the existing lines, by txid, with their chain links.
    :param txids: the txids of the lines to add, newest first.
    :param summary: description of the result, such as the first transaction in the book.
    """

    evidence: LedgerEvidence
    lines: Mapping[int, EndLine]
    txids: Sequence[int]
    summary: str

    def preview(self, ledger: Ledger, audit: Audit) -> Decision[Repaired]:
        """Decide the writes of the first portion, but write nothing. Raises the errors of `put`."""
        return ledger.preview(older_lines, self, next(self._portions()), audit=audit)

    def put(self, ledger: Ledger, audit: Audit) -> Repaired:
        """Add the lines to the book in portions. The first portion also adds the repair record.

        :raises PreviewOutdated: since the evidence was read, a repair was made or the book was begun.
        """
        first, *more = self._portions()
        done = ledger.run(older_lines, self, first, audit=audit)
        for portion in more:
            ledger.run(older_lines, self, portion, audit=None)
        return done

    def _portions(self) -> Iterator[list[int]]:
        """Yield the txids of each portion, page by page. There is at least one portion, which starts a new book."""
        portion = list[int]()
        size = 0
        for number, txids in groupby(self.txids, key=lambda txid: txid // LINES_A_PAGE):
            page = range(number * LINES_A_PAGE, (number + 1) * LINES_A_PAGE)
            own = len(encode(BookPage([self.lines[txid] for txid in page if txid in self.lines])))
            if portion and size + own > MOST_OF_PAGES:
                yield portion
                portion = []
                size = 0
            portion += txids
            size += own
        yield portion


def older_lines(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    made: OlderLines,
    txids: Sequence[int],
    *,
    audit: Audit | None,
) -> Decision[Repaired]:
    """Add lines before the first line of the book.

    :param txids: the txids of these lines. The book already has all newer lines.
    :param audit: who makes the repair, and why. None if an earlier portion has added the repair record.
    :raises PreviewOutdated: see `OlderLines.put`.
    """
    before = made.evidence
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current).txid
    is_same = (topology.incarnation, topology.generation) == (
        before.topology.incarnation,
        before.topology.generation,
    )
    # Without a book, a transaction that ends writes no line.
    if not is_same or (not topology.book and current != before.current):
        raise PreviewOutdated(what="The book of ends", topology=paths.topology)
    book = Book(read, paths)
    since = book.lines(before.current, current - 1)
    lines = chained([*made.lines.values(), *since.values()])
    changed = [lines[txid] for txid in since if lines[txid] != since[txid]]
    begins = min([topology.book or current, *txids])
    after = replace(topology, book=begins, op=stamp.op)
    writes = (
        Put(paths.record, encode(after)),
        *book.with_lines([*changed, *(lines[txid] for txid in txids)]),
    )
    if audit is None:
        result = Repaired(topology.generation, current, made.summary)
        return Decision(result, writes, paths.record)
    return audit.repair(
        read,
        stamp,
        paths,
        writes,
        what=ENDS,
        after=after,
        current=current,
        summary=made.summary,
        change={"first": min(made.lines, default=current)},
    )


# --- lines --------------------------------------------------------------------------------------------------------


def lines_told(
    wanted: Expected, receipts: Mapping[int, Receipt], *, upstream: str
) -> dict[int, EndLine]:
    """Return the lines that follow from the receipts, with the upstream range of each batch.

    :param upstream: the name of the upstream topology; "" if the source reads something else.
    """
    again = {each.readmitted_as for each in wanted.skipped.values()}
    if not upstream:
        return dict(wanted.lines)
    found = dict[int, EndLine]()
    for txid, line in wanted.lines.items():
        with suppress(UnreadableRecord):
            taken = TakenRange.of(receipts[txid].metadata).in_line(again=txid in again)
            line = replace(line, taken=taken)
        found[txid] = line
    return found


def lines_lacking(
    ledger: LedgerEvidence,
    states: Sequence[StateEvidence],
    request: TopologyRequest,
    tables: Collection[str],
) -> OlderLines:
    """Return the lines missing from a book of ends, back to the first gap in the receipts.

    :param request: the topology as its DAG describes it.
    :param tables: names of the tables that other topologies read. A line has the row count of each table.
    :raises RepairRefused: the topology keeps no book, or no line can be added.
    """
    topology = ledger.topology
    if not topology.book and not request.keeps_book:
        again = Command.of("repair", ledger.name, "--ends", "--why", "TEXT")
        raise _refused(
            ledger,
            f"it keeps no book of ends: DAG {topology.dag_id!r} updates no table, and reads none of another topology",
            "Let the DAG update a SqlTable or a DeltaTable, then repeat: " + again,
        )
    begins = topology.book or ledger.current
    chain = Chain(ledger, states, 1, ledger.current - 1)
    gone = all_taken_back(ledger.life)
    told = lines_told(chain.expected, chain.receipts, upstream=request.upstream)
    older = dict[int, EndLine]()
    for txid in range(begins - 1, 0, -1):
        if _is_whole(chain, txid, tables):
            older[txid] = told[txid]
        elif txid in gone and txid not in chain.receipts:
            older[txid] = EndLine(txid, "", "")
        else:
            break
    known = {**older, **ledger.book}
    lines = chained(known[txid] for txid in sorted(known))
    txids = [txid for txid in sorted(lines, reverse=True) if lines[txid] != ledger.book.get(txid)]
    first = min(older, default=begins)
    lost = _lost(chain, first)
    if not txids and topology.book:
        raise _nothing_left(ledger, first, lost)
    corrected = len(txids) - len(older)
    words = [f"the book of ends begins at transaction {first} now"]
    words += [f"the chains of {counted(corrected, 'lines')} are corrected"] if corrected else []
    words += [f"there is no whole receipt of {lost}"] if lost else []
    return OlderLines(ledger, lines, txids, "; ".join(words))


def _is_whole(chain: Chain, txid: int, tables: Collection[str]) -> bool:
    """Return whether the transaction's receipt is known, including its row count in each table."""
    receipt = chain.receipts.get(txid)
    if receipt is None or txid not in chain.pieced:
        return receipt is not None
    later = chain.receipts.get(txid + 1)
    is_followed = later is not None and later.previous == receipt.hash
    return is_followed or all(txid in chain.held.get(name, {}) for name in tables)


def _lost(chain: Chain, first: int) -> str:
    """Describe the transactions before a line that have no receipt. Return "" if there are none."""
    begins = first - 1
    while begins > 1 and begins - 1 not in chain.receipts:
        begins -= 1
    if first == 1:
        return ""
    return (
        f"transaction {begins}" if begins == first - 1 else f"transactions {begins} to {first - 1}"
    )


def _nothing_left(ledger: LedgerEvidence, first: int, lost: str) -> RepairRefused:
    if not lost:
        problem = f"its book of ends begins at transaction {first} already, and lacks no line"
        verify = Command.of("verify", ledger.name)
        return _refused(ledger, problem, "To compare it with the receipts: " + verify)
    problem = (
        f"its book of ends begins at transaction {first}, but no complete receipt exists of {lost}"
    )
    receipts = Command.of("receipts", ledger.name, "--to", first)
    return _refused(ledger, problem, "To list the receipts: " + receipts)


def _refused(ledger: LedgerEvidence, problem: str, remedy: Remedy) -> RepairRefused:
    return RepairRefused(what=ENDS, topology=ledger.name, problem=problem, remedy=remedy)
