"""What `airflow tx repair --back` makes of restatements, skips and re-admissions that it takes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import AlreadyFinal, RestateRefused
from airflow_tx.ledger.audit.rebuild import note_change
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import Binding, Skipped, TransactionRecord
from airflow_tx.ledger.steps.end import note_readmission, note_skip
from airflow_tx.operations.actions.return_to_transaction import held_by
from tests.unit.commit.backups import ADA, InSqlite, findings, skipped
from tests.unit.commit.restated_run import Makes, begun, committed, entry_of, rows
from tests.unit.commit.run import Run


def taken_back(run: Run, place: Any, txid: int) -> str:
    ledger = run.spec.ledger(run.spec.memory)
    held = held_by({place.state.name: place.state}, ledger.incarnation())
    return str(ledger.back(txid, audit=ADA, **held).summary)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    return InSqlite(tmp_path, "opaque")


@pytest.fixture
def made(make: Any, place: Any) -> Makes:
    return Makes(make, place)


def test_a_transaction_becomes_current_again_after_its_restatement_was_taken_back(place: Any, made: Makes) -> None:
    run = committed(made, rows(a=1))
    entry = entry_of(run, 1)
    restore = place.backup()
    committed(made, rows(a=5), instead_of=1)
    run = begun(made, rows(a=7), instead_of=2)
    restore()
    assert "2 to 3 are taken back" in taken_back(run, place, 1)
    paths = run.spec.paths
    assert Reader(run.spec.memory).peek(Binding, paths.run("run 1")) == Binding(1, entry)
    last = committed(made, rows(a=30), instead_of=1)
    assert last.begun.txid == 4
    assert findings(last, place) == ()
    assert {row["word"]: row["count"] for row in place.state.read()} == {"a": 30}


def test_a_transaction_that_was_taken_back_cannot_be_restated(place: Any, made: Makes) -> None:
    committed(made, rows(a=1))
    restore = place.backup()
    run = committed(made, rows(a=5))
    restore()
    taken_back(run, place, 1)
    with pytest.raises(RestateRefused, match="repair --back has taken it back"):
        begun(made, rows(a=7), instead_of=2)


def test_a_transaction_that_was_taken_back_is_not_listed_as_committed(place: Any, made: Makes) -> None:
    committed(made, rows(a=1))
    restore = place.backup()
    run = committed(made, rows(a=5))
    restore()
    taken_back(run, place, 1)
    with pytest.raises(AlreadyFinal, match="Transaction 2 is taken back"):
        run.spec.ledger(run.spec.memory).run(note_skip, 2, ADA)


def test_a_transaction_whose_readmission_was_taken_back_can_be_readmitted_again(place: Any, made: Makes) -> None:
    run = skipped(made, rows(a=1), written=False)
    committed(made, rows(b=2))
    restore = place.backup()
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(note_readmission, 1, ADA)
    run.begin()
    restore()
    assert "3 to 3 are taken back" in taken_back(run, place, 2)
    read, paths = Reader(run.spec.memory), run.spec.paths
    kept = read.peek(Skipped, paths.skipped(1))
    history = read.peek(TransactionRecord, paths.history(1))
    assert (kept.readmitted_as, history.final.outcome, history.final.readmitted_as) == (None, Outcome.SKIPPED, None)
    assert kept.rows is not None
    assert read.peek(Binding, paths.run(run.run_id)).txid == 1
    assert findings(run, place) == ()


def test_skips_after_the_restored_backup_are_deleted_from_the_ledger(place: Any, made: Makes) -> None:
    committed(made, rows(b=2))
    restore = place.backup()
    run = skipped(made, rows(a=1), written=False)
    restore()
    taken_back(run, place, 1)
    assert Reader(run.spec.memory).peek_if_any(Skipped, run.spec.paths.skipped(2)) is None
    assert findings(run, place) == ()


def test_a_later_change_by_hand_is_removed_when_its_transactions_are_taken_back(place: Any, made: Makes) -> None:
    run = committed(made, rows(a=1))
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(note_change, place.state.name, {}, keys=[], receipt=ledger.topology().receipt, audit=ADA)
    place.state.accept_values(1)
    restore = place.backup()
    committed(made, rows(a=5))
    ledger.run(note_change, place.state.name, {"count": 3}, keys=[], receipt=ledger.topology().receipt, audit=ADA)
    place.state.accept_values(2)
    restore()
    taken_back(run, place, 1)
    last = committed(made, rows(a=30))
    assert findings(last, place) == ()
    assert {row["word"]: row["count"] for row in place.state.read()} == {"a": 31}
