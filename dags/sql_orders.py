"""Add up the orders of a shop from its PostgreSQL, with totals in the same database; Spark reads batches over JDBC.

Several clients insert orders at the same time. A batch ends at an order before which no database transaction can commit
any more, so orders that are committed late are counted, too.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_tx import CommitOperator, SparkConnectBatchOperator, SqlSource, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

orders = SqlSource("shop_db", table="orders", order_by="id", max_rows_per_batch=2_000, rows_per_read=500)
totals = SqlState(
    "shop_db",
    table="order_totals",
    keys=["product"],
    values={"orders": Count(), "amount": Sum()},
)

with DAG("sql_orders", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=orders, max_pending=2):
        # The Spark Connect server needs the JDBC driver, org.postgresql:postgresql. For a
        # SparkBatchOperator, set packages="org.postgresql:postgresql:42.7.7".
        counts = SparkConnectBatchOperator(
            task_id="count_orders", conn_id="shop_spark", application="spark_apps/sql_order_counts.py"
        )
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counts.output["counts"], state=totals)])
