"""The database user of a state needs four rights, and no right to create tables if a person creates them first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import StateError
from airflow_tx.state import SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_tools import Grants, is_applied
from tests.integration.databases import query
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres

ROW = {"carrier": "AA", "n": 2}
RIGHTS = "SELECT, INSERT, UPDATE, DELETE"


def in_a_table(url: str) -> FencedState:
    return SqlState.from_url(url, table="flights", keys=["carrier"], values={"n": Sum()}, kind="opaque")


def by_a_guard(url: str) -> FencedState:
    return SqlGuard.from_url(url, name="flights", statements=[("SELECT 1", None)])


@pytest.fixture(params=["postgres", "mariadb"])
def admin(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database that is empty, for a person who may create tables in it."""
    server: LocalPostgres | LocalMariaDB = request.getfixturevalue(request.param)
    of_postgres = request.param == "postgres"
    options = {"isolation_level": "AUTOCOMMIT"} if of_postgres else {}
    query(server.url(), "CREATE DATABASE rights", **options)
    yield server.url("rights")
    # The state keeps its connection.
    query(server.url(), f"DROP DATABASE rights{' WITH (FORCE)' if of_postgres else ''}", **options)


@pytest.fixture
def worker(admin: str) -> Iterator[str]:
    """The same database, for a user who may create nothing."""
    of_postgres = admin.startswith("postgresql")
    user = "worker" if of_postgres else "'worker'@'127.0.0.1'"
    query(admin, f"CREATE USER {user} {'PASSWORD' if of_postgres else 'IDENTIFIED BY'} 'of the worker'")
    url = sa.engine.make_url(admin).set(username="worker", password="of the worker")
    if not of_postgres:
        query(admin, f"GRANT SELECT ON rights.* TO {user}")
    yield url.render_as_string(hide_password=False)
    query(admin, f"DROP OWNED BY {user}; DROP USER {user}" if of_postgres else f"DROP USER {user}")


@pytest.mark.parametrize("make", [in_a_table, by_a_guard])
def test_a_user_without_create_rights_can_write_after_the_owner_runs_the_printed_statements(
    admin: str, worker: str, make: Callable[[str], FencedState]
) -> None:
    grants = Grants()
    refusals = 0
    while refusals < 4:
        state = make(worker)
        grant = grants(1)
        try:
            state.raise_and_write(grant, [ROW])
        except StateError as error:
            refusals += 1
            run_for_the_worker(admin, str(error))
        else:
            break
    grants.final(grant, state)
    assert refusals == 2  # the tables beside all states, and its own
    assert is_applied(state)


def run_for_the_worker(admin: str, refusal: str) -> None:
    """Do what a refusal says, as a person who may."""
    found = re.search(r"let a person who may run: (.*)\. Give the user (.*) on them", refusal)
    assert found, refusal
    assert found[2] == RIGHTS.replace(", DELETE", " and DELETE")
    for statement in found[1].split("; "):
        query(admin, statement)
        table = statement.partition(" EXISTS ")[2].split()[0]
        user = "worker" if admin.startswith("postgresql") else "'worker'@'127.0.0.1'"
        query(admin, f"GRANT {RIGHTS} ON {table} TO {user}")


# --- all statements at once ----------------------------------------------------------------------------------------


def typed_as_owner(admin: str, *states: FencedState) -> list[str]:
    """Run what `airflow tx ddl` prints for these states, once for all; gives the statements."""
    printed = dict.fromkeys(each for state in states for found in state.ddl().values() for each in found)
    for statement in printed:
        query(admin, statement)
    return [*printed]


def commit(grants: Grants, txid: int, state: FencedState, rows: list[dict[str, object]]) -> None:
    grant = grants(txid)
    state.raise_and_write(grant, rows)
    grants.final(grant, state)
    assert is_applied(state)


def of_three_kinds(url: str) -> list[FencedState]:
    typed = SqlState.from_url(
        url, table="flights", keys=["carrier"], values={"n": Sum()}, kind="opaque", types={"carrier": "text"}
    )
    parts = SqlTable.from_url(url, table="parts", types={"carrier": "text", "n": "bigint"})
    return [typed, parts, by_a_guard(url)]


def test_a_user_without_create_rights_writes_after_the_owner_created_all_tables(admin: str, worker: str) -> None:
    states = of_three_kinds(worker)
    with pytest.raises(StateError, match="For all states at once: airflow tx ddl DAG"):
        states[0].raise_and_write(Grants()(1), [ROW])
    statements = typed_as_owner(admin, *states)
    assert sum(each.startswith("CREATE TABLE") for each in statements) == 6
    for state in of_three_kinds(worker):
        commit(Grants(), 1, state, [ROW])
    assert typed_as_owner(admin, *of_three_kinds(worker)) == []


def test_the_ddl_command_prints_the_key_that_a_restored_table_lacks(admin: str, worker: str) -> None:
    states = of_three_kinds(worker)
    typed_as_owner(admin, *states)
    grants = [Grants() for _ in states]
    for own, state in zip(grants, states, strict=True):
        commit(own, 1, state, [ROW])
    of_postgres = admin.startswith("postgresql")
    for table in ("flights", "parts"):
        query(admin, f"ALTER TABLE {table} DROP " + (f"CONSTRAINT {table}_pkey" if of_postgres else "PRIMARY KEY"))
    if of_postgres:
        query(admin, "ALTER TABLE flights SET UNLOGGED")
    states = of_three_kinds(worker)
    with pytest.raises(StateError, match="airflow tx ddl DAG|UNLOGGED"):
        states[0].raise_and_write(grants[0](2), [ROW])
    with pytest.raises(StateError, match="CREATE INDEX"):
        states[1].raise_and_write(grants[1](2), [ROW])
    statements = typed_as_owner(admin, *states)
    assert len(statements) == (3 if of_postgres else 2)
    for own, state in zip(grants, of_three_kinds(worker), strict=True):
        commit(own, 2, state, [ROW])


def test_the_ddl_command_asks_for_column_types_that_only_the_first_rows_would_determine(worker: str) -> None:
    untyped = [in_a_table(worker), SqlTable.from_url(worker, table="parts")]
    comments = [each for state in untyped for found in state.ddl().values() for each in found if each.startswith("--")]
    assert comments == [
        "-- table flights: name the type of carrier in types= of the state",
        "-- table parts: name the types of its columns in types= of the state",
    ]
