"""What a SqlState does with a real database, beyond what every state does: types, tables, connections, refusals."""

from __future__ import annotations

import copy
import datetime as dt
import json
import pickle
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import (
    ChunkConflict,
    ConfigError,
    FenceForeign,
    PortionsLost,
    StateBehind,
    StateError,
    StateLocked,
    StateOutcomeUnknown,
    StateUnavailable,
    TxidBehind,
)
from airflow_tx.state import CombinerAggregator, Count, Last, SqlState, Sum
from airflow_tx.testing.suites.state_tools import Grants, is_applied, rows
from tests.integration.databases import query
from tests.servers.mariadb import DATABASE
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

UTC = dt.timezone.utc


def test_the_values_of_a_state_can_be_read_with_ordinary_sql(url: str, table: str) -> None:
    grants = Grants()
    values: dict[str, CombinerAggregator] = {"flights": Count(), "dep_delay": Sum()}
    state = SqlState.from_url(url, table=table, keys=["carrier", "origin"], values=values)
    for txid in (1, 2):
        grant = grants(txid)
        update: list[dict[str, Any]] = [
            {"carrier": "AA", "origin": "JFK", "flights": 2, "dep_delay": -3 * txid},
            {"carrier": "UA", "origin": "EWR", "flights": None, "dep_delay": None},
        ]
        state.raise_and_write(grant, update)
        grants.final(grant, state)
    found = query(url, f"SELECT carrier, origin, flights, dep_delay FROM {table} ORDER BY carrier")
    assert [tuple(row) for row in found] == [("AA", "JFK", 4, -9), ("UA", "EWR", 0, None)]
    assert [row["flights"] for row in state.read()] == [4, 0]


KEYS: dict[str, list[Any]] = {
    "bigint": [-(2**63), 0, 7, 2**63 - 1],
    "double": [-1.5, 0.1, 1e300],
    "numeric": [Decimal("-0.1"), Decimal("1e3"), Decimal("3.00"), Decimal("12345678901234567890.123456789")],
    "text": ["", "a", "A", "ä"],
    "boolean": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(2013, 1, 2)],
    "timestamp": [dt.datetime(2013, 1, 2), dt.datetime(2013, 1, 2, 3, 4, 5, 678901)],
    "timestamptz": [
        dt.datetime(2013, 1, 2, tzinfo=UTC),
        dt.datetime(2013, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
    ],
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("declared", [True, False])
def test_later_updates_find_the_stored_keys_of_every_type(url: str, table: str, kind: str, declared: bool) -> None:
    grants = Grants()
    for txid in (1, 2):  # another process each: the second one takes the types of the table
        types = {"key": kind} if declared else {}
        state = SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, types=types)
        grant = grants(txid)
        state.raise_and_write(grant, [{"key": key, "n": 1} for key in KEYS[kind]])
        grants.final(grant, state)
    assert sorted((row["key"], row["n"]) for row in state.read()) == sorted((key, 2) for key in KEYS[kind])


def test_decimal_sums_are_exact(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=[], values={"n": Sum("numeric")})
    for txid, delta in enumerate([Decimal("0.1"), Decimal("0.2"), None, Decimal(10**30), 5], 1):
        grant = grants(txid)
        state.raise_and_write(grant, [{"n": delta}])
        grants.final(grant, state)
    assert state.read() == [{"n": Decimal(f"{10**30 + 5}.3")}]


def test_float_sums_are_added_as_floats(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=[], values={"n": Sum("double")})
    for txid, delta in enumerate([0.1, 0.2, None, 3], 1):
        grant = grants(txid)
        state.raise_and_write(grant, [{"n": delta}])
        grants.final(grant, state)
    assert state.read() == [{"n": 0.1 + 0.2 + 3}]
    with pytest.raises(StateError, match="not finite"):
        state.raise_and_write(grants(5), [{"n": float("nan")}])


def test_a_sum_that_is_too_large_is_refused_and_no_value_is_written(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})
    grants.commit(1, state, {"a": 2**63 - 1, "b": 1})
    with pytest.raises(StateError, match="No row of this update was written"):
        state.raise_and_write(grants(2), rows({"b": 1, "a": 1}))
    assert state.read() == [{"key": "a", "n": 2**63 - 1}, {"key": "b", "n": 1}]


