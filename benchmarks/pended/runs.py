"""Ten numbers a transaction, with one, four and sixteen in flight."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_tx import (
    CommitOperator,
    DataIntervalSource,
    Transaction,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState, Sum
from benchmarks.peers.jobs import FIRST, LAST
from benchmarks.peers.limited_numbers import LimitedNumbers, sums


@task(task_id="sum_up")
def sum_up_numbers() -> list[dict[str, Any]]:
    """The sums of ten numbers."""
    return sums([row["number"] for row in current_batch().read()])


def commit_sums(table: str) -> None:
    """Count the numbers of a batch in a table."""
    state = SqlState("tx_state", table=table, keys=["key"], values={"n": Count(), "total": Sum()})
    CommitOperator(task_id="commit", updates=[persistent_aggregate(sum_up_numbers(), state=state)])


days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
for pending in (1, 4, 16):
    dag_id = f"runs_{pending}"
    with DAG(dag_id, schedule=None, max_active_runs=pending + 1):
        with Transaction(source=LimitedNumbers(dag_id), max_pending=pending):
            commit_sums(dag_id)
    # It stays in its worker, and looks often: the figures are those of transactions, not of waiting.
    coordinator_dag(dag_id, poll=0.2, linger=300, is_paused_upon_creation=True)
    for name in ("created", "backfilled"):
        dag_id = f"{name}_{pending}"
        with DAG(dag_id, schedule=days, start_date=FIRST, end_date=LAST, catchup=False, max_active_runs=pending + 1):
            source = DataIntervalSource("benchmarks.pended.numbers_of_day.numbers_of_day", in_order=True)
            with Transaction(source=source, max_pending=pending):
                commit_sums(dag_id)
