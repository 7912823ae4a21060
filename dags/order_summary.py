"""Write the orders of a shop, their totals, and a summary of both, in SQL. All three change at once.

A reader who uses one statement, or one transaction with REPEATABLE READ, never sees a summary that differs from the
orders. Create the table of the summary first:

    CREATE TABLE order_summary (product TEXT, orders BIGINT, amount BIGINT, largest BIGINT)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import (
    CommitOperator,
    FileSource,
    Transaction,
    append,
    current_batch,
    partition_persist,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlGuard, SqlState, SqlTable, Sum

orders = SqlTable("tx_state", table="summed_orders", types={"product": "text", "amount": "bigint"})
totals = SqlState("tx_state", table="summed_totals", keys=["product"], values={"orders": Count(), "amount": Sum()})
# The guard runs last. It sees the rows of the earlier updates, as REFRESH MATERIALIZED VIEW
# CONCURRENTLY would. Do not use TRUNCATE, or REFRESH without CONCURRENTLY. They replace the whole
# table, even for older snapshots.
summary = SqlGuard(
    "tx_state",
    name="order_summary",
    statements=[
        (
            "DELETE FROM order_summary WHERE product IN (SELECT product FROM summed_orders WHERE tx_txid = :txid)",
            {},
        ),
        (
            "INSERT INTO order_summary SELECT product, orders, amount,"
            " (SELECT max(amount) FROM summed_orders WHERE summed_orders.product = summed_totals.product)"
            " FROM summed_totals WHERE product IN (SELECT product FROM summed_orders WHERE tx_txid = :txid)",
            {},
        ),
    ],
)


@task(multiple_outputs=True)
def read() -> dict[str, Any]:
    """Read the orders, and return their sums by product."""
    found = [{"product": row["product"], "amount": int(row["amount"])} for row in current_batch().read()]
    counts, amounts = Counter[str](), Counter[str]()
    for order in found:
        counts[order["product"]] += 1
        amounts[order["product"]] += order["amount"]
    added = [{"product": product, "orders": counts[product], "amount": amounts[product]} for product in counts]
    return {"orders": found, "totals": added}


with DAG("order_summary", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("shop/*.csv", files_per_batch=1), max_pending=4):
        found: Any = read()
        CommitOperator(
            task_id="commit",
            together=True,
            updates=[
                append(found["orders"], state=orders),
                persistent_aggregate(found["totals"], state=totals),
                partition_persist(found["totals"], state=summary),
            ],
        )
