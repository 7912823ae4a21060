"""One file a run, summed up per key by an application under spark-submit, and added to a table: as a transaction."""

from __future__ import annotations

from airflow.sdk import DAG
from processor_time import note_processor_time

from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("tx_state", table="submitted", keys=["key"], values={"n": Count(), "total": Sum()}, kind="opaque")

with DAG("submitted", schedule=None, max_active_runs=4, default_args={"on_success_callback": note_processor_time}):
    with Transaction(source=FileSource("files/*.csv"), max_pending=1):
        sums = SparkBatchOperator(task_id="sum_up", application="submitted_app.py")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(sums.output["sums"], state=totals)])
