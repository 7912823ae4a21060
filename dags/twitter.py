"""The book's Twitter analytics: how many tweets name each user, each hashtag, and both together. A transaction takes
the next tweets from Redis, Spark splits and joins them, and a committer adds the counts to another Redis.

The three topologies of the chapter: one database; four databases, a partition each; and four databases whose batches
may have other tweets when they are replayed, for which the counts before the last transaction are kept.

    airflow connections add redis_tweets --conn-json '{"conn_type": "redis", "host": "..."}'
    airflow connections add redis_counts --conn-json '{"conn_type": "redis", "host": "..."}'
    airflow connections add spark_connect_default --conn-type spark_connect --conn-host ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import DAG

from airflow_tx import (
    CommitOperator,
    RedisNumberedSource,
    SparkConnectBatchOperator,
    Transaction,
    coordinator_dag,
    partition_persist,
    persistent_aggregate,
)
from airflow_tx.state import RedisGuard, RedisState, Sum

MAX_TRANSACTION_SIZE = 300
OPTIONS: dict[str, Any] = {"schedule": None, "max_active_runs": 8, "tags": ["transactions", "example"]}


class Counted:
    """The committer's commands: they run in one script with the note of the last txid, so once per transaction.

    :param prefix: of the hashes users, hashtags and users_hashtags.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, int]]:
        for row in sorted(rows, key=lambda row: (row["hash"], row["field"])):  # a replay has the same commands
            yield "HINCRBY", f"{self.prefix}:{row['hash']}", row["field"], row["n"]


def tweets(databases: list[int], kind: str = "transactional") -> RedisNumberedSource:
    """Tweets under the keys 1, 2, 3 ... of databases."""
    return RedisNumberedSource(
        "redis_tweets", databases=databases, kind=kind, max_rows_per_batch=MAX_TRANSACTION_SIZE, move_cursor=True
    )


def split() -> SparkConnectBatchOperator:
    """The splitters and the join, on Spark."""
    return SparkConnectBatchOperator(task_id="split_and_join", application="spark_apps/twitter.py")


with DAG("twitter", **OPTIONS):
    with Transaction(source=tweets([0]), max_pending=3):
        guard = RedisGuard("redis_counts", prefix="twitter", commands=Counted("twitter"))
        CommitOperator(task_id="commit", updates=[partition_persist(split().output["counts"], state=guard)])

with DAG("twitter_partitioned", **OPTIONS):
    with Transaction(source=tweets([1, 2, 3, 4]), max_pending=3):
        guard = RedisGuard("redis_counts", prefix="partitioned", commands=Counted("partitioned"))
        CommitOperator(task_id="commit", updates=[partition_persist(split().output["counts"], state=guard)])

with DAG("twitter_opaque", **OPTIONS):
    with Transaction(source=tweets([5, 6, 7, 8], kind="opaque"), max_pending=3):
        counts = RedisState("redis_counts", prefix="opaque", keys=["hash", "field"], values={"n": Sum()}, kind="opaque")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(split().output["counts"], state=counts)])

for topology in ("twitter", "twitter_partitioned", "twitter_opaque"):
    coordinator_dag(topology)
