"""Topologies of the tests on the cluster: each counts rows per key of its own files, one file a transaction."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    FileSource,
    SparkBatchOperator,
    SparkConnectBatchOperator,
    Transaction,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState

# More tasks at once than one worker has slots for.
TOGETHER = 4
_MEETING = Path("/shared/data/met")


def totals(name: str) -> SqlState:
    return SqlState("tx_state", table=name, keys=["key"], values={"rows": Count()}, kind="opaque")


@task
def count_keys() -> list[dict[str, Any]]:
    found = Counter(row["key"] for row in current_batch().read())
    return [{"key": key, "rows": rows} for key, rows in found.items()]


@task
def meet(number: int, run_id: str | None = None) -> int:
    """Wait for the others of the first run: so many tasks run at the same moment; more would not have the slots."""
    if run_id == "r1":
        _MEETING.mkdir(exist_ok=True)
        (_MEETING / str(number)).touch()
        while len(list(_MEETING.iterdir())) < TOGETHER:
            time.sleep(0.2)
    return number


for name in ("guarded", "killed_worker", "frozen_worker", "killed_leader"):
    with DAG(name, schedule=None, max_active_runs=8):
        with Transaction(source=FileSource(f"{name}/*.csv", files_per_batch=1), max_pending=3):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_keys(), state=totals(name))])

with DAG("two_workers", schedule=None, max_active_runs=8):
    with Transaction(source=FileSource("two_workers/*.csv", files_per_batch=1), max_pending=3):
        counted = count_keys()
        meet.expand(number=list(range(TOGETHER))) >> counted
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=totals("two_workers"))])

_APPLICATION = "spark_apps/cluster_counts.py"
_OPERATORS: dict[str, Callable[[], Any]] = {
    "submitted": lambda: SparkBatchOperator(task_id="count", application=_APPLICATION),
    "submitted_to_cluster": lambda: SparkBatchOperator(
        task_id="count", application=_APPLICATION, deploy_mode="cluster", retries=0
    ),
    "connected": lambda: SparkConnectBatchOperator(task_id="count", application=_APPLICATION),
    "lost_executor": lambda: SparkBatchOperator(task_id="count", application="spark_apps/waiting_counts.py"),
    "lost_driver": lambda: SparkBatchOperator(task_id="count", application="spark_apps/waiting_counts.py"),
}
for name, make in _OPERATORS.items():
    with DAG(name, schedule=None, max_active_runs=8):
        with Transaction(source=FileSource(f"{name}/*.csv", files_per_batch=1), max_pending=3):
            counts = make()
            CommitOperator(
                task_id="commit", updates=[persistent_aggregate(counts.output["counts"], state=totals(name))]
            )
