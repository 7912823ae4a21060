"""Values at the edges in a table, as the rows of its transactions: there as they were appended, or refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from airflow_tx.base.errors import StateError, TxError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.state import CommittedTable, DeltaTable, SqlTable, TableCounts
from airflow_tx.state.column_types import json_text
from airflow_tx.state.lake.files import write_python_rows
from airflow_tx.testing.suites.state_tools import Grants
from tests.edges.state_values import TABLE_BATCHES, spelled

MakeTable = Callable[[], CommittedTable]


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("postgres", "mariadb")),
        "delta",
        "partitioned",
    ],
)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeTable:
    """Makes a table that is not there yet."""
    folder: Path = tmp_path_factory.mktemp("tables")

    def name() -> str:
        return f"t{uuid.uuid4().hex[:12]}"

    if request.param in ("delta", "partitioned"):
        partition_by = ("a",) if request.param == "partitioned" else ()
        return lambda: DeltaTable(folder / name(), partition_by=partition_by)
    url = f"sqlite:///{folder}/edges.db" if request.param == "sqlite" else request.getfixturevalue(request.param).url()
    return lambda: SqlTable.from_url(url, table=name(), add_columns=True)


def told(row: dict[str, Any], json_columns: set[str]) -> list[str]:
    """Spell a row as a reader has it: in a JSON column of a database, each value is its text."""
    return spelled(
        {name: json_text(value) if name in json_columns and value is not None else value for name, value in row.items()}
    )


def made_for_json(rows: list[dict[str, Any]], columns: Iterable[str]) -> set[str]:
    """Name the columns that a database makes for lists and objects: the first batch with a column decides."""
    new = ((name, value) for row in rows for name, value in row.items() if name not in columns)
    return {name for name, value in new if isinstance(value, list | dict)}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=TABLE_BATCHES)
@example(batches=[[{"a": [1, 2]}], [{"a": 0}]])
@example(batches=[[{"a": -0.0}, {"a": 5e-324}], [{"b": 2**63 - 1}]])
def test_a_table_returns_exactly_the_appended_edge_values_or_refuses_them(
    make: MakeTable, batches: list[list[dict[str, Any]]]
) -> None:
    table = make()
    grants = Grants()
    taken = dict[int, list[list[str]]]()
    columns = set[str]()
    json_columns = set[str]()
    for txid, rows in enumerate(batches, 1):
        try:
            given_rows: Any = rows
            if isinstance(table, DeltaTable):
                given_rows = write_python_rows(table, rows, TransactionAttempt(txid, 1))
            grants.commit_rows(txid, table, given_rows)
            if isinstance(table, SqlTable):
                json_columns |= made_for_json(rows, columns)
            columns |= {name for row in rows for name, value in row.items() if value is not None}
            taken[txid] = sorted(told(row, json_columns) for row in rows)
        except TxError:
            grants.commit_rows(txid, table, [], attempt=2)
            taken[txid] = []
    counts = table.counts(taken)
    counts.close()
    assert counts.rows == {txid: len(rows) for txid, rows in taken.items()}
    for txid, expected in taken.items():
        refused = ""
        try:
            found = table.arrow(TableCounts({txid: 0})).read_all()
        except StateError as error:
            refused = str(error)
        if refused:
            # A number of any length fits a database, and no decimal of Arrow and Spark.
            assert isinstance(table, SqlTable)
            assert "\n" not in refused
            assert "decimal" in refused or "no such value" in refused
        else:
            assert sorted(spelled(row) for row in found.to_pylist(maps_as_pydicts="strict")) == expected