_TOO_LARGE: dict[str, tuple[Any, Any, str, str]] = {
    "bigint": (2**63 - 1, 1, "sum of column n does not fit into 64 bits", r'Use Sum\("numeric"\) with a new table'),
    "double": (1.7e308, 1.7e308, "sum of column n is larger than any double", r'Use Sum\("numeric"\)'),
    "numeric": (Decimal("1E+900"), Decimal("1E-900"), "sum of column n needs more digits", "Round the numbers"),
}


def test_statements_for_sqlite_use_unnumbered_parameters(tmp_path: Path) -> None:
    """From Python 3.14 on, sqlite3 refuses a sequence of parameters where the text numbers them."""
    texts = list[str]()

    def note(connection: object, cursor: object, text: str, *_: object) -> None:
        texts.append(text)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        state, grants = (
            SqlState.from_url(f"sqlite:///{tmp_path}/s.db", table="t", keys=["k"], values={"n": Sum()}),
            Grants(),
        )
        for txid in (1, 2):
            grant = grants(txid)
            state.raise_and_write(grant, [{"k": "a", "n": txid}])
            grants.final(grant, state)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert state.read() == [{"k": "a", "n": 3}]
    assert len([text for text in texts if "ON CONFLICT" in text]) >= 2
    assert [text for text in texts if re.search(r"\?\d", text)] == []


@pytest.mark.parametrize("column", _TOO_LARGE)
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_the_error_about_a_sum_that_sqlite_cannot_store_names_the_column(
    tmp_path: Path, kind: str, column: str
) -> None:
    stored, delta, problem, remedy = _TOO_LARGE[column]
    values: dict[str, CombinerAggregator] = {"m": Count(), "n": Sum(column)}
    state = SqlState.from_url(f"sqlite:///{tmp_path}/db", table="t", keys=["key"], values=values, kind=kind)
    grants = Grants()
    grant = grants(1)
    state.raise_and_write(grant, [{"key": "a", "m": 1, "n": stored}, {"key": "b", "m": 1, "n": 1}])
    grants.final(grant, state)
    for sign in (1, -1):
        update = [{"key": "b", "m": 1, "n": 1}, {"key": "a", "m": 1, "n": delta}]
        if sign < 0:  # and what fits goes in afterwards
            update[1]["n"] = -stored
            state.raise_and_write(grants(2), update)
            break
        with pytest.raises(StateError, match=f"{problem}.*No row of this update was written.*{remedy}") as failure:
            state.raise_and_write(grants(2), update)
        assert not isinstance(failure.value, StateUnavailable)
        assert [row["n"] for row in state.read()] == [stored, 1]
    assert [(row["m"], row["n"]) for row in state.read()] == [(2, 0), (2, 2)]


def test_a_float_sum_that_is_already_infinite_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/db"
    state = SqlState.from_url(url, table="t", keys=["key"], values={"n": Sum("double")})
    grants = Grants()
    grants.commit(1, state, {"a": 1})
    query(url, "UPDATE t SET n = 9e999")
    with pytest.raises(StateError, match="larger than any double"):
        grants.commit(2, state, {"a": -1})


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_state_without_key_columns_accepts_only_one_chunk(url: str, table: str, kind: str) -> None:
    state, grant = SqlState.from_url(url, table=table, keys=[], values={"n": Sum()}, kind=kind), Grants()(1)
    state.raise_fence(grant)
    state.write(grant, [{"n": 1}], chunk=1, complete=False)
    with pytest.raises(ChunkConflict, match=r"key \{\} came from chunk 1 and from chunk 2"):
        state.write(grant, [{"n": 1}], chunk=2, complete=False)
    assert state.read() == [{"n": 1}]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_state_without_key_columns_has_only_one_row(url: str, table: str, kind: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=[], values={"n": Count(), "s": Sum()}, kind=kind)
    assert state.read() == []
    for attempt in (1, 2):
        first = grants(1, attempt)
        state.raise_and_write(first, [{"n": 3, "s": None}])
    grants.final(first, state)
    assert state.raise_and_write(grants(2), [{"n": 4, "s": 1}]) == 1
    assert state.read() == [{"n": 7, "s": 1}]
    with pytest.raises(StateError, match="stores one row"):
        state.raise_and_write(grants(2), [{"n": 4, "s": 1}] * 2)


