"""A chain of three stages: raw orders, cleaned orders, and daily totals.

Each stage is a topology that reads the table committed by the previous stage. When a day of the first stage is
restated, the coordinators restate the later stages. Then the totals are correct again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    FileSource,
    Transaction,
    UpstreamSource,
    append,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, DeltaTable, Max, SqlState, SqlTable, Sum

lake = os.environ.get("AIRFLOW_TX_LAKE") or Path(os.environ.get("AIRFLOW_TX_DATA", "/tmp"), "lake")
orders = SqlTable("tx_state", table="chain_orders")
cleaned = DeltaTable(f"{lake}/chain_cleaned")
totals = SqlState("tx_state", table="chain_totals", keys=["day"], values={"orders": Count(), "amount": Sum()})
largest = SqlState("tx_state", table="chain_largest", keys=["product"], values={"amount": Max()})


@task
def load() -> Any:
    """Return the orders of a day unchanged."""
    return current_batch().arrow().read_all()


@task
def clean() -> Any:
    """Return the orders whose amount is a number."""
    import polars as pl

    read = pl.DataFrame(current_batch().arrow())
    amount = pl.col("amount").cast(pl.Int64, strict=False)
    return read.with_columns(amount).filter(pl.col("amount").is_not_null())


@task
def by_day() -> Any:
    """Return the total of the orders for each day."""
    import polars as pl

    read = pl.DataFrame(current_batch().arrow())
    return read.group_by("day").agg(pl.len().alias("orders"), pl.col("amount").sum())


@task
def by_product() -> Any:
    """Return the largest order for each product."""
    import polars as pl

    return pl.DataFrame(current_batch().arrow()).group_by("product").agg(pl.col("amount").max())


with DAG("chain_orders", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("orders/*.csv", files_per_batch=1), max_pending=4):
        CommitOperator(task_id="commit", updates=[append(load(), state=orders)])

with DAG("chain_cleaned", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=UpstreamSource(orders, topology="chain_orders", max_transactions=2), max_pending=4):
        CommitOperator(task_id="commit", updates=[append(clean(), state=cleaned)])

with DAG("chain_totals", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=UpstreamSource(cleaned, topology="chain_cleaned", max_transactions=3), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(by_day(), state=totals)])

# A maximum cannot be taken back. A correction that would lower it is reported, and not retried
# endlessly.
with DAG("chain_largest", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=UpstreamSource(cleaned, topology="chain_cleaned", max_transactions=3), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(by_product(), state=largest)])

for topology in ("chain_orders", "chain_cleaned", "chain_totals", "chain_largest"):
    coordinator_dag(topology, max_replays=1, replay_backoff=1.0, lane=topology != "chain_largest")
