"""Count the orders of several regions, each in a folder. The coordinator starts and replays the runs automatically.

Regions may be added and removed, and files may arrive late. Since the source is opaque, every order is still counted
once.
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
    """Count the orders of the batch, and add up their amounts, per region and product."""
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