def test_a_table_with_other_columns_is_refused_and_the_error_lists_the_differences(url: str, table: str) -> None:
    grants = Grants()
    SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}).raise_and_write(grants(1), rows({"a": 1}))
    others = [
        SqlState.from_url(url, table=table, keys=["key"], values={"m": Sum()}),
        SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum("double")}),
        SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, kind="transactional"),
        SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, types={"key": "bigint"}),
        SqlState.from_url(url, table=table, keys=["key", "more"], values={"n": Sum()}),
    ]
    told = [
        "it lacks m (bigint), tx_prev_m (bigint); it also has n (bigint), tx_prev_n (bigint). ",
        "n is bigint, expected double; tx_prev_n is bigint, expected double. ",
        "it also has tx_created (boolean), tx_prev_n (bigint). ",
        "key is text, expected bigint",
        "it lacks more (text); its key is ['key'], expected ['key', 'more']. ",
    ]
    if url.startswith("mysql"):
        told[4] = "it lacks more (text). "
    for other, differences in zip(others, told, strict=True):
        with pytest.raises(StateError) as refused:
            other.raise_fence(grants(1, 2))
        assert f"table {table} exists with other columns: {differences}" in str(refused.value)
        assert refused.value.for_good
    assert query(url, f"SELECT attempt FROM airflow_tx_fence WHERE state = '{table}'") == [(1,)]


def test_a_table_that_the_package_did_not_create_is_refused(url: str, table: str) -> None:
    query(url, f"CREATE TABLE {table} (k TEXT, n BIGINT)")
    state = SqlState.from_url(url, table=table, keys=["k"], values={"n": Sum()})
    with pytest.raises(StateError, match=r"it lacks .*tx_txid \(bigint\).*; its key is \[\], expected \["):
        state.raise_and_write(Grants()(1), [{"k": "a", "n": 1}])
    assert state.fence() is None


def _remade(url: str, table: str, old: str, new: str) -> None:
    """Make a table of SQLite again, as another one."""
    ((text,),) = query(url, f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
    assert old in text
    query(url, f"DROP TABLE {table}")
    query(url, text.replace(old, new))


def _altered(url: str, table: str, _: str, new: str) -> None:
    nocase = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
    query(url, "CREATE EXTENSION IF NOT EXISTS citext")
    query(url, f"CREATE COLLATION IF NOT EXISTS tx_nocase ({nocase})")
    query(url, f"ALTER TABLE {table} ALTER COLUMN key TYPE {new}")


@pytest.mark.parametrize(
    ("url", "change", "old", "new"),
    [
        ("sqlite", _remade, '"key" TEXT', '"key" TEXT COLLATE NOCASE'),
        ("sqlite", _remade, '"key" TEXT', '"key" TEXT COLLATE RTRIM'),
        ("sqlite", _remade, 'PRIMARY KEY ("key")', 'PRIMARY KEY ("key" COLLATE NOCASE)'),
        ("postgres", _altered, "", "text COLLATE tx_nocase"),
        ("postgres", _altered, "", "varchar COLLATE tx_nocase"),
        ("postgres", _altered, "", "citext"),
    ],
    indirect=["url"],
)
@pytest.mark.parametrize("types", [{}, {"key": "text"}])
def test_a_table_whose_collation_treats_different_keys_as_equal_is_refused(
    url: str, table: str, change: Callable[..., None], old: str, new: str, types: dict[str, str]
) -> None:
    made = partial(SqlState.from_url, url, table=table, keys=["key"], values={"n": Sum()}, types=types)
    grants = Grants()
    made().raise_and_write(grants(1), rows({"a": 1}))
    change(url, table, old, new)
    with pytest.raises(StateError, match=f"table {table} exists with other columns: key is .*, expected text"):
        made().raise_and_write(grants(1, 2), rows({"A": 1, "a": 2}))
    assert query(url, f"SELECT key, n FROM {table} WHERE n > 1") == []


def test_a_key_whose_type_differs_from_the_key_column_is_refused(url: str, table: str) -> None:
    grants = Grants()
    SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}).raise_and_write(grants(1), rows({"a": 1}))
    state = SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})
    with pytest.raises(StateError, match="key = 1 is not a text. The column has the type text"):
        state.raise_and_write(grants(1, 2), [{"key": 1, "n": 1}])


