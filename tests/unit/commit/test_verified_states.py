"""What `airflow tx verify --values` says of real states that have lost, or have too much."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.rebuild import note_change, state_lost
from airflow_tx.ledger.audit.verification import RowCount, Verified, changed_values, verified
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.state.sql.table import SqlTable
from tests.unit.commit.backups import ADA, InSqlite, findings, rolled, skipped
from tests.unit.commit.restated_run import Makes, committed, rows
from tests.unit.commit.run import Run


def of(run: Run, place: Any) -> Verified:
    ledger = ledger_evidence(run.spec.memory, run.spec.paths)
    return verified(ledger, evidence_of({place.state.name: place.state}, values=True))


class Table(SimpleNamespace):
    """A table of rows in SQLite, of which transactions 1 and 2 are committed, and 3 is skipped."""

    def __init__(self, folder: Path, make: Any) -> None:
        self.file = folder / "rows.db"
        super().__init__(state=SqlTable.from_url(f"sqlite:///{self.file}", table="rows"))
        self.made = Makes(make, self)
        for given in ({"a": 1}, {"b": 2}):
            self.run = committed(self.made, rows(**given))
        self.run = skipped(self.made, rows(c=3), written=False)

    def copied(self, by: int) -> None:
        """A person copies the rows of transaction 1."""
        with sqlite3.connect(self.file) as connection:
            connection.execute(
                "INSERT INTO rows SELECT tx_txid + ?, tx_row, word, count FROM rows WHERE tx_txid = 1", (by,)
            )

    def accept(self) -> None:
        evidence = ledger_evidence(self.run.spec.memory, self.run.spec.paths)
        name = self.state.name
        changed = changed_values(evidence, evidence_of({name: self.state}, values=True), name)
        counts = {each.txid: each.rows for each in changed if isinstance(each, RowCount)}
        step = partial(note_change, rows=counts, keys=[], receipt=evidence.topology.receipt, audit=ADA)
        self.run.spec.ledger(self.run.spec.memory).run(step, name, {})
        topology = self.run.spec.ledger(self.run.spec.memory).topology()
        self.state.accept_values(topology.accepted[self.state.name]["change"])


@pytest.fixture
def table(tmp_path: Path, make: Any) -> Table:
    return Table(tmp_path, make)


@pytest.mark.parametrize("by", [3, 100], ids=["of the next one", "of none"])
def test_verify_reports_rows_with_a_txid_that_has_no_receipt(table: Table, by: int) -> None:
    assert findings(table.run, table) == ()
    table.copied(by)
    (found,) = findings(table.run, table)
    assert found == f"state {table.state.name}: it has 1 rows of transaction {1 + by}, which has no receipt"


def test_verify_reports_rows_of_a_skipped_transaction(table: Table) -> None:
    table.copied(2)
    (found,) = findings(table.run, table)
    assert found == f"transaction 3: state {table.state.name} has 1 rows of it instead of 0"


def test_rows_without_a_transaction_can_be_accepted_until_a_transaction_gets_their_txid(table: Table) -> None:
    table.copied(100)
    table.accept()
    assert findings(table.run, table) == ()
    with sqlite3.connect(table.file) as connection:
        connection.execute("UPDATE rows SET tx_txid = 4 WHERE tx_txid = 101")
    table.accept()
    with sqlite3.connect(table.file) as connection:
        connection.execute("DELETE FROM rows WHERE tx_txid = 4")
    table.state.accept_values()
    run = committed(table.made, rows(d=4, e=5))
    assert findings(run, table) == ()


@pytest.fixture
def lost(tmp_path: Path, make: Any) -> Any:
    """A state that went back to transaction 1 of 3."""
    place: Any = InSqlite(tmp_path, "opaque")
    place.made = Makes(make, place)
    place.run = committed(place.made, rows(a=1))
    place.back = place.backup()
    for given in ({"b": 20}, {"c": 300}):
        place.run = committed(place.made, rows(**given))
    place.whole = place.backup()
    place.back()
    return place


def accept(lost: Any) -> None:
    lost.run.spec.ledger(lost.run.spec.memory).run(state_lost, lost.state.name, ADA)


def test_verify_names_transactions_that_a_person_has_given_up(lost: Any) -> None:
    assert of(lost.run, lost).given_up == ()
    accept(lost)
    run = committed(lost.made, rows(d=4))
    (told,) = of(run, lost).given_up
    assert told.startswith(f"state {lost.state.name}: transactions 2 to 3 were given up by repair 1 (ada, ")
    assert told.endswith(": the disk is gone)")


def test_verify_does_not_name_a_loss_after_a_roll_forward_has_restored_the_rows(lost: Any) -> None:
    accept(lost)
    assert rolled(lost.run, lost) == []
    assert of(lost.run, lost).given_up == ()


def test_verify_names_no_transaction_as_given_up_for_a_complete_state(lost: Any) -> None:
    lost.whole()
    accept(lost)
    assert of(lost.run, lost).given_up == ()
