"""Older lines of the book of ends, made from receipts. Source: docs/protocol.md §12."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from airflow_tx.base.errors import PreviewOutdated, RepairRefused
from airflow_tx.ledger.api import Delete, Write
from airflow_tx.ledger.audit import older_lines as repair
from airflow_tx.ledger.audit.chain import StateEvidence
from airflow_tx.ledger.audit.older_lines import OlderLines, lines_lacking
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.json_text import as_plain, replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import EndLine, TakenRange
from airflow_tx.ledger.steps.end import note_readmission
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from tests.unit.protocol.books import Books

ADA = Audit("ada", "a topology reads it now")


def kept(**how: Any) -> Books:
    return Books(added=["n"], journals=True, book=True, **how)


def lines(books: Books) -> dict[int, EndLine]:
    topology = books.pipeline.ledger.topology()
    return Book(Reader(books.store), books.pipeline.paths).lines(topology.book, books.pipeline.ledger.current() - 1)


def as_an_older_release(books: Books, *, reads: bool = True) -> None:
    """Take the book out of the ledger, and the first of each chain out of what it keeps of open transactions.

    :param reads: whether the DAG keeps a book by now.
    """
    paths = books.pipeline.paths
    pages = books.store.children(paths.ends)
    if pages is not None:
        books.store.multi([], [*(Delete(f"{paths.ends}/{name}") for name in pages.names), Delete(paths.ends)])
    books.change(paths.record, lambda record: record.pop("book", None))
    books.pipeline.request = replace(books.pipeline.request, appends=reads)


def lacking(books: Books, *, without: Collection[str] = (), tables: Iterable[str] = ("s0", "s1")) -> OlderLines:
    """Find the lines that are missing.

    :param without: states that keep no receipts.
    """
    held = [
        StateEvidence(each.name, each.fence(), None if each.name in without else each.receipts())
        for each in books.states
    ]
    return lines_lacking(books.ledger, held, books.pipeline.request, {*tables} - {*without})


def extend(books: Books, **how: Any) -> str:
    return str(lacking(books, **how).put(books.pipeline.ledger, ADA).summary)


@pytest.fixture
def three_pages() -> Books:
    """120 transactions, of which an older release has kept no line: some are restated, one is skipped."""
    books = kept().run(59)
    books.skip()
    books.run(56)
    pipeline = books.pipeline
    assert [pipeline.restate(7, "run 7", 1), pipeline.restate(60 - 1, "run 59", 1)] == [117, 118]
    assert [pipeline.restate(117, "run 7", 1), pipeline.restate(119, "run 7", 1)] == [119, 120]
    return books


def test_a_new_book_of_ends_can_be_extended_back_to_the_first_transaction(three_pages: Books) -> None:
    before = lines(three_pages)
    as_an_older_release(three_pages)
    assert extend(three_pages) == "the book of ends begins at transaction 1 now"
    assert three_pages.pipeline.ledger.topology().book == 1
    assert lines(three_pages) == before
    assert three_pages.verify().findings == ()
    (noted,) = three_pages.pipeline.ledger.repairs()
    assert (noted.what, noted.who, noted.why, noted.generation) == ("ends", "ada", "a topology reads it now", 1)
    three_pages.run(1)
    assert lines(three_pages)[121].first == 0


class Killed(Exception):
    """The process of the repair dies."""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_repair_of_the_book_that_was_killed_leaves_no_gap_and_continues_when_repeated(
    three_pages: Books, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines(three_pages)
    as_an_older_release(three_pages)
    monkeypatch.setattr(repair, "MOST_OF_PAGES", 1)
    lived = three_pages.pipeline.ledger.store.multi
    written = list[int]()

    def multi(requirements: Any, writes: list[Write]) -> Any:
        if any(each.path.startswith(three_pages.pipeline.paths.ends) for each in writes):
            if len(written) == after:
                raise Killed
            written.append(len(writes))
        return lived(requirements, writes)

    with monkeypatch.context() as dying:
        dying.setattr(three_pages.store, "multi", multi)
        with pytest.raises(Killed):
            extend(three_pages)
    begins = three_pages.pipeline.ledger.topology().book
    assert begins == [0, 100, 50][after]
    assert lines(three_pages) == ({} if not begins else {txid: before[txid] for txid in range(begins, 121)})
    assert three_pages.verify().findings == ()
    assert extend(three_pages) == "the book of ends begins at transaction 1 now"
    assert lines(three_pages) == before
    assert three_pages.verify().findings == ()


def test_transactions_may_end_and_restate_others_while_older_lines_of_the_book_are_missing(
    three_pages: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_an_older_release(three_pages)
    monkeypatch.setattr(repair, "MOST_OF_PAGES", 1)
    three_pages.run(1)
    found = lacking(three_pages)
    pipeline = three_pages.pipeline
    assert [pipeline.restate(120, "run 7", 5), pipeline.restate(3, "run 3", 5)] == [122, 123]
    assert lines(three_pages)[122].first == 120
    found.put(pipeline.ledger, ADA)
    chains = {txid: (line.first, line.end) for txid, line in lines(three_pages).items()}
    assert [chains[txid] for txid in (3, 7, 117, 119, 120, 122, 123)] == [
        (0, 123), (0, 122), (7, 0), (7, 0), (7, 0), (7, 0), (3, 0),
    ]  # fmt: skip
    assert three_pages.verify().findings == ()


def test_a_restatement_that_began_before_a_repair_of_the_book_ends_its_restated_chain() -> None:
    books = kept().run(2)
    books.pipeline.restate(1, "run 1", 5)
    as_an_older_release(books)
    books.run(1)
    books.pipeline.ledger.want_restated(WishRequest(3, "run 1", "run 1"), ADA)
    begun = books.pipeline.begin("run 1")
    extend(books)
    grant = books.pipeline.acquire(begun, books.pipeline.process(begun))
    books.pipeline.write(grant, 9)
    books.pipeline.mark(grant)
    found = lines(books)
    assert (found[begun.txid].first, found[1].end) == (1, begun.txid)
    assert books.verify().findings == ()


def test_lines_of_an_older_release_are_completed_with_the_first_transaction_of_their_chain() -> None:
    """The book began in the middle of a chain, whose receipts name predecessors alone."""
    books = Books(added=["n"], journals=True).run(2)
    books.pipeline.restate(1, "run 1", 5)
    books.pipeline.request = replace(books.pipeline.request, appends=True)
    books.run(1)
    assert books.pipeline.restate(3, "run 1", 6) == 5
    assert books.pipeline.restate(5, "run 1", 7) == 6
    assert {txid: line.first for txid, line in lines(books).items()} == {4: 0, 5: 3, 6: 3}
    assert books.verify().findings == ()
    told = "the book of ends begins at transaction 1 now; the chains of 2 lines are corrected"
    assert extend(books) == told
    assert {txid: (line.first, line.end) for txid, line in lines(books).items()} == {
        1: (0, 6), 2: (0, 0), 3: (1, 0), 4: (0, 0), 5: (1, 0), 6: (1, 0),
    }  # fmt: skip
    assert books.verify().findings == ()


def test_a_book_of_ends_is_extended_back_as_far_as_receipts_are_complete() -> None:
    books = kept(history=3).run(8)
    as_an_older_release(books)
    told = "the book of ends begins at transaction 6 now; there is no whole receipt of transactions 1 to 5"
    assert extend(books, without=["s0", "s1"]) == told
    assert sorted(lines(books)) == [6, 7, 8]
    with pytest.raises(RepairRefused) as refused:
        extend(books, without=["s0", "s1"])
    assert str(refused.value) == (
        "Repair --ends of topology 'flights' refused: its book of ends begins at transaction 6, but no complete "
        "receipt exists of transactions 1 to 5. Nothing was changed. To list the receipts: airflow tx receipts "
        "flights --to 6"
    )
    assert extend(books) == "the book of ends begins at transaction 1 now"
    assert lines(books)[1].rows == {"s0": 1, "s1": 1}


def test_the_book_of_ends_begins_after_a_receipt_that_lacks_the_rows_of_a_table() -> None:
    books = kept(history=3).run(8)
    as_an_older_release(books)
    told = "the book of ends begins at transaction 6 now; there is no whole receipt of transaction 5"
    found = lacking(books, without=["s1"], tables=["s0"])
    assert sorted(found.lines) == list(range(1, 9))
    held = [StateEvidence(each.name, each.fence(), each.receipts()) for each in books.states]
    held[1] = replace_receipts(held[1])
    made = lines_lacking(books.ledger, held, books.pipeline.request, ["s0", "s1"])
    assert made.put(books.pipeline.ledger, ADA).summary == told


def replace_receipts(held: StateEvidence) -> StateEvidence:
    """Keep none, as a Delta table does whose log has expired."""
    return StateEvidence(held.name, held.fence, [])


def test_lines_of_transactions_that_were_taken_back_do_not_count() -> None:
    books = kept().run(2)
    tokens = {each.name: fence.token for each in books.states if (fence := each.fence()) is not None}
    snapshots = [each.receipts() for each in books.states]
    books.run(2)
    books.pipeline.ledger.back(2, tokens=tokens, marks={}, position=2, audit=ADA)
    as_an_older_release(books)
    held = [StateEvidence(each.name, None, kept) for each, kept in zip(books.states, snapshots, strict=True)]
    made = lines_lacking(books.ledger, held, books.pipeline.request, ["s0"])
    made.put(books.pipeline.ledger, ADA)
    assert [lines(books)[txid].outcome for txid in (3, 4)] == [None, None]
    assert lines(books)[2].counts


def test_a_rebuild_creates_lines_with_the_upstream_ranges_of_the_batches() -> None:
    books = kept(upstream="orders", kind="opaque", sized=True)
    books.pipeline.metadata = lambda row: as_plain(TakenRange(row, row, counts={str(row): 7}))
    books.pipeline.amount = lambda metadata: 1
    books.run(1)
    books.skip()
    books.pipeline.ledger.run(note_readmission, 2, ADA)
    books.pipeline.run("run 2")
    before = lines(books)
    as_an_older_release(books)
    extend(books)
    assert lines(books) == before
    assert before[3].taken == TakenRange(2, 2, again=True)
    held = [
        HeldState.of(each.name, undoable=True, fence=each.fence(), receipts=each.receipts()) for each in books.states
    ]
    books.store = books.pipeline.store = MemoryStore()
    Repairs(books.pipeline.ledger).ledger_lost(held, books.pipeline.request, ADA)
    assert lines(books) == before


# --- refused ------------------------------------------------------------------------------------------------------


def test_a_repair_of_the_book_for_a_topology_without_a_table_is_refused() -> None:
    books = Books().run(2)
    with pytest.raises(RepairRefused, match="it keeps no book of ends: DAG 'dag' updates no table"):
        extend(books)


def test_a_repair_of_a_complete_book_of_ends_is_refused() -> None:
    books = kept().run(2)
    with pytest.raises(RepairRefused, match="begins at transaction 1 already, and lacks no line"):
        extend(books)
    assert books.pipeline.ledger.repairs() == ()


def test_a_repair_of_the_book_that_would_leave_a_gap_is_refused() -> None:
    """A transaction that ends while the topology keeps no book leaves no line."""
    books = kept().run(2)
    as_an_older_release(books, reads=False)
    books.pipeline.request = replace(books.pipeline.request, appends=True)
    found = lacking(books)
    books.pipeline.request = replace(books.pipeline.request, appends=False)
    books.run(1)
    with pytest.raises(PreviewOutdated):
        found.put(books.pipeline.ledger, ADA)
    assert books.pipeline.ledger.topology().book == 0


def test_lines_of_the_book_that_were_found_before_another_repair_are_refused() -> None:
    books = kept().run(2)
    as_an_older_release(books)
    found = lacking(books)
    books.pipeline.ledger.run(_raised)
    with pytest.raises(PreviewOutdated):
        found.put(books.pipeline.ledger, ADA)


def _raised(read: Reader, stamp: Any, paths: Any) -> Any:
    from airflow_tx.ledger.answers import Done
    from airflow_tx.ledger.records import TopologyRecord
    from airflow_tx.ledger.steps import step

    topology = read.get(TopologyRecord, paths.record)
    return step.put(paths.record, replace(topology, generation=topology.generation + 1, op=stamp.op), Done())
