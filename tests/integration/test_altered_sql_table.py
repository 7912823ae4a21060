"""A table of a database that people change while a process keeps its state open, as a lane does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from airflow_tx.base.errors import StateBehind, StateDiffers, StateError
from airflow_tx.state import SqlState, SqlTable, Sum
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
def test_the_next_transaction_notices_deleted_rows(state: SqlTable, grants: Grants, run: Run, change: str) -> None:
    run(change)
    for attempt in (1, 2):
        with pytest.raises(StateBehind, match="airflow tx repair"):
            grants.commit_rows(3, state, ROWS, attempt)


def test_the_next_transaction_reports_a_database_that_was_restored_from_an_older_copy(
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


def test_a_dropped_column_is_refused_with_the_statement_that_adds_it_again(
    state: SqlTable, grants: Grants, run: Run
) -> None:
    run("ALTER TABLE {t} DROP COLUMN note")
    with pytest.raises(StateDiffers, match="lacks column note of the rows") as found:
        grants.commit_rows(3, state, ROWS)
    run(str(found.value).rpartition(": ")[2])
    grants.commit_rows(3, state, ROWS, 2)
    assert [row["note"] for row in state.read()] == [None, None, "x"]


def test_a_dropped_column_is_added_again_if_add_columns_is_set(state: SqlTable, grants: Grants, run: Run) -> None:
    state.add_columns = state._store._adds_columns = True
    run("ALTER TABLE {t} DROP COLUMN note")
    grants.commit_rows(3, state, ROWS)
    assert [row["note"] for row in state.read()] == [None, None, "x"]


def test_the_next_transaction_can_write_to_a_table_that_was_recreated_with_the_same_rows(
    state: SqlTable, grants: Grants, run: Run
) -> None:
    run("CREATE TABLE {t}_copy AS SELECT id, tx_txid FROM {t}")
    run("DROP TABLE {t}")
    run("ALTER TABLE {t}_copy RENAME TO {t}")
    run("CREATE INDEX {t}_i ON {t} (tx_txid)")
    grants.commit_rows(3, state, [{"id": 5}])
    assert [row["id"] for row in state.read()] == [1, 1, 5]


def test_the_next_transaction_reports_a_column_whose_type_was_changed(
    state: SqlTable, grants: Grants, run: Run
) -> None:
    run("CREATE TABLE {t}_copy AS SELECT id, tx_txid FROM {t}")
    run("DROP TABLE {t}")
    run("CREATE TABLE {t} (id BIGINT, note BIGINT, tx_row BIGINT, tx_txid BIGINT)")
    run("INSERT INTO {t} (id, tx_txid) SELECT id, tx_txid FROM {t}_copy")
    run("CREATE INDEX {t}_i ON {t} (tx_txid)")
    run("DROP TABLE {t}_copy")
    with pytest.raises(StateError, match="row 0, column note: '7' is not an integer"):
        grants.commit_rows(3, state, [{"id": 1, "note": "7"}])


# --- narrowed -----------------------------------------------------------------------------------------------------


NARROWED: dict[str, tuple[Any, str]] = {
    "fewer digits": (Decimal("1.005"), "NUMERIC(10,2)"),
    "no digits": (Decimal("1.5"), "BIGINT"),
    "half a float": (0.1, "FLOAT(24)"),
    "no microseconds": (dt.datetime(2026, 1, 2, 3, 4, 5, 6), "TIMESTAMP(0)"),
}
"""A value that its column keeps, and the type that the column gets then."""
ALTERED = pytest.mark.parametrize(
    "url", ["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)], indirect=True
)
"""The databases that change the type of a column."""


@pytest.fixture(params=list(NARROWED.values()), ids=list(NARROWED))
def narrowed(request: pytest.FixtureRequest, url: str, run: Run) -> tuple[Any, Run]:
    """A value, and what makes a column of the table t so narrow that it would be rounded."""
    value, kind = request.param
    postgres = url.startswith("postgresql")
    change = "ALTER TABLE {t} ALTER COLUMN %s TYPE %s" if postgres else "ALTER TABLE {t} MODIFY %s %s"
    given = kind if postgres else kind.replace("TIMESTAMP(0)", "DATETIME")
    return value, lambda column: run(change % (column, given))


@ALTERED
def test_an_open_state_rounds_no_value_after_one_of_its_columns_was_narrowed(
    url: str, table: str, grants: Grants, narrowed: tuple[Any, Run], run: Run
) -> None:
    value, narrow = narrowed
    state = SqlTable.from_url(url, table=table)
    grants.commit_rows(1, state, [{"v": value}])
    run("UPDATE {t} SET v = NULL")
    narrow("v")
    with pytest.raises(
        StateError, match="column v .*would change the values|column v: .*integer|database says: .*range"
    ):
        grants.commit_rows(2, state, [{"v": value}])
    assert state.rows_by_txid() == {1: 1}


@ALTERED
def test_no_value_is_rounded_if_a_column_is_narrowed_between_raise_and_write(
    url: str, table: str, grants: Grants, narrowed: tuple[Any, Run], run: Run
) -> None:
    value, narrow = narrowed
    state = SqlTable.from_url(url, table=table)
    grants.commit_rows(1, state, [{"v": value}])
    run("UPDATE {t} SET v = NULL")
    grant = grants(2)
    state.raise_fence(grant)
    narrow("v")
    with pytest.raises(StateError, match="was altered while this task wrote to it|database says: "):
        state.write(grant, [{"v": value}])
    with pytest.raises(
        StateError, match="column v .*would change the values|column v: .*integer|database says: .*range"
    ):
        state.write(grant, [{"v": value}])
    assert state.rows_by_txid() == {1: 1}


@ALTERED
@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("rows_before", [1, 1_001])
def test_no_sum_is_rounded_if_a_column_is_narrowed_between_raise_and_write(
    url: str, table: str, grants: Grants, run: Run, complete: bool, rows_before: int
) -> None:
    state = SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum("numeric")})
    grants.commit_rows(1, state, [{"key": number, "n": 1} for number in range(rows_before)])
    grant = grants(2)
    state.raise_fence(grant)
    change = "ALTER COLUMN {} TYPE" if url.startswith("postgresql") else "MODIFY {}"
    for name in ("n", "tx_prev_n"):
        run(f"ALTER TABLE {{t}} {change.format(name)} NUMERIC(10,2)")
    for problem in ("was altered while this task wrote to it", "exists with other columns: n is "):
        with pytest.raises(StateError, match=problem):
            state.write(grant, [{"key": 0, "n": Decimal("1.005")}], complete=complete)
    assert run("SELECT DISTINCT n FROM {t}") == [(1,)]


# --- rows that the table itself changes ---------------------------------------------------------------------------


SHAPES: dict[str, tuple[str, list[str]]] = {
    "sqlite-keeps the last of two": ("id BIGINT UNIQUE ON CONFLICT REPLACE", []),
    "sqlite-adds a row": (
        "id BIGINT",
        ["CREATE TRIGGER {t}_g AFTER INSERT ON {t} BEGIN INSERT INTO {t} VALUES (7, new.tx_txid); END"],
    ),
    "sqlite-deletes others": (
        "id BIGINT",
        ["CREATE TRIGGER {t}_g AFTER INSERT ON {t} BEGIN DELETE FROM {t} WHERE id < new.id; END"],
    ),
    "postgres-adds a row": (
        "id BIGINT",
        [
            "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id < 100 THEN "
            "INSERT INTO {t} VALUES (NEW.id + 100, NEW.tx_txid); END IF; RETURN NEW; END $$",
            "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
        ],
    ),
    "postgres-deletes others": (
        "id BIGINT",
        [
            "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "DELETE FROM {t} WHERE id < NEW.id; RETURN NEW; END $$",
            "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
        ],
    ),
    "postgres-drops rows": (
        "id BIGINT",
        [
            "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
            "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
        ],
    ),
    "postgres-changes the txid": (
        "id BIGINT",
        [
            "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "NEW.tx_txid = NULL; RETURN NEW; END $$",
            "CREATE TRIGGER g BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_f()",
        ],
    ),
    "mariadb-changes the txid": (
        "id BIGINT",
        ["CREATE TRIGGER {t}_g BEFORE INSERT ON {t} FOR EACH ROW SET NEW.tx_txid = NULL"],
    ),
}
"""By database and what becomes of inserted rows: the column of the table t, and what is made beside it."""


@pytest.mark.parametrize(("url", "shape"), [(name.partition("-")[0], name) for name in SHAPES], indirect=["url"])
def test_a_table_whose_triggers_or_rules_change_inserted_rows_is_refused(
    url: str, table: str, grants: Grants, run: Run, shape: str
) -> None:
    column, others = SHAPES[shape]
    run(f"CREATE TABLE {{t}} ({column}, tx_txid BIGINT)")
    run("CREATE INDEX {t}_i ON {t} (tx_txid)")
    run("INSERT INTO {t} (id) VALUES (0)")
    for statement in others:
        run(statement)
    state = SqlTable.from_url(url, table=table)
    with pytest.raises(StateError, match="rows.*No row of this update.*triggers, rules and conflict clauses"):
        grants.commit_rows(1, state, [{"id": 0}, {"id": 1}])
    assert run("SELECT id, tx_txid FROM {t}") == [(0, None)]
    assert state.fence() is None
