"""An Airflow DAG whose transactions go by the lane of its coordinator, which is paused until a test needs it.

A file `<name of a batch's file>.<what>` in the folder of marks makes the task misbehave: `fail-once`, `hold` as long as
it exists.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task
from counting import counted, state
from daily import DAY, FIRST

from airflow_tx import (
    CommitOperator,
    DataIntervalSource,
    FailedBatch,
    FileSource,
    Transaction,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)

MARKS = Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere")) / "laned_marks"


@task
def numbers() -> list[int]:
    batch = current_batch()
    name = batch.metadata["files"][0]["name"]
    while (MARKS / f"{name}.hold").exists():
        time.sleep(0.1)
    if (MARKS / f"{name}.fail-once").exists():
        (MARKS / f"{name}.fail-once").unlink()
        raise FailedBatch(f"{name} is not wanted")
    return [int(row["number"]) for row in batch.read()]


@task
def count(found: list[int]) -> list[dict[str, Any]]:
    return counted(range(found[0], found[-1] + 1))


with DAG("laned", schedule=None, max_active_runs=8):
    with Transaction(source=FileSource("laned/*.csv"), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(numbers()), state=state("laned"))])


@task
def count_day(ds: str | None = None, data_interval_end: Any = None) -> list[dict[str, Any]]:
    """Count the numbers of a day, whose end is the end of its data interval; it may have to fail once."""
    batch = current_batch()
    assert str(data_interval_end) == str(datetime.fromisoformat(batch.metadata["to"]))
    if (MARKS / f"{ds}.fail-once").exists():
        (MARKS / f"{ds}.fail-once").unlink()
        raise FailedBatch(f"{ds} is not wanted")
    return counted([row["number"] for row in batch.read()])


days = {"schedule": CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), "start_date": FIRST, "catchup": False}
with DAG("laned_days", end_date=FIRST + 5 * DAY, max_active_runs=8, **days):
    with Transaction(source=DataIntervalSource("daily.of_interval", in_order=True), max_pending=4):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count_day(), state=state("laned_days"))])

coordinator_dag("laned_days", lane=True, replay_backoff=2, linger=5, is_paused_upon_creation=True)
coordinator_dag("laned", lane=True, replay_backoff=2, linger=5, is_paused_upon_creation=True)
