"""Airflow DAGs whose runs are backfilled, and DAGs whose waiting runs make room for an earlier one.

A file `fail/<dag_id>/<day>` makes the count of that day fail as long as it exists, `hold/<dag_id>/<day>` makes it wait.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import (
    DAG,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    get_current_context,
    task,
)
from counting import counted, counting_dag, state
from daily import FIRST

import airflow_tx
from airflow_tx import CommitOperator, DataIntervalSource, RunPartitionSource, Transaction, persistent_aggregate

# For the tasks of this file alone: those of others wait on purpose, and would make room. A busy scheduler takes some
# seconds to give a free run slot away, and another run would make room meanwhile.
os.environ["AIRFLOW__TX__YIELD_AFTER"] = "10"
os.environ["AIRFLOW__TX__MIN_DEFERRAL"] = "5"

DAYS = 4


def marked(what: str, day: str) -> bool:
    """Whether a test asks for this of the run's day."""
    return Path(os.environ["AIRFLOW_TX_DATA"], what, get_current_context()["dag"].dag_id, day).exists()


@task
def count_day(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Count the numbers of the run's day, unless it is told not to."""
    from airflow_tx import current_batch

    day = (batch["rows"].get("from") or batch["rows"]["partition"])[:10]
    while marked("hold", day):
        time.sleep(0.1)
    if marked("fail", day):
        raise RuntimeError(f"told to fail on {day}")
    return counted([row["number"] for row in current_batch().read()])


def daily_dag(dag_id: str, schedule: Any, source: Any, **dag: Any) -> None:
    """A DAG `begin >> count_day >> commit` that nobody starts by himself, unless `dag` says so."""
    last = FIRST + timedelta(days=DAYS - 1)
    settings = {"catchup": False, "max_active_runs": 8, "end_date": last, **dag}
    with DAG(dag_id, schedule=schedule, start_date=FIRST, **settings):
        with Transaction(source=source, max_pending=DAYS) as tx:
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count_day(tx.batch), state=state(dag_id))])


days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
daily_dag("by_day", "@daily", DataIntervalSource("daily.of_interval"), catchup=True, is_paused_upon_creation=True)
for dag_id in ("doubled_days", "backwards", "in_backfill"):
    daily_dag(dag_id, days, DataIntervalSource("daily.of_interval"))
for dag_id in ("dated", "begun_backwards"):
    daily_dag(dag_id, days, DataIntervalSource("daily.of_interval", in_order=True))
in_order = DataIntervalSource("daily.of_interval", in_order=True)
daily_dag("declared", "@daily", in_order, is_paused_upon_creation=True, end_date=None)
daily_dag("by_partition", CronPartitionTimetable("0 0 * * *", timezone="UTC"), RunPartitionSource("daily.of_partition"))

counting_dag("cleared_many")

# As few run slots as the window allows: one run that waits in `begin`, and all of them are taken.
for dag_id, max_pending in (("yielding", 3), ("yielding_in_begin", 1)):
    counting_dag(dag_id, max_pending=max_pending).max_active_runs = max_pending + 1

# An example, as it is for users: its DAG, and the module of its reader beside it.
sys.path.append(str(Path(airflow_tx.__file__).resolve().parents[1] / "dags"))
importlib.import_module("daily_orders")
