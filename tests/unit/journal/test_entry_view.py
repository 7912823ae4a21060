"""What is shown of a transaction that the ledger has forgotten: what its journal entry says, if that counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tx.ledger.api import Create, Paths
from airflow_tx.ledger.records import Binding, encode
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.journal import JournalArea, forgotten_details
from airflow_tx.outputs.staging.area import StagingArea
from tests.unit.journal.entries import entry

PATHS = Paths("/tx", "flights")


@pytest.fixture
def journal(tmp_path: Path) -> JournalArea:
    return JournalArea(StagingArea(str(tmp_path), "ledger"), "life-1")


def bound(txid: int, name: str) -> MemoryStore:
    """A ledger that knows of the run only what counts."""
    store = MemoryStore()
    store.ensure(PATHS.runs)
    store.ensure(PATHS.wishes)
    store.multi([], [Create(PATHS.run("run:manual"), encode(Binding(txid, name)))])
    return store


def test_a_transaction_beyond_the_history_is_shown_with_the_run_and_batch_of_its_journal_entry(
    journal: JournalArea,
) -> None:
    found = forgotten_details(bound(7, journal.write(entry())), PATHS, journal, 7)
    assert found is not None
    assert found.batch is not None
    view = found.transaction
    assert (view.txid, view.document.run_id, view.status, found.batch.rows) == (
        7,
        "manual",
        "COMMITTED",
        {"files": ["a.csv"]},
    )
    assert forgotten_details(MemoryStore(), PATHS, journal, 8) is None


def test_a_restated_transaction_beyond_the_history_is_shown_with_its_newest_restatement(journal: JournalArea) -> None:
    first = journal.write(entry())
    second = journal.write(entry(12, replaces={"txid": 7, "entry": first}))
    store = bound(19, journal.write(entry(19, replaces={"txid": 12, "entry": second})))
    found = [forgotten_details(store, PATHS, journal, txid) for txid in (7, 12, 19)]
    views = [each.transaction for each in found if each is not None]
    assert [(each.document.restates, each.restated_by) for each in views] == [(None, 19), (7, 19), (12, None)]


def test_the_journal_entry_of_an_outranked_committer_is_never_used(journal: JournalArea) -> None:
    counts = journal.write(entry(metadata={"files": ["b.csv"]}))
    journal.write(entry())
    found = forgotten_details(bound(7, counts), PATHS, journal, 7)
    assert found is not None
    assert found.batch is not None
    assert found.batch.rows == {"files": ["b.csv"]}
    assert forgotten_details(bound(9, "2013-01-31/9-" + "0" * 64), PATHS, journal, 8) is None
