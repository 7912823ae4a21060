"""Orders of several regions, a folder each, counted without a person: the coordinator starts and replays the runs.

Regions come and go, files arrive late: the source is opaque, and every order is counted once all the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    PartitionedFileSource,
    Transaction,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState(
    "tx_state",
    table="order_totals",
    keys=["region", "product"],
    values={"orders": Count(), "amount": Sum()},
)


@task
def count_orders() -> list[dict[str, Any]]:
    """Orders and their amount, per region and product of the batch."""
    orders: Counter[tuple[str, str]] = Counter()
    amounts: Counter[tuple[str, str]] = Counter()
    for row in current_batch().read():
        group = (row["region"], row["product"])
        orders[group] += 1
        amounts[group] += int(row["amount"])
    return [
        {"region": region, "product": product, "orders": count, "amount": amounts[region, product]}
        for (region, product), count in orders.items()
    ]


with DAG("orders", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=PartitionedFileSource("orders/*/*.csv", kind="opaque"), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count_orders(), state=totals)])

coordinator_dag("orders")
