"""Count the orders of a shop, and add up their amounts per product. Each transaction has one day.

    airflow dags unpause daily_orders
    airflow backfill create --dag-id daily_orders --from-date 2026-01-01 --to-date 2026-01-31
    airflow backfill create ... --reprocess-behavior failed

Days may run in any order, and more than once. Every day is counted exactly once.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, DataIntervalSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("tx_state", table="daily_orders", keys=["product"], values={"orders": Count(), "amount": Sum()})


@task
def count_orders() -> list[dict[str, Any]]:
    """Return the number of orders and the sum of their amounts, per product."""
    orders, amounts = Counter[str](), Counter[str]()
    for order in current_batch().read():
        orders[order["product"]] += 1
        amounts[order["product"]] += order["amount"]
    return [{"product": product, "orders": orders[product], "amount": amounts[product]} for product in orders]


with DAG(
    "daily_orders",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=8,
    tags=["transactions", "example"],
):
    with Transaction(source=DataIntervalSource("order_book.orders"), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count_orders(), state=totals)])
