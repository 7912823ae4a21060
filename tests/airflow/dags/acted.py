"""An Airflow DAG whose transactions a person skips, re-admits and replays."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task
from counting import counted, counting_dag, state

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate

acted = counting_dag("acted")


@task
def of_file() -> list[dict[str, Any]]:
    """Count the numbers in the files of the batch."""
    return counted([row["number"] for row in current_batch().read()])


with DAG("corrected", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("corrected/*.csv", schema="number INT"), max_pending=4):
        CommitOperator(
            task_id="commit", updates=[persistent_aggregate(of_file(), state=state("corrected", kind="transactional"))]
        )
