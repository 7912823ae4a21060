"""Rows of a table in a shop's own database, counted into a state in the same database."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, SqlSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState("sql_shop", table="totals", keys=["product"], values={"orders": Count(), "amount": Sum()})


@task(retries=5, retry_delay=timedelta(seconds=1))
def count_orders() -> list[dict[str, Any]]:
    """Orders and their amount, per product of the batch."""
    orders: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    for row in current_batch().read():
        orders[row["product"]] += 1
        amounts[row["product"]] += row["amount"]
    return [{"product": name, "orders": count, "amount": amounts[name]} for name, count in orders.items()]


with DAG("sql_source", schedule=None, max_active_runs=16):
    with Transaction(source=SqlSource("sql_shop", "orders", max_rows_per_batch=400), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count_orders(), state=totals)])
