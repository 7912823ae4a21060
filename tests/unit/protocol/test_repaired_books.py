"""What `verify` says of repaired ledgers: what a repair explains is a note, and anything else is a finding."""

from __future__ import annotations

import copy
import json

import pytest

from airflow_tx.base.errors import NotSkipped, SkippedTransaction
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.json_text import as_kept, replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import Binding, Skipped
from airflow_tx.ledger.steps.end import note_readmission
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from tests.unit.protocol.books import Books

ADA = Audit("ada", "the disk is gone")


def repair(books: Books) -> None:
    """Rebuild the ledger from the states."""
    held = [
        HeldState.of(state.name, undoable=True, fence=state.fence(), receipts=state.receipts())
        for state in books.states
    ]
    Repairs(books.pipeline.ledger).ledger_lost(held, books.pipeline.request, ADA)


def lose(books: Books) -> None:
    """Lose the ledger as a whole, and rebuild it."""
    books.store = books.pipeline.store = MemoryStore()
    repair(books)


def reset(books: Books) -> None:
    def clear() -> None:
        for state in books.states:
            state.clear()

    Repairs(books.pipeline.ledger).reset(books.pipeline.request, ADA, clear=clear)


def with_totals(books: Books) -> Verified:
    states = zip(books.evidence, books.states, strict=True)
    return verified(books.ledger, [replace(each, totals=state.totals(["n"])) for each, state in states])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_verify_has_no_finding_for_a_ledger_that_was_lost_and_rebuilt_several_times(times: int) -> None:
    books = Books().run(3)
    for _ in range(times):
        lose(books)
        assert books.verify().findings == ()
        books.run(2)
        assert books.verify().findings == ()
    notes = " ".join(books.verify().notes)
    assert notes.count("complete in every state") + notes.count("then lost again") == times


def test_verify_reports_a_chain_of_receipts_that_begins_again_without_a_repair() -> None:
    books = Books().run(3)
    lose(books)
    books.run(2)
    lose(books)
    books.run(1)
    ledger = books.ledger
    found = verified(replace(ledger, repairs=[]), books.evidence)
    assert any("follows receipt none" in each for each in found.findings)


@pytest.mark.parametrize("history", [1000, 2])
@pytest.mark.parametrize("again", [False, True])
def test_verify_has_no_finding_for_a_rebuilt_ledger_that_went_back_before_the_rebuild(
    history: int, again: bool
) -> None:
    books = Books(history).run(3)
    before = copy.deepcopy(books.store._nodes)
    books.run(3)
    books.store._nodes = before
    repair(books)
    assert books.verify().findings == ()
    lost = "transactions 4 to 6: the ledger has lost them; the receipts of the states alone vouch for them"
    assert lost in books.verify().notes
    books.run(2)
    if again:
        before = copy.deepcopy(books.store._nodes)
        books.run(2)
        books.store._nodes = before
        repair(books)
        books.run(1)
    assert books.verify().findings == ()
    assert books.verify().first is not None


def test_verify_reports_a_changed_receipt_from_the_lost_time() -> None:
    books = Books().run(3)
    before = copy.deepcopy(books.store._nodes)
    books.run(3)
    books.store._nodes = before
    repair(books)
    books.run(1)
    state = books.states[0].database
    state.receipts = [replace(each, hash="0") if each.txid == 5 else each for each in state.receipts]
    assert any("transaction 5" in each for each in books.verify().findings)


def test_values_are_compared_again_after_a_reset() -> None:
    books = Books(added=["n"]).run(3)
    lose(books)
    books.run(1)
    assert any("values were not compared" in each for each in with_totals(books).notes)
    reset(books)
    books.run(2)
    found = with_totals(books)
    assert (found.findings, [each for each in found.notes if "not compared" in each]) == ((), [])
    books.states[0].database.rows.clear()
    assert any("its column n adds up to 0" in each for each in with_totals(books).findings)


def test_a_repair_before_a_reset_does_not_explain_a_gap_after_it() -> None:
    books = Books().run(3)
    lose(books)
    books.run(1)
    lose(books)
    reset(books)
    books.run(3)
    books.change(books.history(2), lambda record: record["receipt"].update(previous=""))
    assert books.verify().findings != ()


@pytest.mark.parametrize("gone_back", [False, True])
@pytest.mark.parametrize("after", [1, 2])
def test_a_skip_of_the_lost_time_is_restored_and_its_transaction_can_be_readmitted(gone_back: bool, after: int) -> None:
    books = Books().run(2)
    before = copy.deepcopy(books.store._nodes)
    if gone_back:
        books.pipeline.begin("run 3")
        before = copy.deepcopy(books.store._nodes)
    books.skip()
    books.run(after)
    books.store._nodes = before if gone_back else {}
    books.store.ensure("/tx")
    repair(books)
    skipped = Reader(books.store).get(Skipped, books.pipeline.paths.skipped(3))
    assert (skipped.key, skipped.run_id, skipped.rows, skipped.skip.why) == ("run 3", "run 3", 3, "why")
    assert books.verify().findings == ()
    with pytest.raises(SkippedTransaction):
        books.pipeline.begin("run 3")
    books.pipeline.ledger.run(note_readmission, 3, ADA)
    begun = books.pipeline.begin("run 3")
    assert (begun.attempt.txid, begun.metadata) == (3 + after + 1, 3)


def test_a_readmission_of_the_lost_time_is_not_repeated() -> None:
    books = Books().run(2)
    before = copy.deepcopy(books.store._nodes)
    books.skip()
    skipped = copy.deepcopy(books.store._nodes)
    books.pipeline.ledger.run(note_readmission, 3, ADA)
    books.pipeline.run("run 3")
    books.run(1)
    for nodes in (before, skipped, {}):
        books.store._nodes = copy.deepcopy(nodes)
        books.store.ensure("/tx")
        repair(books)
        assert books.verify().findings == ()
        assert Reader(books.store).get(Binding, books.pipeline.paths.run("run 3")).txid == 4
        assert Reader(books.store).get(Skipped, books.pipeline.paths.skipped(3)).rows is None
        with pytest.raises(NotSkipped, match="re-admitted as 4"):
            books.pipeline.ledger.run(note_readmission, 3, ADA)


def test_the_repair_names_rows_that_are_too_long_for_a_receipt() -> None:
    books = Books().run(2)
    books.skip()
    books.run(1)
    for state in books.states:
        (own,) = [each for each in state.database.receipts if each.txid == 3]
        made = replace(Receipt.from_json(json.loads(own.text)), metadata=as_kept("x" * 20_000, 100))
        state.database.keep(made)
    lose(books)
    (noted,) = books.ledger.repairs
    assert noted.told.endswith("; the rows of skipped transaction 3 are lost, as its receipt keeps their digest alone")
