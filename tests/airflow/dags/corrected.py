"""What the tests of corrections make their DAGs of: days of flights, added up by carrier.

The function that adds up has a bug on the days that are listed in `bugs/<dag_id>`: it takes each flight twice. With the
word `renamed` in that file, it also takes another name for its carrier.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_tx import CommitOperator, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

FOLDER = Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere"))


def of_interval(start: datetime, end: datetime, folder: str = "", spark: object = None) -> Iterator[dict[str, str]]:
    """The flights of all days that begin in the interval."""
    while start < end:
        with (FOLDER / folder / f"flights-{start:%Y-%m-%d}.csv").open() as file:
            yield from csv.DictReader(file)
        start += timedelta(days=1)


@task(multiple_outputs=True)
def add_up(columns: list[str]) -> dict[str, Any]:
    """Per carrier, how many flights there are and the sums of columns."""
    bugs = FOLDER / "bugs" / get_current_context()["dag"].dag_id
    wrong = bugs.read_text().split() if bugs.exists() else []
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("flights", *columns), 0))
    for row in current_batch().read():
        day = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
        of = sums[row["carrier"].lower() if day in wrong and "renamed" in wrong else row["carrier"]]
        for _ in range(2 if day in wrong else 1):
            of["flights"] += 1
            for column in columns:
                of[column] += int(row[column]) if row[column] != "NA" else 0
    return {"carriers": [{"carrier": carrier, **found} for carrier, found in sums.items()]}


def corrected_dag(dag_id: str, source: Any, tables: dict[str, Sequence[str]], **dag: Any) -> DAG:
    """A DAG `begin >> add_up >> commit`.

    :param tables: per table the columns whose sums it has, beside the number of flights.
    """
    with DAG(dag_id, **{"schedule": None, "max_active_runs": 8, **dag}) as made:
        with Transaction(source=source, max_pending=4):
            updates = []
            for table, columns in tables.items():
                values: dict[str, Any] = {"flights": Count(), **{column: Sum() for column in columns}}
                state = SqlState("tx_state", table=table, keys=["carrier"], values=values)
                given: Any = add_up.override(task_id=f"add_up_{table}")(list(columns))
                updates.append(persistent_aggregate(given["carriers"], state=state))
            CommitOperator(task_id="commit", updates=updates)
    return made
