"""Airflow DAGs that write into several tables of one database: what a reader has to find together.

Numbers are sorted by parity into a table, and added up in another one. Those that end in 3 are kept aside. A file
`bugs/<dag_id>` makes the task wrong as long as it exists: by its word the task gives a number that is none, or takes
each number twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task
from counting import Numbers, counted, misbehave

from airflow_tx import CommitOperator, Transaction, append, current_batch, partition_persist, persistent_aggregate
from airflow_tx.state import Count, SqlGuard, SqlState, SqlTable, Sum

FOLDER = Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere"))
ASIDE = 3


@task(multiple_outputs=True)
def sort() -> dict[str, Any]:
    """Sort and add up the numbers of the batch."""
    misbehave()
    bug = FOLDER / "bugs" / get_current_context()["dag"].dag_id
    word = bug.read_text() if bug.exists() else ""
    batch = current_batch()
    numbers = [row["number"] for row in batch.read()] * (2 if word == "twice" else 1)
    aside = [number for number in numbers if number % 10 == ASIDE]
    kept = [number for number in numbers if number % 10 != ASIDE]
    batch.reject(list(map(str, aside)), "it ends in 3")
    orders: list[dict[str, Any]] = [{"parity": ("even", "odd")[number % 2], "number": number} for number in kept]
    if word == "none":
        orders[-1]["number"] = "none"
    return {
        "orders": orders,
        "totals": counted(kept) + [{"parity": "aside", "numbers": len(aside), "total": sum(aside)}],
    }


def moments_dag(dag_id: str, statements: list[Any]) -> DAG:
    """A DAG `begin >> sort >> commit`, whose tables have its name in front of theirs.

    :param statements: SQL that runs in the moment of the rows; none: the transactions can be restated.
    """
    orders = SqlTable("warehouse", table=f"{dag_id}_orders", types={"parity": "text", "number": "bigint"})
    values = {"numbers": Count(), "total": Sum()}
    totals = SqlState("warehouse", table=f"{dag_id}_totals", keys=["parity"], values=values)
    aside = SqlTable("warehouse", table=f"{dag_id}_aside")
    with DAG(dag_id, schedule=None, max_active_runs=16) as dag:
        with Transaction(source=Numbers(), max_pending=4, rejected=aside):
            found: Any = sort()
            # The table may refuse a value when the totals are written.
            updates = [
                persistent_aggregate(found["totals"], state=totals),
                append(found["orders"], state=orders),
            ]
            if statements:
                guard = SqlGuard("warehouse", name=f"{dag_id}_summary", statements=statements)
                updates.append(partition_persist(found["totals"], state=guard))
            CommitOperator(task_id="commit", together=True, updates=updates)
    return dag


SUMMARY = [
    ("DELETE FROM moment_summary", {}),
    (
        "INSERT INTO moment_summary SELECT parity, count(*), sum(number) FROM moment_orders GROUP BY parity"
        " UNION ALL SELECT parity, numbers, total FROM moment_totals WHERE parity = 'aside'",
        {},
    ),
    # A test holds this lock to stop a commit in its middle.
    ("SELECT pg_advisory_xact_lock(7)", {}),
]

moment = moments_dag("moment", SUMMARY)
corrected_moment = moments_dag("corrected_moment", [])
