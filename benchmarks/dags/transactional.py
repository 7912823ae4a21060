"""One file a run, summed up per key and added to a table: as a transaction."""

from __future__ import annotations

import operator
from typing import Any

from airflow.sdk import DAG, task
from processor_time import note_processor_time

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("tx_state", table="transactional", keys=["key"], values={"n": Count(), "total": Sum()}, kind="opaque")


@task
def sum_up() -> list[dict[str, Any]]:
    """The sums of the batch, one row a key."""
    sums: dict[str, list[int]] = {}
    for row in current_batch().read():
        found = sums.get(row["key"], [0, 0])
        sums[row["key"]] = list(map(operator.add, found, [1, int(row["value"])]))
    return [{"key": key, "n": n, "total": total} for key, (n, total) in sums.items()]


with DAG("transactional", schedule=None, max_active_runs=4, default_args={"on_success_callback": note_processor_time}):
    with Transaction(source=FileSource("files/*.csv"), max_pending=1):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(sum_up(), state=totals)])
