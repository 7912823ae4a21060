"""One file a run, summed up per key and added to a table: three plain tasks without any guarantee."""

from __future__ import annotations

import csv
import operator
import os
import sqlite3
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseHook, get_current_context, task
from processor_time import note_processor_time

UPSERT = (
    "INSERT INTO plain VALUES (:key, :n, :total) "
    "ON CONFLICT (key) DO UPDATE SET n = n + excluded.n, total = total + excluded.total"
)


@task
def choose() -> str:
    """The file of this run."""
    files = sorted(Path(os.environ["AIRFLOW_TX_DATA"], "files").glob("*.csv"))
    conf = get_current_context()["dag_run"].conf or {}
    return str(files[conf["number"]])


@task
def sum_up(path: str) -> list[dict[str, Any]]:
    """The sums of the file, one row a key."""
    sums: dict[str, list[int]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            found = sums.get(row["key"], [0, 0])
            sums[row["key"]] = list(map(operator.add, found, [1, int(row["value"])]))
    return [{"key": key, "n": n, "total": total} for key, (n, total) in sums.items()]


@task
def upsert(rows: list[dict[str, Any]]) -> None:
    """Add the sums to the table."""
    connection = sqlite3.connect(BaseHook.get_connection("tx_state").host or "")
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS plain (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")
        connection.executemany(UPSERT, rows)
    connection.close()


with DAG("plain", schedule=None, max_active_runs=4, default_args={"on_success_callback": note_processor_time}):
    upsert(sum_up(choose()))  # type: ignore[arg-type]
