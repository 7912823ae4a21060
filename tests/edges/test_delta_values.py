"""Values at the edges, from a task into a table of Delta Lake: there as they were given, or refused."""

from __future__ import annotations

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
from tests.edges.state_values import TABLE_BATCHES, spelled
from tests.lake import read_back


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=TABLE_BATCHES,
    partition_by=st.sampled_from([(), (), ("a",)]),
)
def test_a_delta_table_stores_the_edge_values_of_a_task_exactly_or_refuses_the_rows(
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
