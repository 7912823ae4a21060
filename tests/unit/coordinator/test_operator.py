"""What the coordinator goes by: what its transaction says, else what the configuration says."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, Transaction, coordinator_dag, persistent_aggregate
from airflow_tx.coordinator.dag import CoordinateOperator
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import Count, MemoryState


def coordinate(name: str, **options: float) -> CoordinateOperator:
    """The task of the coordinator of a topology."""
    with DAG(name, schedule=None, max_active_runs=8), Transaction(source=MemorySource({"a": []}), **options) as batch:  # type: ignore[arg-type]

        @task
        def count(batch: object) -> list[dict[str, int]]:
            return []

        state = MemoryState("totals", keys=["word"], values={"count": Count()})
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(batch), state=state)])
    operator = coordinator_dag(name).task_dict["coordinate"]
    assert isinstance(operator, CoordinateOperator)
    return operator


def test_a_transaction_is_late_after_the_processing_timeout_of_its_block() -> None:
    assert coordinate("timed", processing_timeout=7.0)._pace().rules.message_timeout == 7.0


def test_a_transaction_is_late_after_the_processing_timeout_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PROCESSING_TIMEOUT", "11")
    assert coordinate("untimed")._pace().rules.message_timeout == 11.0
