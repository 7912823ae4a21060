"""Numbers in a queue of RabbitMQ, in lists of Redis, in shards of a table, and numbers that a state has weights of."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from counting import counted, state

from airflow_tx import (
    CommitOperator,
    FileSource,
    PartitionedSqlSource,
    RabbitQueueSource,
    RedisListSource,
    SparkConnectBatchOperator,
    Transaction,
    current_batch,
    persistent_aggregate,
)


@task(retries=2, retry_delay=timedelta(seconds=1))
def count_column(column: str) -> list[dict[str, Any]]:
    """Count the numbers in a column of the batch."""
    return counted([int(row[column]) for row in current_batch().read()])


LIMIT = {"max_rows_per_batch": 40}
SOURCES = {
    "queued": (RabbitQueueSource("numbers_queue", "numbers", **LIMIT), "message"),
    "listed": (RedisListSource("numbers_lists", lists=["numbers", "more"], **LIMIT), "message"),
    "sharded": (PartitionedSqlSource(["numbers_a", "numbers_b"], "numbers", kind="opaque", **LIMIT), "number"),
}
for dag_id, (source, column) in SOURCES.items():
    with DAG(dag_id, schedule=None, max_active_runs=16):
        with Transaction(source=source, max_pending=4):
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_column(column), state=state(dag_id))])

with DAG("looked_up", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("numbers/*.csv", files_per_batch=1), max_pending=4):
        weighed = SparkConnectBatchOperator(task_id="weigh", application="looked_up_app.py", conn_id="looked_up_spark")
        CommitOperator(
            task_id="commit", updates=[persistent_aggregate(weighed.output["weighed"], state=state("looked_up"))]
        )