def test_a_value_that_a_later_transaction_has_stored_is_never_overwritten(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})
    grants.commit(5, state, {"a": 1})
    query(url, f"UPDATE {table} SET tx_txid = 9")
    with pytest.raises(TxidBehind, match="stored value is of transaction 9"):
        grants.commit(6, state, {"a": 1, "b": 1})
    assert state.read() == [{"key": "a", "n": 1}]


def test_clearing_a_state_deletes_only_its_own_fence_and_values(url: str, table: str) -> None:
    grants = Grants()
    states = [SqlState.from_url(url, table=f"{table}{i}", keys=["key"], values={"n": Sum()}) for i in range(2)]
    states[0].clear()
    for state in states:
        state.raise_and_write(grants(1), rows({"a": 1}))
    states[0].clear()
    assert (states[0].fence(), states[0].read()) == (None, [])
    assert (states[1].fence() is not None, states[1].read()) == (True, [{"key": "a", "n": 1}])
    Grants().commit(7, states[0], {"a": 2})
    assert states[0].read() == [{"key": "a", "n": 2}]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_dropped_table_with_an_existing_fence_is_refused_until_a_person_accepts_the_loss(
    url: str, table: str, kind: str
) -> None:
    def made() -> SqlState:
        return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, kind=kind)

    grants, held = Grants(), made()
    held.raise_and_write(grants(1), [])
    held.raise_and_write(grants(1, 2), [])  # nothing was written, and nothing is missing
    grants.commit_rows(1, held, rows({"a": 1}), attempt=3)
    query(url, f"DROP TABLE {table}")
    for state in (held, made()):
        with pytest.raises(StateBehind, match="its fence says 1, but the written values are missing.*--state-lost"):
            state.raise_fence(grants(2))
        with pytest.raises(StateBehind):
            state.raise_and_write(grants(2), rows({"a": 5}))
    grants.generation, grants.last = 2, {}
    grants.commit(2, held, {"a": 5})
    assert made().read() == [{"key": "a", "n": 5}]
    query(url, f"DROP TABLE {table}")
    with pytest.raises(StateBehind):
        made().raise_fence(grants(3))


def test_an_open_state_notices_that_the_columns_of_its_table_have_changed(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})
    grants.commit(1, state, {"a": 1})
    query(url, f"ALTER TABLE {table} RENAME COLUMN n TO m")
    with pytest.raises(StateError, match=f"table {table} exists with other columns"):
        state.raise_and_write(grants(2, 2), rows({"a": 1}))


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("name", ["key", "note"])
def test_a_text_too_long_for_its_column_is_refused(url: str, table: str, name: str) -> None:
    grants = Grants()
    state = SqlState.from_url(url, table=table, keys=["key"], values={"note": Last("text")})
    grants.commit_rows(1, state, [{"key": "a", "note": "b"}])
    query(url, f"ALTER TABLE {table} ALTER COLUMN {name} TYPE VARCHAR(3)")
    with pytest.raises(StateError, match="'ABC  ' has 5 characters, but the column can store 3"):
        grants.commit_rows(2, state, [{"key": "a", "note": "b", name: "ABC  "}])
    assert state.read() == [{"key": "a", "note": "b"}]


