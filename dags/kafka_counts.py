"""Count the events of every user in a Kafka topic. Each transaction has the next 2,000 events of all partitions.

    airflow connections add kafka_default --conn-json '{"conn_type": "kafka", "extra": {"bootstrap.servers": "..."}}'

Spark needs its connector to Kafka. Pass packages="org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>" to the
operator, or add the jars to spark.jars in spark-defaults.conf. See docs/kafka.md.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_tx import CommitOperator, KafkaSource, SparkBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("tx_state", table="user_events", keys=["user"], values={"events": Count(), "amount": Sum()})

with DAG("kafka_counts", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    source = KafkaSource(topic="events", value_schema="user STRING, amount BIGINT", max_rows_per_batch=2000)
    with Transaction(source=source, max_pending=3):
        counts = SparkBatchOperator(task_id="count", application="spark_apps/kafka_counts.py")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counts.output["counts"], state=totals)])
