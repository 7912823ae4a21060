"""One file a run, summed up per key by a warm Spark Connect server and added to a table: as a transaction."""

from __future__ import annotations

from airflow.sdk import DAG
from processor_time import note_processor_time

from airflow_tx import CommitOperator, FileSource, SparkConnectBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("tx_state", table="connected", keys=["key"], values={"n": Count(), "total": Sum()}, kind="opaque")

with DAG("connected", schedule=None, max_active_runs=4, default_args={"on_success_callback": note_processor_time}):
    with Transaction(source=FileSource("files/*.csv"), max_pending=1):
        sums = SparkConnectBatchOperator(task_id="sum_up", application="connected_app.py")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(sums.output["sums"], state=totals)])
