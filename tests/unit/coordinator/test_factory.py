"""A file that makes many DAGs, and in the process of a task those alone that the task needs; Airflow's own DagBag."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_tx.coordinator.dag import dag_is_needed

FILE = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, coordinator_dag, dag_is_needed, persistent_aggregate
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import Count, MemoryState

@task
def count():
    return []

for shop in ("north", "south"):
    if dag_is_needed(shop):
        with DAG(shop, schedule=None, max_active_runs=8):
            with Transaction(source=MemorySource({}, per_batch=5), max_pending=4):
                state = MemoryState("words", keys=["word"], values={"n": Count()})
                CommitOperator(task_id="commit", updates=[persistent_aggregate(count(), state=state)])
        coordinator_dag(shop)
"""
NORTH = {"north", "north_coordinator", "north_coordinator_blocked"}
SOUTH = {"south", "south_coordinator", "south_coordinator_blocked"}
CONTEXT = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"


@pytest.mark.parametrize("asked", [*sorted(NORTH), None])
def test_the_process_of_a_task_creates_only_the_dag_of_this_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    (tmp_path / "shops.py").write_text(FILE)
    if asked is not None:
        monkeypatch.setenv(CONTEXT, asked)
    bag = DagBag(dag_folder=str(tmp_path))
    assert (bag.import_errors, {*bag.dags}) == ({}, NORTH if asked else NORTH | SOUTH)


def test_a_coordinator_whose_dag_has_its_own_name_creates_the_dag_of_its_topology(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONTEXT, "sales_coordinator")
    assert dag_is_needed("north", topology="sales")
    monkeypatch.setenv(CONTEXT, "runs_it")
    assert dag_is_needed("north", coordinator="runs_it")
    assert not dag_is_needed("north")