def test_a_state_keeps_its_fence_after_its_table_was_renamed(url: str, table: str) -> None:
    old, new = (
        SqlState.from_url(url, table=name, keys=["key"], values={"n": Sum()}) for name in (table, f"{table}_new")
    )
    grants = Grants()
    grants.commit(1, old, {"a": 1})
    with pytest.raises(StateError, match=f"no table {table}_new.*ALTER TABLE {table} RENAME TO {table}_new"):
        new.take_over(old.name)
    with pytest.raises(StateError, match=f"no table {table}_new"):
        new.fence_of(old.name)
    query(url, f"ALTER TABLE {table} RENAME TO {table}_new")
    held = old.fence()
    assert (new.fence_of(old.name), new.fence()) == (held, None)
    for _ in range(2):
        new.take_over(old.name)
        assert (new.fence_of(old.name), new.fence(), old.fence()) == (held, held, None)
    grants.last, grants.generation = {new.name: 1}, 2
    grants.commit(2, new, {"a": 2})
    assert new.read() == [{"key": "a", "n": 3}]


def test_a_fence_of_a_newer_format_is_refused(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})
    state.raise_and_write(grants(1), rows({"a": 1}))
    query(url, f"UPDATE airflow_tx_fence SET format = 2 WHERE state = '{table}'")
    with pytest.raises(StateError, match="format 2, but this version supports 1"):
        state.raise_and_write(grants(1, 2), rows({"a": 1}))


def test_names_of_tables_and_columns_are_quoted_in_statements(url: str) -> None:
    name = f'Odd "table" {uuid.uuid4().hex[:6]}'
    grants = Grants()
    values: dict[str, CombinerAggregator] = {"Sum of; n": Sum(), "select": Count()}
    state = SqlState.from_url(url, table=name, keys=["group", "the key"], values=values)
    for txid in (1, 2):
        grant = grants(txid)
        state.raise_and_write(grant, [{"group": "%s", "the key": ":x", "Sum of; n": 1, "select": 2}])
        grants.final(grant, state)
    assert state.read() == [{"group": "%s", "the key": ":x", "Sum of; n": 2, "select": 4}]


def test_each_database_schema_has_its_own_fence_table(postgres: LocalPostgres) -> None:
    schema, grants = f"s{uuid.uuid4().hex[:8]}", Grants()
    query(postgres.url(), f"CREATE SCHEMA {schema}")
    state = SqlState.from_url(postgres.url(), table=f"{schema}.totals", keys=["key"], values={"n": Sum()})
    for txid in (1, 2):
        grants.commit(txid, state, {"a": 1})
    assert query(postgres.url(), f"SELECT txid FROM {schema}.airflow_tx_fence") == [(2,)]
    assert state.read() == [{"key": "a", "n": 2}]


# --- one table under several names --------------------------------------------------------------------------------


def _spellings(url: str, table: str) -> list[str]:
    if url.startswith("sqlite"):
        return [table, table.upper(), f"Main.{table}"]
    return [table, f"public.{table}" if url.startswith("postgres") else f"{DATABASE}.{table}"]


def test_all_spellings_of_the_same_table_name_use_one_fence(url: str, table: str) -> None:
    states = [
        SqlState.from_url(url, table=name, keys=["key"], values={"n": Sum()}, label="one")
        for name in _spellings(url, table)
    ]
    grants = Grants()
    for txid, state in enumerate(states, 1):
        grants.last = {state.name: txid - 1} if txid > 1 else {}
        state.raise_and_write(grants(txid), rows({"a": 1}))
    assert {state.fence() for state in states} == {states[-1].fence()}
    assert states[0].read() == [{"key": "a", "n": len(states)}]
    for state in states:
        with pytest.raises(FenceForeign):
            state.raise_fence(Grants()(len(states) + 1))


def test_two_names_that_differ_only_in_the_case_of_a_non_ascii_letter_are_two_tables(tmp_path: Path) -> None:
    for name in ("ä", "Ä"):
        state = SqlState.from_url(f"sqlite:///{tmp_path}/db", table=name, keys=["key"], values={"n": Sum()})
        Grants().commit(1, state, {"a": 1})
        assert state.read() == [{"key": "a", "n": 1}]


