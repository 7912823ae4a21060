"""The jobs as transactions, which a coordinator starts as runs, or takes through its lane as far as it can."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    FileSource,
    SparkConnectBatchOperator,
    Transaction,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState, Sum
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.limited_numbers import LimitedNumbers, sums


@task(task_id="sum_up")
def sum_up_numbers() -> list[dict[str, Any]]:
    """The sums of ten numbers."""
    return sums([row["number"] for row in current_batch().read()])


for way in ("runs", "lane"):
    for job in JOBS.values():
        dag_id = f"{way}_{job.name}"
        with DAG(dag_id, schedule=None, max_active_runs=8):
            files = FileSource(f"{dag_id}/*.csv", files_per_batch=job.files or 1)
            with Transaction(source=files if job.files else LimitedNumbers(dag_id), max_pending=4):
                if job.files:
                    rows = SparkConnectBatchOperator(task_id="sum_up", application="sum_up.py").output["sums"]
                else:
                    rows = sum_up_numbers()
                state = SqlState("tx_state", table=dag_id, keys=["key"], values={"n": Count(), "total": Sum()})
                CommitOperator(task_id="commit", updates=[persistent_aggregate(rows, state=state)])
        # It stays in its worker, and looks often: the figures are those of transactions, not of waiting.
        coordinator_dag(dag_id, lane=way == "lane", poll=0.2, linger=300, is_paused_upon_creation=True)
