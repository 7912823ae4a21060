"""Values and names at the edges, from a task into a table of a database: there as they were given, or refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import TxError
from airflow_tx.state import SqlTable
from airflow_tx.testing.suites.state_tools import Grants
from tests.edges.state_values import TABLE_BATCHES, spelled

MakeTable = Callable[..., SqlTable]
NAMES: list[Any] = [
    "a b", " a", 'a"b', "a`b", "a'b", "a%b", "a%%b", "a%(b)s", "a%s", ":a", "a:b", "a?b", "a\\b", "a\nb", "a\tb", "a,b",
    "a(b)", "a]b", "a;b", "--a", "{a}", "ä", "日本", "Upper", "select", "order", "user", "1", "rowid", "column1", "c0",
    "tx_x", "tx_rows", "tx_number", "tx_p0", "tx_w0", "x" * 63, "é" * 31 + "x",
]  # fmt: skip
"""Names that each database takes."""
OTHERS: list[Any] = ["x" * 64, "é" * 32, "", "\0", "\ud800", "a\0b", 5, None]
"""Names that none takes whole."""
SOME: list[Any] = ["TX_TXID", "a.b", "ctid", "a ", "🙂"]
"""Names that some of them take."""


@pytest.fixture(
    scope="module", params=["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in ("postgres", "mariadb"))]
)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeTable:
    """Opens a table, by default one that is not there."""
    if request.param == "sqlite":
        folder: Path = tmp_path_factory.mktemp("tables")
        url = f"sqlite:///{folder}/edges.db"
    else:
        url = request.getfixturevalue(request.param).url()
    return lambda table="", **how: SqlTable.from_url(url, table=table or f"t{uuid.uuid4().hex[:12]}", **how)


def committed(grants: Grants, txid: int, table: SqlTable, rows: list[dict[Any, Any]]) -> bool:
    """Commit rows, or nothing if they are refused; returns whether they are in."""
    refused = ""
    try:
        grants.commit_rows(txid, table, rows)
    except TxError as error:
        refused = str(error)
    if refused:
        assert "\n" not in refused
        grants.commit_rows(txid, table, [], attempt=2)
    return not refused


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=TABLE_BATCHES, is_kept=st.booleans())
@example(batches=[[{"a": 2**63}], [{"a": [1, 2]}]], is_kept=False)
def test_a_table_stores_the_edge_values_of_a_task_exactly_or_refuses_the_rows(
    make: MakeTable, batches: list[list[dict[str, Any]]], is_kept: bool
) -> None:
    table, grants = make(add_columns=True), Grants()
    taken = list[list[str]]()
    for txid, rows in enumerate(batches, 1):
        opened = table if is_kept else make(table.table, add_columns=True)
        if committed(grants, txid, opened, rows):
            taken += map(spelled, rows)
    assert sorted(map(spelled, table.read())) == sorted(taken)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_column_with_an_unusual_name_are_written_and_read(make: MakeTable, name: str) -> None:
    table, late, grants = make(), make(add_columns=True), Grants()
    assert committed(grants, 1, table, [{name: "it's"}])
    assert committed(grants, 2, make(table.table), [{name: None}])
    assert [row[name] for row in table.read()] == ["it's", None]
    grants = Grants()
    assert committed(grants, 1, late, [{"before": 1}])
    assert committed(grants, 2, late, [{name: "it's"}])
    assert [row[name] for row in late.read()] == [None, "it's"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_table_with_an_unusual_name_are_written_and_read(make: MakeTable, name: str) -> None:
    table = make(name)
    try:
        assert committed(Grants(), 1, table, [{"a": 1}])
        assert table.rows_by_txid() == {1: 1}
        table.release()
        assert committed(Grants(), 1, make(name), [{"a": 2}])
        assert table.rows_by_txid() == {None: 1, 1: 1}
    finally:
        table.clear()


@pytest.mark.parametrize("name", OTHERS)
def test_a_column_name_that_no_database_accepts_is_refused_with_one_line(make: MakeTable, name: Any) -> None:
    table = make()
    assert not committed(Grants(), 1, table, [{name: 1}])
    assert table.read() == []
    if isinstance(name, str):
        with pytest.raises(TxError) as refused:
            Grants().commit_rows(1, make(name) if name else SqlTable("db", table=name), [{"a": 1}])
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", SOME)
def test_a_column_name_that_some_databases_refuse_is_either_stored_or_refused_with_one_line(
    make: MakeTable, name: str
) -> None:
    table = make()
    taken = committed(Grants(), 1, table, [{name: 1}])
    assert [row[name] for row in table.read()] == [1] * taken
