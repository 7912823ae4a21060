"""The DAGs in the screenshots of the Transactions page, which process orders, payments and returns of a shop."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FailedBatch, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

FOLDER = Path(os.environ["AIRFLOW_TX_DATA"])


def take_time(least: float, most: float) -> str:
    """Wait for a time that depends only on the file, then return the file name."""
    name = Path(current_batch().metadata["files"][0]["name"])
    time.sleep(random.Random(str(name)).uniform(least, most))  # noqa: TX105 - the time to wait is no value
    return name.stem


@task
def count_products() -> list[dict[str, Any]]:
    """Return the product and the amount of each row. Fail if a row has no amount."""
    rows = list(current_batch().read())
    number = take_time(8, 14)
    if (FOLDER / "unpriced" / number).exists():
        raise FailedBatch(f"there are no prices for the orders of {number}.csv yet")
    for line, row in enumerate(rows, start=2):
        if row["amount"] is None:
            raise FailedBatch(f"line {line} of {number}.csv has no amount")
    return [{"product": row["product"], "orders": 1, "amount": int(row["amount"])} for row in rows]


@task
def count_customers() -> list[dict[str, Any]]:
    """Return the customer of each row."""
    rows = list(current_batch().read())
    take_time(5, 10)
    return [{"customer": row["customer"], "orders": 1} for row in rows]


def shop_dag(name: str) -> DAG:
    """Create a DAG with two tasks that run in parallel."""
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
