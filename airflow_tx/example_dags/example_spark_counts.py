"""Add up the sales of each product: Spark adds up one file, and the totals are committed once, in order.

The DAG needs the extra `pyspark`, Java 17, the connections of `example_word_counts`, and one for Spark. The files are
below AIRFLOW_HOME, and their first line names the columns product and amount:

    airflow connections add spark_default --conn-json '{"conn_type": "spark", "host": "local[2]"}'
    mkdir -p sales; printf 'product,amount\\ntea,3\\ntea,4\\nrum,5\\n' >sales/monday.csv
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_tx import (
    CommitOperator,
    FileSource,
    SparkBatchOperator,
    Transaction,
    persistent_aggregate,
)
from airflow_tx.state import SqlState, Sum

sold = SqlState(
    "tx_state", table="example_spark_counts", keys=["product"], values={"amount": Sum()}
)

with DAG(
    "example_spark_counts", schedule=None, max_active_runs=4, tags=["example", "transactions"]
):
    with Transaction(source=FileSource("sales/*.csv", files_per_batch=1), max_pending=2):
        totals = SparkBatchOperator(task_id="totals", application="example_spark_application.py")
        CommitOperator(
            task_id="commit", updates=[persistent_aggregate(totals.output["sold"], state=sold)]
        )
