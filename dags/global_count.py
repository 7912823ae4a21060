"""Count all tuples: each batch has a partial count, and the commits add these to one sum, in order.

This is the example of Storm's transactional topologies, with three partitions. A transaction has at most three tuples
per partition.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, MemorySource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState

PARTITIONS: dict[str, list[dict[str, Any]]] = {
    "0": [{"word": word} for word in ("cat", "dog", "chicken", "cat", "dog", "apple")],
    "1": [{"word": word} for word in ("cat", "dog", "apple", "banana")],
    "2": [{"word": word} for word in ("cat", "cat", "cat", "cat", "cat", "dog", "dog", "dog", "dog")],
}

total = SqlState("tx_state", table="global_count", keys=[], values={"tuples": Count()})


@task
def count_batch() -> dict[str, int]:
    """Return the partial count of one batch. Batches are processed in any order."""
    return {"tuples": sum(1 for _ in current_batch().read())}


with DAG("global_count", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=MemorySource(PARTITIONS, per_batch=3), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count_batch(), state=total)])