def test_the_fence_is_stored_in_the_schema_in_which_the_search_path_finds_the_table(postgres: LocalPostgres) -> None:
    name = postgres.new_database()
    url, grants = postgres.url(name), Grants()
    plain = SqlState.from_url(url, table="t", keys=["key"], values={"n": Sum()})
    grants.commit(1, plain, {"a": 1})
    query(url, "CREATE SCHEMA app")
    query(url, f"ALTER DATABASE {name} SET search_path = app, public")
    url += "?application_name=later"  # sessions that are there keep the path that they began with
    other = SqlState.from_url(url, table="t2", keys=["key"], values={"n": Sum()})
    Grants().commit(1, other, {"a": 1})
    again = SqlState.from_url(url, table="t", keys=["key"], values={"n": Sum()})
    assert again.fence() == plain.fence() is not None
    assert query(url, "SELECT state FROM app.airflow_tx_fence") == [("t2",)]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_two_updates_of_one_table_in_one_transaction_are_refused_before_any_write(
    url: str, table: str, kind: str
) -> None:
    grants = Grants()
    first, second, other_connection = (
        SqlState.from_url(url, table=name, keys=["key"], values={"n": Sum()}, kind=kind, label=label)
        for name, label in ((table, "one"), (_spellings(url, table)[-1], "one"), (table, "two"))
    )
    grant = grants(1)
    first.raise_fence(grant)
    for state in (second, other_connection):
        for use in (state.raise_fence, lambda grant, state=state: state.raise_and_write(grant, rows({"a": 5}))):
            with pytest.raises(StateError, match=f"two updates .* one table: '{first.name}' and '{state.name}'"):
                use(grant)
    assert first.read() == []
    for _ in range(2):
        first.raise_fence(grant)
        first.write(grant, rows({"a": 1}))
    assert first.read() == [{"key": "a", "n": 1}]
    # A connection may get another name between two grants.
    grants.last = {second.name: 1, other_connection.name: 1}
    other_connection.raise_and_write(grants(2), rows({"a": 1}))
    assert first.read() == [{"key": "a", "n": 2}]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_part_of_an_update_that_the_database_lost_is_noticed_at_the_end_of_the_grant(
    url: str, table: str, grants: Grants, kind: str
) -> None:
    made = partial(SqlState.from_url, url, table=table, keys=["key"], values={"n": Sum()}, kind=kind)
    grants.commit(1, made(), {"a": 1})
    portions = [rows({"a": 1, "b": 1}), rows({"c": 1}), rows({"d": 1})]
    for lost in (True, False):
        grant, state = grants(2), made()
        made().raise_fence(grant)
        query(url, "DROP TABLE airflow_tx_portions")
        for chunk, portion in enumerate(portions):
            for _ in range(2):  # a writer of Spark may be run twice
                state.write(grant, portion, chunk=chunk, complete=False)
        if lost:
            query(url, f"DELETE FROM {table} WHERE tx_txid = 2 AND tx_chunk = 1")
            query(url, f"DELETE FROM airflow_tx_portions WHERE state = '{table}' AND chunk = 1")
            with pytest.raises(PortionsLost, match="has lost 1 of 3 confirmed portions of transaction 2"):
                state.write(replace(grant, portions=3), (), chunk=3)
            assert not is_applied(state)
    state.write(replace(grant, portions=3), (), chunk=3)
    grants.final(grant, state)
    assert {row["key"]: row["n"] for row in state.read()} == {"a": 2, "b": 1, "c": 1, "d": 1}
    assert query(url, "SELECT * FROM airflow_tx_portions") == []
    grants.commit(3, state, {"c": 1})


# --- connections -------------------------------------------------------------------------------------------------


