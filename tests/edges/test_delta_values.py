"""Values at the edges, from a task into a table of Delta Lake: there as they were given, or refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import StateError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.state import DeltaTable
from airflow_tx.state.lake.files import write_python_rows
from airflow_tx.testing.suites.state_tools import Grants
from tests.edges.state_values import EXACT, NUMBERS, OTHERS, plain
from tests.lake import read_back

VALUES = st.sampled_from([None, *NUMBERS, *OTHERS, dt.time(1, 2), [1, 2], [1.5], [], {"x": 1}, {"x": None}, {}])


def spelled(row: dict[str, Any]) -> list[str]:
    """Spell the values of a row: a table has no NULL that a row has not."""
    return sorted(f"{name} {one(value)}" for name, value in row.items() if name != "tx_txid" and value is not None)


def one(value: Any) -> str:
    if isinstance(value, dict):  # a field that it lacks is NULL
        value = {name: each for name, each in value.items() if each is not None}
    kind, found = plain(value)
    return f"{kind} {found.normalize(EXACT) if kind == 'number' else found!r}"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.lists(st.dictionaries(st.sampled_from("ab"), VALUES, min_size=1), min_size=1, max_size=3), max_size=3
    ),
    partition_by=st.sampled_from([(), (), ("a",)]),
)
def test_a_table_holds_the_values_that_a_task_returned_or_the_rows_are_refused(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[dict[str, Any]]], partition_by: tuple[str, ...]
) -> None:
    folder: Path = tmp_path_factory.mktemp("table")
    table, grants, taken = DeltaTable(str(folder), partition_by=partition_by), Grants(), list[list[str]]()
    for txid, rows in enumerate(batches, 1):
        refused = None
        try:
            grants.commit_rows(txid, table, write_python_rows(table, rows, TransactionAttempt(txid, 1)))
            taken += map(spelled, rows)
        except StateError as error:
            refused = str(error)
        if refused is not None:
            assert "\n" not in refused
            grants.commit_rows(txid, table, [], attempt=2)
    if taken:
        assert sorted(map(spelled, read_back(str(folder)))) == sorted(taken)
