"""Ten numbers a transaction, with one, four and sixteen in flight."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, Transaction, coordinator_dag, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum
from benchmarks.peers.limited_numbers import LimitedNumbers, sums


@task(task_id="sum_up")
def sum_up_numbers() -> list[dict[str, Any]]:
    """The sums of ten numbers."""
    return sums([row["number"] for row in current_batch().read()])


for pending in (1, 4, 16):
    dag_id = f"runs_{pending}"
    with DAG(dag_id, schedule=None, max_active_runs=pending + 1):
        with Transaction(source=LimitedNumbers(dag_id), max_pending=pending):
            state = SqlState("tx_state", table=dag_id, keys=["key"], values={"n": Count(), "total": Sum()})
            CommitOperator(task_id="commit", updates=[persistent_aggregate(sum_up_numbers(), state=state)])
    # It stays in its worker, and looks often: the figures are those of transactions, not of waiting.
    coordinator_dag(dag_id, poll=0.2, linger=300, is_paused_upon_creation=True)
