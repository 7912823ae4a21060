"""An Airflow DAG whose transactions are applications on a Spark Connect server, in the lane of its coordinator.

A file `<name of a batch's file>.<what>` in the folder of marks makes the application misbehave, as in `laned`.
"""

from __future__ import annotations

from airflow.sdk import DAG
from counting import state

from airflow_tx import (
    CommitOperator,
    FileSource,
    SparkConnectBatchOperator,
    Transaction,
    coordinator_dag,
    persistent_aggregate,
)

with DAG("applied", schedule=None, max_active_runs=8):
    with Transaction(source=FileSource("applied/*.csv", schema="number bigint"), max_pending=4):
        counted = SparkConnectBatchOperator(task_id="count", application="applied_app.py")
        CommitOperator(
            task_id="commit", updates=[persistent_aggregate(counted.output["parity"], state=state("applied"))]
        )

coordinator_dag("applied", lane=True, replay_backoff=2, linger=5, is_paused_upon_creation=True)
