"""The DAGs of the pictures of the board: the orders, payments and returns of a shop, one file a transaction."""

from __future__ import annotations

import random
import time
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum


@task
def count_products() -> list[dict[str, Any]]:
    """The amount of each row; a row that has none is a mistake in its file."""
    rows = list(current_batch().read())
    time.sleep(random.uniform(4, 12))  # noqa: TX105 - the time to wait is no value
    return [{"product": row["product"], "orders": 1, "amount": int(row["amount"])} for row in rows]


@task
def count_customers() -> list[dict[str, Any]]:
    """One row a customer."""
    rows = list(current_batch().read())
    time.sleep(random.uniform(2, 8))  # noqa: TX105 - the time to wait is no value
    return [{"customer": row["customer"], "orders": 1} for row in rows]


def shop_dag(name: str) -> DAG:
    """A DAG with two tasks that work side by side."""
    products = SqlState(
        "tx_state", table=f"{name}_products", keys=["product"], values={"orders": Count(), "amount": Sum()}
    )
    customers = SqlState("tx_state", table=f"{name}_customers", keys=["customer"], values={"orders": Count()})
    with DAG(name, schedule=None, max_active_runs=8, tags=["transactions"]) as dag:
        with Transaction(source=FileSource(f"{name}/*.csv", files_per_batch=1), max_pending=4):
            updates = [
                persistent_aggregate(count_products(), state=products),
                persistent_aggregate(count_customers(), state=customers),
            ]
            CommitOperator(task_id="commit", updates=updates)
    return dag


orders, payments, returns = (shop_dag(name) for name in ("orders", "payments", "returns"))
