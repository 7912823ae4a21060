"""What the coordinator goes by: what its transaction says, else what the configuration says."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, Param, task
from airflow.utils.types import DagRunType

from airflow_tx import CommitOperator, Transaction, coordinator_dag, persistent_aggregate
from airflow_tx.base import compat
from airflow_tx.base.errors import TransactionDefinitionError
from airflow_tx.coordinator.dag import CoordinateOperator
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.state import Count, MemoryState

OPERATOR = compat.operator_run_type()


def coordinate(name: str, dag: Any = None, source: Any = None, **options: float) -> CoordinateOperator:
    """The task of the coordinator of a topology.

    :param dag: options of the DAG with the transaction.
    """
    made = DAG(name, schedule=None, max_active_runs=8, **(dag or {}))
    with made, Transaction(source=source or MemorySource({"a": []}), **options) as batch:  # type: ignore[arg-type]

        @task
        def count(batch: object) -> list[dict[str, int]]:
            return []

        state = MemoryState("totals", keys=["word"], values={"count": Count()})
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(batch), state=state)])
    operator = coordinator_dag(name).task_dict["coordinate"]
    assert isinstance(operator, CoordinateOperator)
    return operator


def test_the_processing_timeout_of_the_transaction_sets_the_time_limit_of_the_coordinator() -> None:
    assert coordinate("timed", processing_timeout=7.0)._pace().rules.message_timeout == 7.0


def test_the_processing_timeout_of_the_configuration_sets_the_time_limit_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PROCESSING_TIMEOUT", "11")
    assert coordinate("untimed")._pace().rules.message_timeout == 11.0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"params": {"shop": Param(type="string", minLength=2)}}, r"no valid default: shop\. Give each one a default"),
        ({"params": {"shop": Param("x", type="string", minLength=2), "day": 1}}, r"no valid default: shop\. "),
        pytest.param(
            {"allowed_run_types": [DagRunType.MANUAL]},
            r"allowed_run_types = manual\. Add DagRunType.OPERATOR_TRIGGERED",
            marks=pytest.mark.skipif(compat.is_airflow_3_2(), reason="tasks start manual runs in Airflow 3.2"),
        ),
    ],
)
def test_a_coordinator_that_cannot_start_any_run_is_refused_while_its_file_is_parsed(options: Any, match: str) -> None:
    with pytest.raises(TransactionDefinitionError, match=f"its coordinator cannot start a run: .*{match}"):
        coordinate("unstartable", options)


@pytest.mark.parametrize(
    "options",
    [
        {"params": {"shop": Param("north", type="string")}},
        {"allowed_run_types": [DagRunType.MANUAL, OPERATOR]},
    ],
)
def test_a_coordinator_is_accepted_if_its_dag_was_changed_as_the_remedy_says(options: Any) -> None:
    assert coordinate("startable", options).task_id == "coordinate"


def test_a_coordinator_that_only_replays_accepts_required_params() -> None:
    params = {"shop": Param(type="string")}
    assert coordinate("replays", {"params": params}, DataIntervalSource("json.loads")).task_id == "coordinate"
