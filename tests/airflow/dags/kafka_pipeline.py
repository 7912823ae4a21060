"""Events of Kafka, counted on a warm Spark server into PostgreSQL, three transactions at a time."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_tx import CommitOperator, KafkaSource, SparkConnectBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("kafka_totals", table="kafka_totals", keys=["key"], values={"events": Count(), "total": Sum()})

with DAG("kafka_pipeline", schedule=None, max_active_runs=16):
    source = KafkaSource("kafka_events", topic="events", max_rows_per_batch=500, timeout=60)
    with Transaction(source=source, max_pending=3):
        counts = SparkConnectBatchOperator(task_id="count", application="kafka_app.py", conn_id="kafka_spark")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counts.output["counts"], state=totals)])
