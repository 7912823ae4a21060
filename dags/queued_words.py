"""Storm's word count with workers outside Airflow: SplitSentence and WordCount read from queues in Redis.

A transaction sends the sentences of its batch to a queue. It commits when every sentence and every word of a sentence
is acked. The workers are plain processes, see examples/word_workers.py. They count each attempt separately, so the
counts of a replayed attempt are not used.

    airflow connections add tx_queues --conn-json '{"conn_type": "redis", "host": "..."}'
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import DAG, BaseHook, task

from airflow_tx import CommitOperator, FileSource, Transaction, commit_phase, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState

totals = SqlState("tx_state", table="queued_words", keys=["word"], values={"count": Count()})


def queues() -> Any:
    """Return a client of the Redis server with the queues."""
    from redis import Redis

    connection = BaseHook.get_connection("tx_queues")
    return Redis(
        connection.host or "localhost", connection.port or 6379, password=connection.password, decode_responses=True
    )


@task
def send_sentences() -> int:
    """Send a message for each sentence of the batch."""
    batch, redis = current_batch(), queues()
    sentences = [row["sentence"] for row in batch.read()]
    for reference, sentence in zip(batch.emit_many(len(sentences)), sentences, strict=True):
        redis.rpush("sentences", json.dumps([reference, sentence]))
    return len(sentences)


@task
def collect_counts() -> list[dict[str, Any]]:
    """Return the counts of the workers, which are complete, since the task runs in the commit phase."""
    found = queues().hgetall(f"counts:{current_batch().attempt}")
    return [{"word": word, "count": int(count)} for word, count in found.items()]


with DAG("queued_words", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    source = FileSource("queued/*.csv", files_per_batch=1)
    with Transaction(source=source, max_pending=4, processing_timeout=20, ackers=2, acker_store="tx_queues"):
        sent = send_sentences()
        with commit_phase():
            collected = collect_counts()
            CommitOperator(task_id="commit", updates=[persistent_aggregate(collected, state=totals)])
        sent >> collected
