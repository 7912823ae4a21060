"""A table of a database that people change while a process keeps its state open, as a lane does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import StateBehind, StateDiffers, StateError, StateUnavailable
from airflow_tx.state import SqlTable
from airflow_tx.state.sql import fence
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query

ROWS = [{"id": 1, "note": "x"}]
Run = Callable[[str], Any]


@pytest.fixture
def run(url: str, table: str) -> Run:
    """Runs a statement about the table t."""
    return lambda statement: query(url, statement.replace("{t}", table))


@pytest.fixture
def state(url: str, table: str, grants: Grants) -> SqlTable:
    """A state that has committed two transactions, and is kept."""
    state = SqlTable.from_url(url, table=table)
    for txid in (1, 2):
        grants.commit_rows(txid, state, ROWS)
    return state


@pytest.mark.parametrize("change", ["DROP TABLE {t}", "DELETE FROM {t}", "DELETE FROM {t} WHERE tx_txid = 2"])
def test_rows_that_are_gone_are_noticed_by_the_next_transaction(
    state: SqlTable, grants: Grants, run: Run, change: str
) -> None:
    run(change)
    for attempt in (1, 2):
        with pytest.raises(StateBehind, match="airflow tx repair"):
            grants.commit_rows(3, state, ROWS, attempt)


def test_a_database_that_was_restored_from_an_older_copy_is_noticed(
    url: str, table: str, grants: Grants, run: Run
) -> None:
    state = SqlTable.from_url(url, table=table)
    grants.commit_rows(1, state, ROWS)
    own = "FROM airflow_tx_fence WHERE state LIKE '%{t}'"
    run(f"CREATE TABLE {{t}}_copy AS SELECT * {own}")
    grants.commit_rows(2, state, ROWS)
    run(f"DELETE {own}")
    run("INSERT INTO airflow_tx_fence SELECT * FROM {t}_copy")
    run("DELETE FROM {t} WHERE tx_txid = 2")
    with pytest.raises(StateBehind, match="committed transaction 2 to it, its fence says 1"):
        grants.commit_rows(3, state, ROWS)
    run("DROP TABLE {t}_copy")


def test_a_column_that_was_dropped_is_named_by_the_second_try(state: SqlTable, grants: Grants, run: Run) -> None:
    run("ALTER TABLE {t} DROP COLUMN note")
    with pytest.raises(StateError, match="note.* No row of this update was written") as first:
        grants.commit_rows(3, state, ROWS)
    assert not isinstance(first.value, StateUnavailable)
    with pytest.raises(StateDiffers, match="lacks column note of the rows") as second:
        grants.commit_rows(3, state, ROWS, 2)
    run(str(second.value).rpartition(": ")[2])
    grants.commit_rows(3, state, ROWS, 3)
    assert [row["note"] for row in state.read()] == [None, None, "x"]


def test_a_column_that_was_dropped_is_added_by_the_second_try_if_the_table_may_get_it(
    state: SqlTable, grants: Grants, run: Run
) -> None:
    state.add_columns = state._store._adds_columns = True
    run("ALTER TABLE {t} DROP COLUMN note")
    with pytest.raises(StateError, match="note"):
        grants.commit_rows(3, state, ROWS)
    grants.commit_rows(3, state, ROWS, 2)
    assert [row["note"] for row in state.read()] == [None, None, "x"]


def test_a_table_that_was_made_anew_gets_the_next_rows(state: SqlTable, grants: Grants, run: Run) -> None:
    run("CREATE TABLE {t}_copy AS SELECT id, tx_txid FROM {t}")
    run("DROP TABLE {t}")
    run("ALTER TABLE {t}_copy RENAME TO {t}")
    run("CREATE INDEX {t}_i ON {t} (tx_txid)")
    rows = [{"id": 5}]
    with pytest.raises(StateError, match="tx_row"):
        grants.commit_rows(3, state, rows)
    grants.commit_rows(3, state, rows, 2)
    assert [row["id"] for row in state.read()] == [1, 1, 5]


def test_a_column_whose_type_was_changed_is_noticed_after_some_seconds(
    state: SqlTable, grants: Grants, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("CREATE TABLE {t}_copy AS SELECT id, tx_txid FROM {t}")
    run("DROP TABLE {t}")
    run("CREATE TABLE {t} (id BIGINT, note BIGINT, tx_row BIGINT, tx_txid BIGINT)")
    run("INSERT INTO {t} (id, tx_txid) SELECT id, tx_txid FROM {t}_copy")
    run("CREATE INDEX {t}_i ON {t} (tx_txid)")
    run("DROP TABLE {t}_copy")
    monkeypatch.setattr(fence, "LOOK_AGAIN", 0)
    with pytest.raises(StateError, match="row 0, column note: '7' is not an integer"):
        grants.commit_rows(3, state, [{"id": 1, "note": "7"}])
