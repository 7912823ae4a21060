"""A batch on a warm Spark server, and updates that Spark writes: by that server, and by a driver of its own."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_tx import CommitOperator, FileSource, SparkConnectBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

each = SqlState("tx_postgres", table="each_number", keys=["number"], values={"times": Count()})
parity = SqlState("tx_postgres", table="parity", keys=["parity"], values={"numbers": Count(), "total": Sum()})

with DAG("big_counts", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("numbers/*.csv", files_per_batch=1), max_pending=4):
        counts = SparkConnectBatchOperator(task_id="count", application="big_app.py")
        CommitOperator(
            task_id="commit",
            updates=[
                persistent_aggregate(counts.output["each"], state=each, spark_from_rows=1),
                persistent_aggregate(counts.output["counts"], state=parity, writers="spark", spark="local[1]"),
            ],
        )
