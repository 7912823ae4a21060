"""The Twitter analytics of the Storm book: count the tweets that name each user, each hashtag, and both together.

A transaction reads the next tweets from Redis, Spark splits and joins them, and a committer adds the counts to another
Redis. Three topologies are from the chapter:

* `twitter` reads one database
* `twitter_partitioned` reads four databases, each as a partition
* `twitter_opaque` reads four databases, and a replay may have other tweets; so the state also keeps the counts before
  the last transaction

The fourth one, `twitter_tasks`, does not use Spark. Its Airflow tasks are the bolts of Figure 8-1: two splitters with
two instances each, a join, and a committer.

    airflow connections add redis_tweets --conn-json '{"conn_type": "redis", "host": "..."}'
    airflow connections add redis_counts --conn-json '{"conn_type": "redis", "host": "..."}'
    airflow connections add spark_connect_default --conn-type spark_connect --conn-host ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    RedisNumberedSource,
    SparkConnectBatchOperator,
    Transaction,
    coordinator_dag,
    current_batch,
    partition_persist,
    persistent_aggregate,
)
from airflow_tx.state import RedisGuard, RedisState, Sum

MAX_TRANSACTION_SIZE = 300
PARTS = [0, 1]
OPTIONS: dict[str, Any] = {"schedule": None, "max_active_runs": 8, "tags": ["transactions", "example"]}


class Counted:
    """Return the commands of the committer.

    A script runs them and stores the txid, so that they run once per transaction.

    :param prefix: the prefix of the hashes users, hashtags and users_hashtags.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, int]]:
        # A replay runs the same commands.
        for row in sorted(rows, key=lambda row: (row["hash"], row["field"])):
            yield "HINCRBY", f"{self.prefix}:{row['hash']}", row["field"], row["n"]


def tweets(databases: list[int], kind: str = "transactional") -> RedisNumberedSource:
    """Return a source that reads the tweets under the keys 1, 2, 3 ... of databases."""
    return RedisNumberedSource(
        "redis_tweets", databases=databases, kind=kind, max_rows_per_batch=MAX_TRANSACTION_SIZE, move_cursor=True
    )


def split() -> SparkConnectBatchOperator:
    """Return the splitters and the join as a Spark application."""
    return SparkConnectBatchOperator(task_id="split_and_join", application="spark_apps/twitter.py")


@task
def words(sign: str, part: int) -> list[tuple[int, str]]:
    """Return the users or the hashtags in a part of the tweets, each once per tweet. This function is a splitter."""
    return [
        (tweet["number"], word)
        for tweet in current_batch().read()
        if tweet["number"] % len(PARTS) == part
        for word in dict.fromkeys(tweet["message"].split(" "))
        if word.startswith(sign)
    ]


@task
def join(users: Any, hashtags: Any) -> list[dict[str, Any]]:
    """Count the tweets that name each user, each hashtag, and both. This function is the join."""
    found = {"users": list(chain(*users)), "hashtags": list(chain(*hashtags))}
    both = [(n, f"{user}:{tag}") for n, user in found["users"] for m, tag in found["hashtags"] if m == n]
    counts = {name: Counter(word for _, word in each) for name, each in {**found, "users_hashtags": both}.items()}
    return [{"hash": name, "field": word, "n": n} for name, each in counts.items() for word, n in each.items()]


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

with DAG("twitter_tasks", **OPTIONS):
    with Transaction(source=tweets([9]), max_pending=3):
        users = words.override(task_id="users").partial(sign="@").expand(part=PARTS)
        hashtags = words.override(task_id="hashtags").partial(sign="#").expand(part=PARTS)
        guard = RedisGuard("redis_counts", prefix="tasks", commands=Counted("tasks"))
        CommitOperator(task_id="commit", updates=[partition_persist(join(users, hashtags), state=guard)])

for topology in ("twitter", "twitter_partitioned", "twitter_opaque", "twitter_tasks"):
    coordinator_dag(topology)
