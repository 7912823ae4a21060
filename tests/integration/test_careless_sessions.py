"""Settings of a database and of its users: a session of ours says what its values depend on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_tx.base.errors import StateError
from airflow_tx.state import Max, SqlGuard, SqlState, SqlTable
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres

NOON = dt.datetime(1900, 1, 2, 12, 0, 0, 5, tzinfo=dt.timezone.utc)
NAMES: dict[str, Any] = {
    "text": "back\\slash, 'quote', NULL, ф",
    "double": 0.1 + 0.2,
    "date": NOON.date(),
    "timestamptz": NOON,
}
ROWS: list[dict[str, Any]] = [{"id": 1, **NAMES, "bytes": b"\x00\\x"}, {"id": 2, **dict.fromkeys(NAMES), "bytes": None}]
POSTGRES = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "client_encoding": "latin1",
    "DateStyle": "SQL, DMY",
    "default_transaction_read_only": "on",
    "extra_float_digits": "-15",
    "IntervalStyle": "iso_8601",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
    "TimeZone": "Africa/Monrovia",
}
MARIADB = {
    "completion_type": "CHAIN",
    "sql_auto_is_null": "1",
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
    "sql_safe_updates": "1",
    "sql_select_limit": "1",
    "time_zone": "'+05:00'",
    "tx_read_only": "1",
    "unique_checks": "0",
}


def in_a_state(url: str, name: str) -> SqlState:
    values = {kind: Max(kind) for kind in [*NAMES, "bytes"]}
    return SqlState.from_url(url, table=name, keys=["id"], values=values)


def in_a_table(url: str, name: str) -> SqlTable:
    types = {kind: kind for kind in [*NAMES, "bytes"]}
    return SqlTable.from_url(url, table=name, types=types)


@pytest.fixture(params=POSTGRES.items(), ids=list(POSTGRES))
def careless_postgres(request: pytest.FixtureRequest, postgres: LocalPostgres) -> Iterator[str]:
    """A database with a setting of its own."""
    whole = {"isolation_level": "AUTOCOMMIT"}
    query(postgres.url(), "CREATE DATABASE careless", **whole)
    query(postgres.url(), "ALTER DATABASE careless SET {} = '{}'".format(*request.param), **whole)
    yield postgres.url("careless")
    query(postgres.url(), "DROP DATABASE careless WITH (FORCE)", **whole)


@pytest.fixture(params=MARIADB.items(), ids=list(MARIADB))
def careless_mariadb(request: pytest.FixtureRequest, mariadb: LocalMariaDB) -> Iterator[str]:
    """A server with a setting for all new sessions."""
    name, value = request.param
    ((before,),) = query(mariadb.url(), f"SELECT @@GLOBAL.{name}")
    query(mariadb.url(), f"SET GLOBAL {name} = {value}")
    yield mariadb.url()
    query(mariadb.url(), f"SET GLOBAL {name} = {before!r}")


def check_values(state: Any, grants: Grants) -> None:
    for txid in (1, 2):
        grants.commit_rows(txid, state, [{**row, "id": row["id"] + 10 * txid} for row in ROWS])
    found = sorted(state.read(), key=lambda row: row["id"])
    given = [{**row, "id": row["id"] + 10 * txid} for txid in (1, 2) for row in ROWS]
    assert [{name: row[name] for name in ROWS[0]} for row in found] == given
    state.release()
    Grants().commit_rows(1, state, [{**ROWS[0], "id": 99}])
    assert len(state.read()) == len(given) + 1


@pytest.mark.parametrize("make", [in_a_state, in_a_table])
def test_no_setting_of_a_postgres_database_changes_a_value(
    careless_postgres: str, table: str, grants: Grants, make: Callable[[str, str], Any]
) -> None:
    check_values(make(careless_postgres, table), grants)


@pytest.mark.parametrize("make", [in_a_state, in_a_table])
def test_no_setting_of_a_mariadb_server_changes_a_value(
    careless_mariadb: str, table: str, grants: Grants, make: Callable[[str, str], Any]
) -> None:
    check_values(make(careless_mariadb, table), grants)


@pytest.mark.parametrize("careless_postgres", [("synchronous_commit", "off")], indirect=True)
def test_a_commit_is_synchronous_even_if_the_database_turns_synchronous_commits_off(
    careless_postgres: str, table: str
) -> None:
    with in_a_table(careless_postgres, table)._store.transaction() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


@pytest.mark.parametrize("careless_postgres", [("TimeZone", "Asia/Tokyo")], indirect=True)
def test_the_statements_of_a_guard_run_in_the_time_zone_of_the_database(
    careless_postgres: str, table: str, grants: Grants
) -> None:
    query(careless_postgres, f"CREATE TABLE {table} (zone TEXT)")
    zone = f"INSERT INTO {table} VALUES (current_setting('TimeZone'))"
    grants.commit_rows(1, SqlGuard.from_url(careless_postgres, name="zone", statements=[(zone, {})]), [])
    assert query(careless_postgres, f"SELECT zone FROM {table}") == [("Asia/Tokyo",)]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_jsonb_column_is_refused(url: str, table: str, grants: Grants) -> None:
    query(url, f"CREATE TABLE {table} (j jsonb, tx_txid bigint)")
    query(url, f"CREATE INDEX ON {table} (tx_txid)")
    with pytest.raises(StateError, match="column j of table .* is jsonb, which would change the values"):
        grants.commit_rows(1, SqlTable.from_url(url, table=table), [{"j": {"b": 1e16, "a": -0.0}}])


@pytest.mark.parametrize("url", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize(("kind", "most"), [("TINYTEXT", 255), ("TEXT", 65_535), ("VARCHAR(9)", 9)])
def test_a_text_longer_than_its_column_is_refused_even_if_only_spaces_exceed_the_length(
    url: str, table: str, grants: Grants, kind: str, most: int
) -> None:
    query(url, f"CREATE TABLE {table} (t {kind} CHARACTER SET utf8mb4, tx_txid BIGINT, INDEX (tx_txid))")
    state = SqlTable.from_url(url, table=table)
    grants.commit_rows(1, state, [{"t": " " * most}])
    for text in ("x".ljust(most + 1), "x" * (most + 1)):
        with pytest.raises(StateError, match=f"has {most + 1} (bytes|characters), but the column can store"):
            grants.commit_rows(2, state, [{"t": text}])
    assert [len(row["t"]) for row in state.read()] == [most]
