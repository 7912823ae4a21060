"""Count the words of nine sentences: a transaction has three sentences, and each word is counted once.

The DAG needs the connections `zookeeper_default` and `tx_state`:

    airflow connections add zookeeper_default --conn-type zookeeper --conn-host 127.0.0.1:2181
    airflow connections add tx_state --conn-json '{"conn_type": "sqlite", "host": "/data/tx_state.db"}'

Trigger it three times, and clear or kill any task. Then `airflow tx state get example_word_counts
tx_state.example_word_counts` shows each word with its count.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    MemorySource,
    Transaction,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState

SENTENCES = {
    "0": [{"text": text} for text in ("the cow jumped", "over the moon", "the little dog")],
    "1": [{"text": text} for text in ("four score", "and seven years", "years ago")],
    "2": [{"text": text} for text in ("how many apples", "can you eat", "to be or not to be")],
}

words = SqlState("tx_state", table="example_word_counts", keys=["word"], values={"n": Count()})


@task
def count_words() -> list[dict[str, Any]]:
    """Count the words in the rows of this transaction."""
    counted = Counter(word for row in current_batch().read() for word in row["text"].split())
    return [{"word": word, "n": n} for word, n in counted.items()]


with DAG("example_word_counts", schedule=None, max_active_runs=4, tags=["example", "transactions"]):
    with Transaction(source=MemorySource(SENTENCES, per_batch=1), max_pending=2):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count_words(), state=words)])
