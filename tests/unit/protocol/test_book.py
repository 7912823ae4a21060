"""The book of ends: which transaction counts for each one, however long ago it was. Source: docs/protocol.md §12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_tx.base.errors import UnknownTxid
from airflow_tx.ledger.api import Delete
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.batch import Batch
from airflow_tx.ledger.book import LINES_A_PAGE, Book
from airflow_tx.ledger.json_text import as_plain, replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import BookPage, EndLine, TakenRange, decode
from airflow_tx.ledger.steps.end import note_readmission
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView
from airflow_tx.operations.actions.search import search_ledger
from airflow_tx.sources import TransactionalSource
from tests.unit.protocol.books import Books

ADA = Audit("ada", "a bug")


def kept(**how: Any) -> Books:
    return Books(added=["n"], journals=True, book=True, **how)


def lines(books: Books) -> dict[int, EndLine]:
    topology = books.pipeline.ledger.topology()
    last = books.pipeline.ledger.current() - 1
    return Book(Reader(books.store), books.pipeline.paths).lines(topology.book, last)


def chains(books: Books) -> dict[int, tuple[int, int]]:
    """Of each line the first of its chain, and its end."""
    return {txid: (line.first, line.end) for txid, line in lines(books).items()}


def test_each_final_transaction_has_a_line_in_the_book_of_ends_that_agrees_with_its_receipt() -> None:
    books = kept().run(2)
    books.skip()
    receipt = books.receipt(2)
    found = lines(books)
    assert found[2] == EndLine(2, receipt.birth, "run 2", Outcome.COMMITTED, {"s0": 1, "s1": 1})
    assert (found[3].outcome, found[3].rows) == (Outcome.SKIPPED, {})
    assert books.verify().findings == ()


def test_a_topology_without_a_table_has_no_book_of_ends() -> None:
    books = Books().run(2)
    assert books.pipeline.ledger.topology().book == 0
    assert books.store.children(books.pipeline.paths.ends) is None


def test_a_restatement_updates_the_end_in_the_first_line_of_its_chain() -> None:
    books = kept().run(2)
    assert books.pipeline.restate(1, "run 1", 5) == 3
    assert books.pipeline.restate(3, "run 1", 5) == 4
    assert chains(books) == {1: (0, 4), 2: (0, 0), 3: (1, 0), 4: (1, 0)}
    assert books.verify().findings == ()


def test_an_open_or_skipped_restatement_does_not_change_the_end_of_a_chain() -> None:
    books = kept().run(1)
    books.pipeline.ledger.want_restated(wish(1), ADA)
    begun = books.pipeline.begin("run 1")
    assert chains(books) == {1: (0, 0)}
    books.pipeline.skip(begun.txid)
    assert chains(books) == {1: (0, 0), 2: (1, 0)}
    assert lines(books)[2].outcome is Outcome.SKIPPED


def wish(txid: int) -> WishRequest:
    return WishRequest(txid, f"run {txid}", f"run {txid}")


def test_a_readmitted_transaction_begins_its_own_chain() -> None:
    books = kept().run(1)
    books.skip()
    books.pipeline.ledger.run(note_readmission, 2, ADA)
    assert books.pipeline.run("run 2") == 3
    assert chains(books) == {1: (0, 0), 2: (0, 0), 3: (0, 0)}
    assert lines(books)[3].counts
    assert not lines(books)[2].counts


def test_a_line_stays_after_the_history_is_deleted_and_a_page_has_a_fixed_number_of_lines() -> None:
    books = kept(history=2).run(LINES_A_PAGE + 1)
    assert books.pipeline.restate(LINES_A_PAGE, f"run {LINES_A_PAGE}", 1) == LINES_A_PAGE + 2
    paths = books.pipeline.paths
    assert set(books.store.children(paths.ends).names) == {"0", "1"}  # type: ignore[union-attr]
    found = {
        number: decode(BookPage, "", books.store.get(paths.page(number)).data)  # type: ignore[union-attr]
        for number in (0, 1)
    }
    assert [len(page.lines) for page in found.values()] == [LINES_A_PAGE - 1, 3]
    assert lines(books)[LINES_A_PAGE].end == LINES_A_PAGE + 2


def test_a_restatement_of_a_chain_from_before_the_book_is_recorded_only_in_its_own_line() -> None:
    books = Books(added=["n"], journals=True).run(2)
    books.pipeline.request = replace(books.pipeline.request, appends=True)
    books.run(1)
    assert books.pipeline.ledger.topology().book == 3
    assert books.pipeline.restate(1, "run 1", 5) == 4
    assert chains(books) == {3: (0, 0), 4: (1, 0)}
    assert books.verify().findings == ()


# --- what a batch takes of another topology ----------------------------------------------------------------------


@pytest.fixture
def downstream() -> Books:
    """It takes one transaction of an upstream topology after the other, and decides ends anew."""
    books = kept(upstream="orders", kind="opaque", sized=True)
    books.pipeline.metadata = lambda row: as_plain(TakenRange(row, row, counts={str(row): 7}))
    books.pipeline.amount = lambda metadata: 1
    return books


def test_a_line_contains_the_upstream_range_of_the_batch_without_its_rows(downstream: Books) -> None:
    downstream.run(1)
    downstream.skip()
    assert lines(downstream)[1].taken == TakenRange(1, 1)
    assert lines(downstream)[2].taken == TakenRange(2, 2)
    downstream.pipeline.ledger.run(note_readmission, 2, ADA)
    downstream.pipeline.run("run 2")
    assert lines(downstream)[3].taken == TakenRange(2, 2, again=True)
    assert downstream.verify().findings == ()


def test_each_attempt_keeps_its_upstream_range_and_reads_the_newest_ends_again(downstream: Books) -> None:
    pipeline = downstream.pipeline
    downstream.run(1)
    begun = pipeline.begin("run 2")
    pipeline.current = with_end(2, 9)
    again = pipeline.begin("run 2")
    assert (again.attempt.attempt, again.position) == (2, begun.position)
    assert again.metadata == {"first": 2, "last": 2, "ends": {"2": 9}, "counts": {"9": 4}}
    record = pipeline.ledger.status(2)
    assert record is not None
    assert record.size == {"rows": 4, "why": "anew"}


def test_a_restatement_and_its_replays_read_the_newest_ends_again(downstream: Books) -> None:
    pipeline = downstream.pipeline
    downstream.run(2)
    pipeline.ledger.want_restated(wish(1), ADA)
    pipeline.current = with_end(1, 8)
    assert pipeline.begin("run 1").metadata["ends"] == {"1": 8}
    pipeline.current = with_end(1, 9)
    begun = pipeline.begin("run 1")
    assert (begun.txid, begun.attempt.attempt, begun.metadata["ends"]) == (3, 2, {"1": 9})
    grant = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.write(grant, 1)
    pipeline.mark(grant)
    assert lines(downstream)[3].taken == TakenRange(1, 1, {"1": 9})
    assert lines(downstream)[1].end == 3


def with_end(txid: int, end: int) -> Any:
    taken = TakenRange(txid, txid, {str(txid): end}, {str(end): 4})
    return lambda attempt, metadata: Batch(as_plain(taken), None, 4, "anew")


# --- repairs ------------------------------------------------------------------------------------------------------


def test_a_ledger_that_is_rebuilt_from_states_has_the_lines_that_the_receipts_prove() -> None:
    books = kept().run(3)
    books.pipeline.restate(1, "run 1", 5)
    before = lines(books)
    held = [
        HeldState.of(each.name, undoable=True, fence=each.fence(), receipts=each.receipts()) for each in books.states
    ]
    books.store = books.pipeline.store = MemoryStore()
    Repairs(books.pipeline.ledger).ledger_lost(held, books.pipeline.request, ADA)
    assert books.pipeline.ledger.topology().book == 1
    assert lines(books) == before
    books.run(1)
    assert books.verify().findings == ()


def test_a_rebuilt_book_begins_at_the_last_transaction_if_the_states_have_no_receipts() -> None:
    books = kept().run(3)
    held = [HeldState.of(each.name, undoable=True, fence=each.fence()) for each in books.states]
    books.store = books.pipeline.store = MemoryStore()
    Repairs(books.pipeline.ledger).ledger_lost(held, books.pipeline.request, ADA)
    assert books.pipeline.ledger.topology().book == 3
    assert list(lines(books)) == [3]
    books.run(1)
    assert list(lines(books)) == [3, 4]


def test_a_reset_begins_a_new_book_of_ends() -> None:
    books = kept().run(3)
    pipeline = books.pipeline

    def clear() -> None:
        for each in books.states:
            each.clear()

    Repairs(pipeline.ledger).reset(pipeline.request, ADA, clear=clear)
    books.ran = 0
    books.run(1)
    assert list(lines(books)) == [1]


def test_chains_end_as_before_after_a_repair_has_taken_their_later_transactions_back() -> None:
    books = kept().run(2)
    tokens = {each.name: fence.token for each in books.states if (fence := each.fence()) is not None}
    books.pipeline.restate(1, "run 1", 5)
    books.pipeline.begin("run 3")
    taken_back = back(books, 2, tokens)
    assert taken_back.startswith("transactions 3 to 4 are taken back")
    assert chains(books) == {1: (0, 0), 2: (0, 0), 3: (0, 0), 4: (0, 0)}
    assert [lines(books)[txid].outcome for txid in (3, 4)] == [None, None]


def back(books: Books, to: int, tokens: Mapping[str, Token]) -> str:
    done = books.pipeline.ledger.back(to, tokens=tokens, marks={}, position=to, audit=ADA)
    return str(done.summary)


# --- beyond the history -------------------------------------------------------------------------------------------


def test_views_show_older_transactions_from_the_book_of_ends() -> None:
    books = kept().run(4)
    assert books.pipeline.restate(1, "run 1", 5) == 5
    for txid in (1, 2):
        books.store.multi([], [Delete(books.history(txid))])
    view = LedgerView(books.store, books.pipeline.paths)
    shown = {each.txid: each for each in view.view(recent=10).transactions}
    assert [each.txid for each in view.view(recent=3).transactions] == [5, 4, 3]
    assert (shown[1].status, shown[1].restated_by, shown[2].restated_by) == ("COMMITTED", 5, None)
    details = view.details(1)
    assert (details.transaction.document.run_id, details.receipt, details.batch) == ("run 1", None, None)
    assert view.final_txids() == (3, 4, 5)
    assert view.final_txids(book=1) == (1, 2, 3, 4, 5)
    with pytest.raises(UnknownTxid):
        view.details(6)


def test_views_do_not_show_transactions_that_were_taken_back() -> None:
    books = kept().run(2)
    tokens = {each.name: fence.token for each in books.states if (fence := each.fence()) is not None}
    books.run(1)
    back(books, 2, tokens)
    view = LedgerView(books.store, books.pipeline.paths)
    assert [each.txid for each in view.view(recent=10).transactions] == [2, 1]
    with pytest.raises(UnknownTxid):
        view.details(3)


class Dated(TransactionalSource):
    """Its batches are found by the days that they have."""

    def initialize_transaction(self, txid: int, position: Any) -> Any:
        raise NotImplementedError

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        raise NotImplementedError

    def contains(self, metadata: Any, what: str) -> bool | None:
        return bool(metadata["from"] <= what < metadata["to"])


@pytest.mark.parametrize(
    ("what", "txids", "unknown"), [("2026-01-01T06", (1,), 1), ("2026-01-02T06", (), 1), ("run 2", (2,), 0)]
)
def test_a_query_by_days_asks_the_source_for_the_days_of_runs_that_are_beyond_the_history(
    what: str, txids: tuple[int, ...], unknown: int
) -> None:
    books = kept()
    books.pipeline.run("interval:2026-01-01T00:00:00+00:00/2026-01-02T00:00:00+00:00")
    books.pipeline.run("run 2")
    books.pipeline.metadata = lambda row: {"from": "2025-01-01", "to": "2025-01-02"}
    books.pipeline.amount = lambda metadata: 1
    books.pipeline.run("run 3")
    books.store.multi([], [Delete(books.history(txid)) for txid in (1, 2)])
    found = search_ledger(books.pipeline.ledger, Dated(), what, seconds=60)
    assert (found.txids, found.unknown, found.complete) == (txids, unknown, True)


# --- changed by hand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("birth", "another", "the book says birth"),
        ("key", "another", "the book says key"),
        ("outcome", "SKIPPED", "the book says outcome"),
        ("rows", {"s0": 7}, "the book says rows"),
        ("first", 1, "the book says first 1"),
        ("end", 9, "the book says end 9"),
    ],
)
def test_verify_finds_a_changed_field_in_a_line_of_the_book_of_ends(field: str, value: Any, words: str) -> None:
    books = kept().run(3)
    books.change(books.pipeline.paths.page(0), lambda page: page["lines"][1].update({field: value}))
    assert any(words in each and "transaction 2" in each for each in books.verify().findings)


def test_verify_finds_a_missing_line_in_the_book_of_ends() -> None:
    books = kept().run(3)
    books.change(books.pipeline.paths.page(0), lambda page: page["lines"].pop(1))
    assert books.verify().findings == ("transaction 2: it is final, and has no line in the book, which begins at 1",)


def test_verify_finds_a_changed_upstream_range_in_a_line_of_the_book_of_ends(downstream: Books) -> None:
    downstream.run(3)
    change = {"first": 1, "last": 2}
    downstream.change(downstream.pipeline.paths.page(0), lambda page: page["lines"][1]["taken"].update(change))
    assert any("the book says taken" in each for each in downstream.verify().findings)
