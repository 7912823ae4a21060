"""A DAG leaves the package as docs/howto/stop-using-it.md says; the SQL of the page is run."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError

from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.servers.postgres import LocalPostgres

LEAVING = (Path(__file__).parents[2] / "docs" / "howto" / "stop-using-it.md").read_text()


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def kind(request: pytest.FixtureRequest) -> str:
    """A database, as the page calls it."""
    name: str = request.param
    return name


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that nobody else uses: its fences are dropped."""
    if kind == "SQLite":
        yield f"sqlite:///{tmp_path / 'state.db'}"
        return
    server: LocalPostgres = request.getfixturevalue("postgres")
    alone = {"isolation_level": "AUTOCOMMIT"}
    query(server.url(), "CREATE DATABASE leaving", **alone)
    yield server.url("leaving")
    query(server.url(), "DROP DATABASE leaving WITH (FORCE)", **alone)


def run_block(url: str, name: str) -> None:
    """Run a block of SQL of the page as a person pastes it."""
    (block,) = re.findall(rf" *```sql\n *-- {name}\n(.*?)```", LEAVING, re.DOTALL)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sa.make_url(url).database or "")) as connection:
            connection.executescript(block)
        return
    with sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection:
        connection.exec_driver_sql(block)


def committed(url: str, grants: Grants, table: str) -> SqlState:
    """Return a state of its own DAG, with a row."""
    state = SqlState.from_url(url, table=table, keys=["carrier"], values={"n": Sum()})
    grant = grants(1)
    state.raise_and_write(grant, [{"carrier": "AA", "n": 2}])
    grants.final(grant, state)
    return state


def columns(url: str, table: str) -> list[Any]:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    return sorted(each["name"] for each in sa.inspect(engine).get_columns(table))


def tables(url: str) -> set[str]:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    return {each for each in sa.inspect(engine).get_table_names() if each.startswith("airflow_tx")}


def test_a_released_table_is_an_ordinary_table_after_the_package_columns_are_dropped(
    database: str, kind: str, grants: Grants
) -> None:
    committed(database, grants, "totals").release()
    run_block(database, f"columns in {kind}")
    assert columns(database, "totals") == ["carrier", "n"]
    query(database, "INSERT INTO totals VALUES ('UA', 3)")
    assert query(database, "SELECT carrier, n FROM totals ORDER BY n") == [("AA", 2), ("UA", 3)]


def test_no_table_of_the_package_remains_after_the_last_dag_of_a_schema_leaves(
    database: str, kind: str, grants: Grants
) -> None:
    committed(database, grants, "totals").release()
    assert query(database, "SELECT state FROM airflow_tx_fence") == []
    run_block(database, f"tables in {kind}")
    assert tables(database) == set()


def test_another_dag_in_the_schema_continues_after_one_dag_leaves(database: str, kind: str) -> None:
    theirs = Grants()
    other = committed(database, theirs, "others")
    committed(database, Grants(), "totals").release()
    run_block(database, f"columns in {kind}")
    assert len(query(database, "SELECT state FROM airflow_tx_fence")) == 1
    if kind == "PostgreSQL":
        with pytest.raises(DatabaseError, match="other states have their fences"):
            run_block(database, f"tables in {kind}")
    grant = theirs(2)
    other.raise_and_write(grant, [{"carrier": "AA", "n": 5}])
    assert list(other.read()) == [{"carrier": "AA", "n": 7}]


def test_the_page_deletes_the_ledger_before_it_removes_the_transaction_from_the_dag() -> None:
    removed, taken_out = (LEAVING.index(each) for each in ("airflow tx delete NAME", "Take `Transaction`"))
    assert removed < taken_out
