"""A SqlState as a DAG file sees it: cheap, checked at once, and without an address."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql

from airflow_tx.base.errors import ConfigError
from airflow_tx.state import Count, FencedState, MemoryState, SqlState, SqlTable, Sum
from airflow_tx.state.sql.mysql import check_version


def _state(**changes: Any) -> SqlState:
    return SqlState("tx_state", **{"table": "totals", "keys": ["a"], "values": {"n": Sum()}, **changes})


def test_a_sql_state_imports_no_library_and_opens_no_connection_while_a_dag_is_parsed() -> None:
    code = (
        "import sys; from airflow_tx.state import SqlState, Sum, Count; "
        "SqlState('nowhere', table='t', keys=['k'], values={'n': Sum(), 'c': Count()}).serialize(); "
        "sys.exit(', '.join(m for m in ('sqlalchemy', 'airflow', 'pyarrow') if m in sys.modules) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _table(**changes: Any) -> SqlTable:
    return SqlTable("tx_state", **{"table": "orders", **changes})


@pytest.mark.parametrize("make", [_state, _table])
@pytest.mark.parametrize(
    "table", ["totals_team.sales.v1", "a..b", ".a", "a.", "", "n" * 64, f"{'s' * 64}.a", "ü" * 32, "a\0b"]
)
def test_a_table_name_that_a_database_refuses_or_shortens_is_refused_while_the_file_is_parsed(
    make: Any, table: str
) -> None:
    with pytest.raises(ConfigError, match=r'Use "table" or "schema.table", and names of at most'):
        make(table=table)


@pytest.mark.parametrize("make", [_state, _table])
@pytest.mark.parametrize("table", ["totals", "team.totals", "w_sales-v1", "Umsätze_売上", "n" * 63])
def test_a_table_name_that_every_database_accepts_is_accepted(make: Any, table: str) -> None:
    assert make(table=table).table == table


@pytest.mark.parametrize("columns", [{"keys": ["k" * 64]}, {"values": {"v" * 56: Sum()}}, {"keys": ["a\0"]}])
def test_a_column_name_that_a_database_refuses_or_shortens_is_refused_while_the_file_is_parsed(columns: Any) -> None:
    with pytest.raises(ConfigError, match="names of at most 55 bytes"):
        _state(**columns)
    assert _state(keys=["k" * 63], values={"v" * 55: Sum()}).columns.keys == ("k" * 63,)


def test_sql_states_and_memory_states_are_fenced_states() -> None:
    assert isinstance(_state(), FencedState)
    assert isinstance(MemoryState(values={"n": Sum()}), FencedState)


def test_the_name_and_the_repr_and_the_serialized_form_of_a_sql_state_are_stable() -> None:
    state = _state(values={"n": Sum(), "c": Count()}, types={"a": "text"})
    assert state.name == "tx_state.totals"
    assert repr(state) == (
        "SqlState('tx_state', table='totals', keys=['a'], "
        "values={'n': Sum(type='bigint'), 'c': Count()}, kind='opaque', types={'a': 'text'})"
    )
    assert state.serialize() == {
        "type": "SqlState",
        "conn_id": "tx_state",
        "table": "totals",
        "keys": ["a"],
        "values": {"n": {"aggregator": "sum", "type": "bigint"}, "c": {"aggregator": "count", "type": "bigint"}},
        "kind": "opaque",
        "types": {"a": "text"},
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": "a"}, r"keys=\['a'\]"),
        ({"values": {}}, "no value column"),
        ({"values": {"a": Sum()}}, "named twice"),
        ({"values": {"A": Sum()}}, "named twice"),
        ({"keys": ["tx_id"]}, "reserved"),
        ({"types": {"b": "text"}}, "must name a key column"),
        ({"types": {"a": "int8"}}, "one of the types bigint"),
        ({"kind": "non-transactional"}, '"opaque" or "transactional"'),
        ({"kind": "exact"}, '"opaque" or "transactional"'),
    ],
)
def test_an_invalid_sql_state_is_refused_when_it_is_created(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _state(**changes)


@pytest.mark.parametrize(
    ("url", "message"),
    [("no url, secret", "postgresql://"), ("sqlite://", "in-memory"), ("oracle://h/d", "sqlite, postgresql")],
)
def test_the_error_for_an_unusable_url_does_not_repeat_the_url(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        SqlState.from_url(url, table="t", keys=[], values={"n": Sum()}).read()
    assert "secret" not in str(failure.value)


def test_a_name_that_a_database_would_shorten_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most"):
        SqlState.from_url("sqlite:///x.db", table="t", keys=[], values={"n" * 60: Sum()}).read()


@pytest.mark.parametrize(
    ("of_mariadb", "version", "named"),
    [
        (False, (8, 0, 15), "MySQL 8.0.15.*Upgrade the server to 8.0.17 or newer"),
        (True, (10, 5, 27), "MariaDB 10.5.27.*Upgrade the server to 10.6 or newer"),
    ],
)
def test_a_database_server_that_is_too_old_is_refused_with_its_version(
    *, of_mariadb: bool, version: tuple[int, ...], named: str
) -> None:
    dialect = MySQLDialect_pymysql(is_mariadb=of_mariadb)
    dialect.server_version_info = version
    with pytest.raises(ConfigError, match=named):
        check_version(dialect)
    dialect.server_version_info = (10, 6, 0) if of_mariadb else (8, 0, 17)
    check_version(dialect)
