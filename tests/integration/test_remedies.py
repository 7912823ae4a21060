"""What the refusals of a `SqlTable` tell a person to do, done on the table that they are about."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import StateDiffers, StateError
from airflow_tx.state import SqlTable
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query

INDEX = "CREATE INDEX {t}_i ON {t} (tx_txid)"
STATEMENTS: dict[str, tuple[list[str], list[str]]] = {
    "no column of txids": (["CREATE TABLE {t} (a BIGINT)"], ["ADD COLUMN", "CREATE INDEX"]),
    "txids of another type": (
        ["CREATE TABLE {t} (a BIGINT, tx_txid VARCHAR(9))", INDEX],
        ["RENAME COLUMN", "ADD COLUMN", "CREATE INDEX"],
    ),
    "txids in capitals": (
        ["CREATE TABLE {t} (a BIGINT, {q}TX_TXID{q} BIGINT)", "CREATE INDEX {t}_i ON {t} ({q}TX_TXID{q})"],
        ["RENAME COLUMN"],
    ),
    "no index": (["CREATE TABLE {t} (a BIGINT, tx_txid BIGINT)"], ["CREATE INDEX"]),
    "an index that begins otherwise": (
        ["CREATE TABLE {t} (a BIGINT, tx_txid BIGINT)", "CREATE INDEX {t}_j ON {t} (a, tx_txid)"],
        ["CREATE INDEX"],
    ),
    "no column of the rows": (["CREATE TABLE {t} (tx_txid BIGINT)", INDEX], ["ADD COLUMN"]),
    "a copy": (
        ["CREATE TABLE {t} (a BIGINT, tx_txid BIGINT)", INDEX, "INSERT INTO {t} VALUES (1, 1), (2, 2), (3, -5)"],
        ["UPDATE"],
    ),
}


@pytest.mark.parametrize("case", list(STATEMENTS))
def test_the_statements_of_the_refusals_make_a_table_that_takes_rows(
    url: str, table: str, grants: Grants, case: str
) -> None:
    made, expected = STATEMENTS[case]
    quote = "`" if url.startswith("mysql") else '"'
    named = f"{quote}{table}_100%{quote}"
    for statement in made:
        place = statement.replace("{t}_", f"{table}_")
        query(url, place.format(t=named, q=quote))
    for told in expected:
        with pytest.raises(StateDiffers, match=f"commit task: .*{told}") as refused:
            grants.commit_rows(1, SqlTable.from_url(url, table=f"{table}_100%"), [{"a": 7}])
        query(url, str(refused.value).rpartition("commit task: ")[2])
    state = SqlTable.from_url(url, table=f"{table}_100%")
    grants.commit_rows(1, state, [{"a": 7}])
    assert [row["a"] for row in state.read() if row["tx_txid"] == 1] == [7]


def test_the_statement_for_a_state_whose_table_was_not_renamed_renames_it(url: str, table: str, grants: Grants) -> None:
    old, new = (SqlTable.from_url(url, table=f"{table} {name}") for name in ("it's 100%", "Two"))
    grants.commit_rows(1, old, [{"a": 7}])
    with pytest.raises(StateError, match="there is no table .* Two.*Move the values first: ALTER TABLE") as refused:
        new.take_over(old.name)
    query(url, str(refused.value).rpartition("first: ")[2])
    new.take_over(old.name)
    assert [row["a"] for row in new.read()] == [7]


def test_a_view_is_refused_and_the_table_behind_it_takes_rows(url: str, table: str, grants: Grants) -> None:
    query(url, f"CREATE TABLE {table} (a BIGINT, tx_txid BIGINT)")
    query(url, INDEX.format(t=table))
    query(url, f"CREATE VIEW {table}_v AS SELECT * FROM {table}")
    with pytest.raises(StateDiffers, match="_v is a view, .*Give the state the table behind it"):
        grants.commit_rows(1, SqlTable.from_url(url, table=f"{table}_v"), [{"a": 7}])
    grants.commit_rows(1, SqlTable.from_url(url, table=table), [{"a": 7}])


def test_a_generated_column_is_refused_in_rows_that_are_taken_without_it(url: str, table: str, grants: Grants) -> None:
    generated = "d BIGINT GENERATED ALWAYS AS (a * 2) STORED"
    query(url, f"CREATE TABLE {table} (a BIGINT, {generated}, tx_txid BIGINT)")
    query(url, INDEX.format(t=table))
    state = SqlTable.from_url(url, table=table)
    with pytest.raises(StateDiffers, match="column d of table .* is generated.*Leave d out of the rows"):
        grants.commit_rows(1, state, [{"a": 7, "d": 14}])
    grants.commit_rows(1, state, [{"a": 7}])
    assert [(row["a"], row["d"]) for row in state.read()] == [(7, 14)]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("name", ["orders", "it's 100%"])
def test_a_table_with_row_level_security_takes_rows(url: str, table: str, grants: Grants, name: str) -> None:
    place = f'"{table} {name}"'
    user = f"{table}_user"
    made = sa.engine.make_url(url).set(username=user, password="of the user")
    other = made.render_as_string(hide_password=False)
    query(url, f"CREATE ROLE {user} LOGIN PASSWORD 'of the user'")
    query(url, f"CREATE TABLE {place} (a BIGINT, tx_txid BIGINT); CREATE INDEX ON {place} (tx_txid)")
    query(url, f"ALTER TABLE {place} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {place} USING (true)")
    SqlTable.from_url(url, table=f"{table}_first").raise_fence(Grants()(1))
    query(url, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
    state = SqlTable.from_url(other, table=f"{table} {name}")
    for txid in (1, 2):
        grants.commit_rows(txid, state, [{"a": txid}])
    assert state.rows_by_txid() == {1: 1, 2: 1}
    query(url, f"DROP OWNED BY {user}; DROP ROLE {user}")


NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 5)
VALUES: dict[str, Any] = {
    "bigint": 2**62,
    "double": 0.1,
    "numeric": Decimal("1.10"),
    "text": "ä ",
    "boolean": True,
    "date": NOON.date(),
    "timestamp": NOON,
    "timestamptz": NOON.replace(tzinfo=dt.timezone.utc),
    "bytes": b"\x00",
    "json": {"x": [1, None]},
}


def test_each_type_that_a_refusal_names_keeps_values(url: str, table: str, grants: Grants) -> None:
    query(url, f"CREATE TABLE {table}_r (a DECIMAL(10,2), tx_txid BIGINT)")
    query(url, INDEX.format(t=f"{table}_r"))
    with pytest.raises(StateDiffers, match="values would change.*Declare it as one of: ") as refused:
        grants.commit_rows(1, SqlTable.from_url(url, table=f"{table}_r"), [{"a": Decimal("1.10")}])
    named = str(refused.value).partition("one of: ")[2].removesuffix(".").split("; ")
    assert len(named) == len(VALUES)
    for number, (value, kind) in enumerate(zip(VALUES.values(), named, strict=True)):
        query(url, f"CREATE TABLE {table}_{number} (a {kind}, tx_txid BIGINT)")
        query(url, INDEX.format(t=f"{table}_{number}"))
        state = SqlTable.from_url(url, table=f"{table}_{number}")
        Grants().commit_rows(1, state, [{"a": value}])
        assert [row["a"] for row in state.read()] == [value], kind


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["CLOB", "SMALLINT", "CHARACTER(20)", "NVARCHAR(9)", "UNSIGNED BIG INT"])
def test_a_type_of_sqlite_that_changes_no_value_is_taken(url: str, table: str, grants: Grants, kind: str) -> None:
    value = 7 if "INT" in kind else "x"
    query(url, f"CREATE TABLE {table} (a {kind}, tx_txid BIGINT)")
    query(url, INDEX.format(t=table))
    state = SqlTable.from_url(url, table=table)
    grants.commit_rows(1, state, [{"a": value}])
    assert [row["a"] for row in state.read()] == [value]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("values", [[None], [np.float32(0.5)], [None, 1, np.float32(2.5)]])
def test_the_type_that_a_refusal_names_takes_the_values(
    url: str, table: str, grants: Grants, values: list[Any]
) -> None:
    given = [{"id": number, "a": value} for number, value in enumerate(values)]
    with pytest.raises(StateError, match="column a has no clear type.* Name it: types=") as refused:
        grants.commit_rows(1, SqlTable.from_url(url, table=table), given)
    kind = str(refused.value).rpartition(': "')[2].partition('"')[0]
    grants.commit_rows(1, SqlTable.from_url(url, table=table, types={"a": kind}), given)


UNKNOWN = [uuid.UUID(int=1), dt.time(1, 2), dt.timedelta(1), {"a"}, ("a",), sa.null()]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", UNKNOWN, ids=lambda value: type(value).__name__)
def test_a_value_of_no_type_is_named_and_its_text_is_taken(url: str, table: str, grants: Grants, value: Any) -> None:
    state = SqlTable.from_url(url, table=table)
    with pytest.raises(StateError, match=f"its values are {type(value).__name__}.*such as str"):
        grants.commit_rows(1, state, [{"a": value}])
    grants.commit_rows(1, state, [{"a": str(value)}])
