"""The tasks of the jobs as plain Airflow has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook, get_current_context, task

from benchmarks.peers.jobs import BEGUN, NUMBERS
from benchmarks.peers.limited_numbers import sums
from benchmarks.peers.place import upsert


def batch(folder: Path) -> int:
    """Begin the batch of this run."""
    (folder / BEGUN).touch()
    return int((get_current_context()["dag_run"].conf or {})["batch"])


@task(task_id="sum_up")
def sum_up_numbers(dag_id: str) -> list[dict[str, Any]]:
    """The sums of ten numbers."""
    first = batch(Path(os.environ["AIRFLOW_TX_DATA"], dag_id)) * NUMBERS
    return sums([*range(first, first + NUMBERS)])


@task(depends_on_past=True)
def commit(table: str, rows: list[dict[str, Any]]) -> None:
    """Add the sums to the table."""
    import psycopg2  # type: ignore[import-untyped]

    state = BaseHook.get_connection("tx_state")
    connection = psycopg2.connect(
        host=state.host, port=state.port, user=state.login, password=state.password, dbname=state.schema
    )
    upsert(connection, table, [(row["key"], row["n"], row["total"]) for row in rows])
    connection.close()
