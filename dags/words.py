"""Count words in two databases with one transaction. The hash of a word decides its database.

A commit may fail between the two databases. Every word is still counted once. airflow connections add tx_words_0
--conn-json '{"conn_type": "sqlite", "host": "/data/words_0.db"}' airflow connections add tx_words_1 --conn-json
'{"conn_type": "sqlite", "host": "/data/words_1.db"}'
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState

databases = [
    SqlState(f"tx_words_{number}", table="word_counts", keys=["word"], values={"count": Count()}) for number in (0, 1)
]


@task
def count_words(database: int) -> list[dict[str, Any]]:
    """Return the counts of the words in the batch that belong to this database."""
    words = Counter(word for row in current_batch().read() for word in row["sentence"].split())
    return [
        {"word": word, "count": count}
        for word, count in words.items()
        if crc32(word.encode()) % len(databases) == database
    ]


with DAG("words", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("sentences/*.csv", files_per_batch=1), max_pending=4):
        CommitOperator(
            task_id="commit",
            updates=[persistent_aggregate(count_words(number), state=each) for number, each in enumerate(databases)],
        )