def _define(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


def test_a_state_can_use_an_airflow_connection_to_postgres(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    login = {
        "login": POSTGRES_USER,
        "password": POSTGRES_PASSWORD,
        "host": "127.0.0.1",
        "port": postgres.port,
        "schema": "postgres",
    }
    extra = {"application_name": "tx test", "unknown": "is not passed on"}
    _define(monkeypatch, "tx_state_pg", conn_type="postgres", **login, extra=extra)
    state = SqlState("tx_state_pg", table=table, keys=["key"], values={"n": Sum()})
    Grants().commit(1, state, {"a": 1})
    assert copy.deepcopy(state).read() == pickle.loads(pickle.dumps(state)).read() == [{"key": "a", "n": 1}]
    assert state.name == f"tx_state_pg.{table}"
    for shown in (repr(state), json.dumps(state.serialize())):
        assert "127.0.0.1" not in shown
        assert POSTGRES_PASSWORD not in shown


@pytest.mark.parametrize("how", ["host", "path", "double slash", "extra"])
def test_a_state_can_use_an_airflow_connection_to_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, how: str
) -> None:
    path = tmp_path / "state.db"
    uris = {"path": f"sqlite://{path}", "double slash": f"sqlite:///{path}"}
    if how in uris:
        monkeypatch.setenv("AIRFLOW_CONN_TX_STATE_LITE", uris[how])
    else:
        _define(monkeypatch, "tx_state_lite", conn_type="sqlite", host=str(path), extra={"timeout": 5})
    state = SqlState("tx_state_lite", table=table, keys=["key"], values={"n": Sum()})
    Grants().commit(1, state, {"a": 1})
    assert path.exists()
    assert state.read() == [{"key": "a", "n": 1}]


def test_the_error_about_an_invalid_connection_names_the_connection(
    monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    _define(monkeypatch, "tx_web", conn_type="http", host="example")
    _define(monkeypatch, "tx_nowhere", conn_type="sqlite")
    for conn_id, message in {"tx_web": "sqlite, postgres or mysql", "tx_nowhere": "path of a file"}.items():
        with pytest.raises(ConfigError, match=f"{conn_id}.*{message}"):
            SqlState(conn_id, table=table, keys=[], values={"n": Sum()}).read()


def test_the_error_about_an_unreachable_database_does_not_show_the_password(table: str, tmp_path: Path) -> None:
    server = LocalPostgres()  # never started: nobody listens
    down = SqlState.from_url(server.url(), table=table, keys=["key"], values={"n": Sum()}, label="tx_state")
    missing = SqlState.from_url(f"sqlite:///{tmp_path}/no/such/folder/db", table=table, keys=[], values={"n": Sum()})
    for state in (down, missing):
        for use in (state.read, state.fence, state.clear, lambda state=state: state.raise_fence(Grants()(1))):
            with pytest.raises(StateUnavailable, match="cannot be reached") as failure:
                use()
            assert POSTGRES_PASSWORD not in str(failure.value)
    server.close()


def test_a_wrong_password_is_not_shown_in_the_error(postgres: LocalPostgres, table: str) -> None:
    url = sa.make_url(postgres.url()).set(password="wrong-s3cret").render_as_string(hide_password=False)
    with pytest.raises(StateUnavailable) as failure:
        SqlState.from_url(url, table=table, keys=[], values={"n": Sum()}).read()
    assert "wrong-s3cret" not in str(failure.value)
    assert failure.value.__cause__ is None


def test_a_commit_waits_for_a_locked_sqlite_file_and_then_fails(tmp_path: Path, table: str) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}?timeout=0.1"
    state = SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})
    Grants().commit(1, state, {"a": 1})
    with sa.create_engine(url).connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StateUnavailable, match="database is locked"):
            state.raise_fence(Grants()(1))
        assert state.read() == [{"key": "a", "n": 1}]


def _impatient(url: str, table: str, options: str) -> SqlState:
    changed = sa.make_url(url).update_query_dict({"options": options}).render_as_string(hide_password=False)
    return SqlState.from_url(changed, table=table, keys=["key"], values={"n": Sum()})


