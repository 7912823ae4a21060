"""The rows of each transaction in a table, counted and compared with the receipts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_tx.ledger.audit.chain import StateEvidence
from airflow_tx.ledger.audit.verification import Verified, verified
from tests.unit.protocol.books import Books


@pytest.fixture(scope="module")
def books() -> Books:
    return Books(added=["n"]).run(5)


def receipts_say(state: StateEvidence) -> dict[int | None, int]:
    """How many rows each receipt of a state says."""
    return {each.txid: json.loads(each.text)["written"][state.name]["keys"] for each in state.receipts or ()}


def compared(books: Books, rows: Mapping[int | None, int]) -> Verified:
    one, two = books.evidence
    return verified(books.ledger, [replace(one, rows=rows), two])


def test_verify_has_no_finding_for_a_table_with_the_rows_of_its_receipts(books: Books) -> None:
    found = receipts_say(books.evidence[0])
    assert set(found) == {1, 2, 3, 4, 5}
    assert compared(books, found) == Verified(1, 5, (), ())
    # Rows of nobody are no business of a transaction.
    assert compared(books, {**found, None: 7}) == Verified(1, 5, (), ())


def test_verify_reports_missing_and_duplicate_rows_of_a_table(books: Books) -> None:
    found = receipts_say(books.evidence[0])
    rows = found.pop(2)
    (missing,) = compared(books, found).findings
    assert "2" in missing
    assert f"has 0 rows of it instead of {rows}" in missing
    (twice,) = compared(books, {**found, 2: 2 * rows}).findings
    assert f"has {2 * rows} rows of it instead of {rows}" in twice


def test_verify_expects_no_rows_of_a_transaction_that_was_restated() -> None:
    books = Books(added=["n"], journals=True)
    books.run(3)
    assert books.pipeline.restate(1, "run 1", 5) == 4
    found = receipts_say(books.evidence[0])
    assert compared(books, {**found, 1: 0}).findings == ()
    (left,) = compared(books, found).findings
    assert f"has {found[1]} rows of it instead of 0" in left


def test_the_rows_of_a_table_are_not_compared_while_a_writer_changes_them(books: Books) -> None:
    one, two = books.evidence
    assert one.fence is not None
    writing = replace(one, rows={}, fence=replace(one.fence, applied=False))  # type: ignore[type-var]
    said = verified(books.ledger, [writing, two])
    assert any("its rows were not compared: it was being written to" in note for note in said.notes)
