"""Trident's streaming word count, which stores the counts in Memcached as in the original.

A second state counts the letters in your own store. The store is a BackingMap with two methods, and the map around it
makes its values exact.

    airflow connections add tx_cache --conn-json '{"conn_type": "memcached", "host": "cache1,cache2"}'
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, MemcachedState, OpaqueMap, state_query


class Files:
    """A backing map that stores each key in a file."""

    def multi_get(self, keys: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the value of each key, or None for a key without a value."""
        return [pickle.loads(file.read_bytes()) if (file := self._file(key)).exists() else None for key in keys]

    def multi_put(self, keys: Sequence[tuple[Any, ...]], values: Sequence[Any]) -> None:
        """Store each value. A reader never sees a partial value."""
        for key, value in zip(keys, values, strict=True):
            written = self._file(key).with_suffix(".new")
            written.write_bytes(pickle.dumps(value))
            written.replace(self._file(key))

    def _file(self, key: tuple[Any, ...]) -> Path:
        folder = Path(os.environ["AIRFLOW_TX_DATA"], "letters")
        folder.mkdir(exist_ok=True)
        return folder / "-".join(map(str, key))


@task(multiple_outputs=True)
def split() -> dict[str, Any]:
    """Count the words of the batch, and their letters."""
    words = Counter(word for row in current_batch().read() for word in row["sentence"].split())
    letters = Counter("".join(words.elements()))
    return {
        "words": [{"word": word, "count": count} for word, count in words.items()],
        "letters": [{"letter": letter, "count": count} for letter, count in letters.items()],
    }


with DAG("memcached_words", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("sentences/*.csv", files_per_batch=1), max_pending=4):
        found: Any = split()
        words = persistent_aggregate(
            found["words"],
            state=MemcachedState.opaque("tx_cache", prefix="words:"),
            keys=["word"],
            values={"count": Count()},
        )
        letters = persistent_aggregate(
            found["letters"], state=OpaqueMap(Files(), name="letters"), keys=["letter"], values={"count": Count()}
        )
        commit = CommitOperator(task_id="commit", updates=[words, letters])

    @task
    def seen(sentence: str) -> int:
        """Return the sum of the counts of a sentence's words, which may already include a later transaction."""
        rows = [{"word": word} for word in set(sentence.split())]
        return sum(row["count"] or 0 for row in state_query(rows, state=words.state))

    commit >> seen("cat the dog jumped")