def test_postgres_sessions_have_timeouts_unless_the_database_user_has_other_timeouts(
    postgres: LocalPostgres, table: str
) -> None:
    def times(state: SqlState) -> list[str]:
        names = ("lock_timeout", "idle_in_transaction_session_timeout")
        with state._store.transaction() as connection:
            return [connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names]

    name = postgres.new_database()
    url = postgres.url(name)
    assert times(SqlState.from_url(url, table=table, keys=[], values={"n": Sum()})) == ["30s", "1min"]
    assert times(_impatient(url, table, "-c lock_timeout=0")) == ["0", "1min"]
    query(url, f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '7s'")
    assert times(_impatient(url, table, "-c lock_timeout=5s")) == ["5s", "7s"]


def test_the_keepalives_of_postgres_sessions_detect_a_lost_host(postgres: LocalPostgres, table: str) -> None:
    state = SqlState.from_url(postgres.url(), table=table, keys=[], values={"n": Sum()})
    with state._store.transaction() as connection:
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
        assert [connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names] == ["10", "5", "4"]


def test_a_commit_waits_for_a_fence_locked_by_another_session_and_then_fails(
    postgres: LocalPostgres, table: str
) -> None:
    holder = SqlState.from_url(postgres.url(), table=table, keys=["key"], values={"n": Sum()})
    waiting = _impatient(postgres.url(), table, "-c lock_timeout=200ms")
    Grants().commit(1, holder, {"a": 1})
    with holder._store.transaction() as connection:
        holder._store.read_fence(connection, lock="update")
        with pytest.raises(StateLocked, match="locked by another session: .*lock timeout.* The next try waits again"):
            waiting.raise_fence(Grants()(1))


def test_the_server_ends_an_idle_session_that_holds_the_fence(postgres: LocalPostgres, table: str) -> None:
    silent = SqlState.from_url(postgres.url(), table=table, keys=["key"], values={"n": Sum()})
    other, grants = SqlState.from_url(postgres.url(), table=table, keys=["key"], values={"n": Sum()}), Grants()
    grants.commit(1, other, {"a": 1})

    def hold() -> None:
        with silent._store.transaction() as connection:
            silent._store.read_fence(connection, lock="update")
            # Only now: on a busy machine it is silent before it has the lock, too.
            connection.execute(sa.text("SET idle_in_transaction_session_timeout = '1s'"))
            grants.commit(2, other, {"a": 1})  # it waits for the lock, and gets it
            silent._store.read_fence(connection)

    with pytest.raises(StateUnavailable) as failure:
        hold()
    assert not isinstance(failure.value, StateOutcomeUnknown)
    assert other.read() == [{"key": "a", "n": 2}]


def test_a_lost_reply_to_the_commit_is_reported_as_an_unknown_outcome(
    postgres: LocalPostgres, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, grant = SqlState.from_url(postgres.url(), table=table, keys=["key"], values={"n": Sum()}), Grants()(1)
    state.fence()
    dialect = state._store._engine.dialect

    def commit_and_lose_the_answer(dbapi_connection: Any) -> None:
        dbapi_connection.commit()
        pid = dbapi_connection.get_backend_pid()
        query(postgres.url(), f"SELECT pg_terminate_backend({pid})")
        dbapi_connection.cursor().execute("SELECT pg_sleep(60)")

    with monkeypatch.context() as lossy:
        lossy.setattr(dialect, "do_commit", commit_and_lose_the_answer)
        with pytest.raises(StateOutcomeUnknown, match="may have been written.*the next try finds out") as failure:
            state.raise_and_write(grant, rows({"a": 1}))
        assert "Nothing" not in str(failure.value)
        assert isinstance(failure.value, StateUnavailable)
        assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)
    assert state.raise_and_write(grant, rows({"a": 1})) == 1
    assert state.read() == [{"key": "a", "n": 1}]


def test_a_state_is_unchanged_if_reading_the_rows_fails(url: str, table: str) -> None:
    grants, state = Grants(), SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})

    def broken() -> Iterator[dict[str, Any]]:
        yield from rows({f"key {i}": i for i in range(12_000)})
        raise OSError("the staged file is gone")

    with pytest.raises(OSError, match="staged file"):
        state.raise_and_write(grants(1), broken())
    assert (state.fence(), state.read()) == (None, [])


@pytest.mark.parametrize("key", ["two  spaces", "50 % off", 'a "quoted" one'])
def test_a_column_has_exactly_the_name_that_the_state_declares(url: str, table: str, key: str) -> None:
    grants = Grants()
    state = SqlState.from_url(url, table=table, keys=[key], values={"n": Sum()})
    for txid in (1, 2):
        grant = grants(txid)
        state.raise_and_write(grant, [{key: "AA", "n": txid}])
        grants.final(grant, state)
    assert state.read() == [{key: "AA", "n": 3}]
    with sa.create_engine(url, poolclass=sa.pool.NullPool).connect() as connection:
        assert key in {column["name"] for column in sa.inspect(connection).get_columns(table)}
