"""What decides later transactions: whatever of it is changed by hand, `verify` finds it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.ledger.api import Create, Delete, Put
from airflow_tx.ledger.audit.chain import Chain, expected
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, rename_state, state_lost
from airflow_tx.ledger.audit.verification import compare_decisive
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Deed
from airflow_tx.ledger.records import Binding, Counter, Loss, Skipped, encode
from airflow_tx.ledger.steps import end
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from tests.unit.protocol.books import Books

ADA = Audit("ada", "why")
WHEN = "2013-01-01T00:00:00+00:00"
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def books() -> Books:
    """Three transactions are committed, 4 is skipped, 5 is skipped and re-admitted as 6, 7 is granted, 8 is open."""
    made = Books().run(3)
    made.skip()
    made.skip()
    pipeline = made.pipeline
    pipeline.ledger.run(end.note_readmission, 5, ADA)
    pipeline.run("run 5")
    begun = pipeline.begin("run 7")
    pipeline.acquire(begun, pipeline.process(begun))
    pipeline.begin("run 8")
    return made


def findings(books: Books, *words: str) -> tuple[str, ...]:
    found = books.verify().findings
    assert any(all(word in each for word in words) for each in found), found
    return found


def test_verify_does_not_report_skips_and_readmissions_and_open_transactions(books: Books) -> None:
    assert books.verify().findings == ()
    assert books.verify(first=2, last=3).findings == ()


# --- the topology record ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("generation", 2, "its generation is 2, but after its repairs it must be 1"),
        ("generation", 0, "its generation is 0"),
        ("rebuilt", 3, "rebuilt after transaction 3, but no repair has rebuilt it"),
        ("births", {}, "birth none of transaction 6"),
        ("births", {"s0": "another", "s1": "another"}, "birth another of transaction 6"),
        ("grants", {"s0": [7, 9]}, "attempt 7 and epoch 9 of transaction 6"),
        ("losses", [7], "lists repair 7 as an accepted loss, but that repair accepted no loss"),
        ("skips", [8], "lists the skips [8]"),
        ("states", {}, "state s0: transaction 6 was committed to it, but the ledger does not name it"),
        ("garbage", ["coordinator/meta"], "coordinator/meta must be deleted, but that record is still needed"),
        ("receipt", "0" * 64, "the topology record names 0000"),
        ("incarnation", "another", "ledger another"),
    ],
)
def test_verify_finds_a_changed_field_of_the_topology_record(books: Books, field: str, value: Any, words: str) -> None:
    books.change(books.pipeline.paths.record, lambda record: record.update({field: value}))
    findings(books, words)


def test_verify_finds_a_renamed_state_that_the_ledger_does_not_contain() -> None:
    books = Books().run(3)
    books.pipeline.ledger.run(rename_state, "s0", "s2", audit=ADA)
    assert decisive_findings(books) == []
    books.change(books.pipeline.paths.record, lambda record: record["states"].pop("s2"))
    assert "state s2: transaction 3 was committed to it, but the ledger does not name it" in decisive_findings(books)


def test_verify_does_not_report_a_loss_that_was_accepted_before_a_state_was_renamed() -> None:
    books = Books().run(3)
    books.pipeline.begin("run 4")
    books.change(books.pipeline.paths.transaction(4), lambda record: record.update(fenced=["s0"]))
    books.pipeline.ledger.run(state_lost, "s0", ADA)
    books.pipeline.ledger.run(rename_state, "s0", "s2", audit=ADA)
    assert [each for each in decisive_findings(books) if each.startswith("state ")] == []


def test_verify_finds_a_skip_that_was_removed_from_the_list_of_skips(books: Books) -> None:
    books.pipeline.ledger.run(end.note_skip, 8, ADA)
    assert books.verify().findings == ()
    books.change(books.pipeline.paths.record, lambda record: record.update(skips=[]))
    findings(books, "it lists the skips [], but the open transactions name the skips [8]")


def test_verify_finds_a_removed_accepted_loss_until_a_batch_has_passed_it_in_the_source() -> None:
    books = Books().run(3)
    books.pipeline.ledger.accept_loss([Loss("", 3, 3, "row x")], ADA)
    assert books.verify().findings == ()
    books.change(books.pipeline.paths.record, lambda record: record.update(losses=[]))
    findings(books, "it lacks accepted loss 1, which the source reaches next")
    books.change(books.pipeline.paths.record, lambda record: record.update(losses=[1]))
    books.run(2)
    assert books.pipeline.ledger.topology().losses == []
    assert books.verify().findings == ()


def rebuilt_books() -> Books:
    """Two more transactions are lost with the ledger, which is rebuilt, and goes on with one."""
    books = Books().run(3)
    held = [HeldState.of(state.name, undoable=True, fence=state.fence()) for state in books.states]
    books.store = books.pipeline.store = MemoryStore()
    Repairs(books.pipeline.ledger).ledger_lost(held, books.pipeline.request, ADA)
    return books


@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("rebuilt", [0, 2, 4])
def test_verify_finds_a_changed_last_transaction_in_a_rebuilt_ledger(more: int, rebuilt: int) -> None:
    books = rebuilt_books().run(more)
    assert books.pipeline.ledger.topology().rebuilt == 3
    assert books.verify().findings == ()
    books.change(books.pipeline.paths.record, lambda record: record.update(rebuilt=rebuilt))
    findings(books, f"rebuilt after transaction {rebuilt}, and the receipts say after 3")


@pytest.mark.parametrize("generation", [1, 3])
@pytest.mark.parametrize("what", ["lost", "renamed", "rebuilt"])
def test_verify_finds_a_changed_generation_after_a_repair(what: str, generation: int) -> None:
    books = rebuilt_books() if what == "rebuilt" else Books().run(3)
    if what == "lost":
        books.pipeline.ledger.run(state_lost, "s0", ADA)
    elif what == "renamed":
        books.pipeline.ledger.run(rename_state, "s0", "s2", audit=ADA)
    assert [each for each in books.verify().findings if "ledger" in each] == []
    books.change(books.pipeline.paths.record, lambda record: record.update(generation=generation))
    findings(books, f"its generation is {generation}, but after its repairs it must be 2")


# --- counters, open transactions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("allocated", [5, 7, 9])
def test_verify_finds_a_changed_number_of_allocated_transactions(books: Books, allocated: int) -> None:
    books.store.multi([], [Put(books.pipeline.paths.allocated, encode(Counter(allocated)))])
    findings(books, "allocated" if allocated != 7 else "only transactions 7 to 7 can be open")


def test_verify_finds_a_missing_open_transaction(books: Books) -> None:
    books.store.multi([], [Delete(books.pipeline.paths.transaction(8))])
    findings(books, "transaction 8: the ledger has allocated all transactions up to 8, but this one has no record")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 99}, "its rows are 99, but its record has the digest of other rows"),
        ({"position": 99}, "it ends at 99"),
    ],
)
@pytest.mark.parametrize("txid", [7, 8])
def test_verify_finds_changed_rows_of_an_open_transaction(
    books: Books, txid: int, change: dict[str, Any], words: str
) -> None:
    books.change(books.pipeline.paths.meta(txid), lambda record: record.update(change))
    findings(books, f"transaction {txid}: {words}")


def test_verify_finds_missing_rows_of_an_open_transaction(books: Books) -> None:
    books.store.multi([], [Delete(books.pipeline.paths.meta(8))])
    findings(books, "transaction 8: it is open, and its rows are missing")


@pytest.mark.parametrize("field", ["attempt", "epoch", "nonce", "birth", "key", "run_id", "metadata", "previous"])
def test_verify_finds_a_changed_receipt_in_the_record_of_an_open_transaction(books: Books, field: str) -> None:
    path = books.pipeline.paths.transaction(7)
    books.change(
        path, lambda record: record["receipt"].update({field: 9 if field in ("attempt", "epoch") else "another"})
    )
    findings(books, "transaction 7: ", "its prepared receipt")


# --- skipped transactions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"rows": 99}, {"key": "run 9"}, {"run_id": "run 9"}, {"skip": {"who": "bob", "when": WHEN, "why": "why"}}],
)
def test_verify_finds_changed_rows_of_a_skipped_transaction(books: Books, change: dict[str, Any]) -> None:
    books.change(books.pipeline.paths.skipped(4), lambda record: record.update(change))
    findings(books, "transaction 4: its kept rows ")


@pytest.mark.parametrize("again", [2, 6, 99])
def test_verify_finds_a_skipped_transaction_that_is_wrongly_marked_as_readmitted(books: Books, again: int) -> None:
    books.change(books.pipeline.paths.skipped(4), lambda record: record.update(rows=None, readmitted_as=again))
    findings(books, f"transaction 4: the ledger says that its rows are in transaction {again}")


def test_verify_finds_a_readmission_that_was_undone_by_hand(books: Books) -> None:
    books.change(books.pipeline.paths.skipped(5), lambda record: record.update(rows=5, readmitted_as=None))
    findings(
        books,
        "transaction 5: it was re-admitted as transaction 6, but the ledger says "
        "that its rows can be re-admitted again",
    )


def test_verify_finds_a_skipped_transaction_without_its_rows(books: Books) -> None:
    books.store.multi([], [Delete(books.pipeline.paths.skipped(4))])
    findings(books, "transaction 4: it was skipped, but its rows are not kept")


def test_verify_finds_a_committed_transaction_that_is_still_listed_as_skipped(books: Books) -> None:
    record = Skipped("run 2", "run 2", 2, Deed("ada", WHEN, "why"), "op")
    books.store.multi([], [Create(books.pipeline.paths.skipped(2), encode(record))])
    findings(books, "transaction 2: it was committed, but the ledger keeps it as skipped")


# --- bindings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["run 2", "run 4", "run 5", "run 7", "run 8"])
@pytest.mark.parametrize("txid", [None, 1, 99])
def test_verify_finds_a_changed_or_missing_binding_of_a_run(books: Books, run: str, txid: int | None) -> None:
    path = books.pipeline.paths.run(run)
    books.store.multi([], [Delete(path) if txid is None else Put(path, encode(Binding(txid)))])
    findings(books, f"its run '{run}' is ")


def test_a_run_with_two_committed_transactions_is_bound_to_the_later_one() -> None:
    """The run was cleared after its binding was lost with the ledger."""
    books = Books().run(2)
    again = replace(books.receipt(2), key="run 1")
    assert expected({1: books.receipt(1), 2: again}, [], {}).bindings == {"run 1": Binding(2)}


@pytest.mark.parametrize("txid", [0, 2, 4, 8, 99])
def test_verify_finds_a_bound_run_without_a_transaction(books: Books, txid: int) -> None:
    books.store.multi([], [Create(books.pipeline.paths.run("run 99"), encode(Binding(txid)))])
    findings(books, "run 'run 99'", "is bound to")


# --- histories ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, {"rows": 99, "why": "x"}])
def test_verify_finds_a_changed_batch_size_in_the_history(size: Any) -> None:
    books = Books(sized=True).run(3)
    assert books.verify().findings == ()
    books.change(books.history(2), lambda record: record.update(size=size))
    findings(books, "transaction 2: the ledger says size ")


def test_verify_finds_a_batch_size_although_the_source_counts_nothing() -> None:
    books = Books().run(3)
    books.change(books.history(2), lambda record: record.update(size={"rows": 5}))
    findings(books, "transaction 2: the ledger says size ")


# --- repairs ------------------------------------------------------------------------------------------------------


def decisive_findings(books: Books) -> list[str]:
    """What is found of what decides later transactions alone."""
    ledger = books.ledger
    chain = Chain(ledger, books.evidence, 1, ledger.current - 1)
    chain.findings.clear()
    compare_decisive(chain, books.evidence, whole=True)
    return chain.findings


@pytest.mark.parametrize("moment", ["final", "begun", "granted", "written"])
@pytest.mark.parametrize("lost", [1, 2])
def test_verify_has_no_finding_for_a_ledger_that_went_back_and_was_rebuilt(moment: str, lost: int) -> None:
    books = Books().run(3)
    pipeline = books.pipeline
    begun = pipeline.begin("run 4")
    grant = None if moment == "begun" else pipeline.acquire(begun, pipeline.process(begun))
    if moment in ("written", "final"):
        assert grant is not None
        pipeline.write(grant, begun.metadata)
        if moment == "final":
            pipeline.mark(grant)
    books.ran = 4
    before = copy.deepcopy(books.store._nodes)
    if moment != "final":
        grant = grant or pipeline.acquire(begun, pipeline.process(begun))
        pipeline.write(grant, begun.metadata)
        pipeline.mark(grant)
    books.run(lost)
    books.store._nodes = before
    for _ in range(2):
        held = [HeldState.of(state.name, undoable=True, fence=state.fence()) for state in books.states]
        Repairs(pipeline.ledger).ledger_lost(held, pipeline.request, ADA)
        assert decisive_findings(books) == []
        books.run(1)
        pipeline.begin(f"run open {books.ran}")
        assert decisive_findings(books) == []


def test_verify_does_not_report_losses_that_were_accepted_before_a_reset() -> None:
    books = Books().run(3)
    books.pipeline.ledger.accept_loss([Loss("", 3, 5, "row 4")], ADA)
    books.run(1)

    def clear() -> None:
        for state in books.states:
            state.clear()

    Repairs(books.pipeline.ledger).reset(books.pipeline.request, ADA, clear=clear)
    books.run(3)
    assert books.verify().findings == ()
