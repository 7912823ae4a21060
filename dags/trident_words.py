"""Trident's word count: Spark splits and counts sentences, and a query adds up the counts of a sentence's words.

The query is in the commit phase, so its result contains exactly the transactions up to its own. Another task reads the
new values of the batch's words.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    FileSource,
    SparkBatchOperator,
    Transaction,
    commit_phase,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState, state_query

word_counts = SqlState("tx_state", table="trident_words", keys=["word"], values={"count": Count()})


@task
def words(sentence: str) -> int:
    """Split a sentence, and return the sum of the counts of its words, like the DRPC function `words` of Trident."""
    asked = [{"word": word} for word in set(sentence.split())]
    return sum(row["count"] for row in state_query(asked, state=word_counts) if row["count"] is not None)


@task
def commonest(new_counts: Any) -> str:
    """Return the word of the batch with the highest count so far, from Trident's newValuesStream."""
    rows = current_batch().read_output(new_counts)
    return max(rows, key=lambda row: (row["count"], row["word"]))["word"]  # type: ignore[no-any-return]


with DAG("trident_words", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("sentences/*.csv", files_per_batch=1), max_pending=4):
        counted = SparkBatchOperator(task_id="count_words", application="spark_apps/trident_words.py")
        with commit_phase():
            update = persistent_aggregate(counted.output["counts"], state=word_counts, new_values="counts")
            commit = CommitOperator(task_id="commit", updates=[update])
            commit >> words("cat the dog jumped")
            commonest(commit.output["counts"])
