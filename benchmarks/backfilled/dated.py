"""Two DAGs whose work is done elsewhere, five seconds a day, while no worker is held: for a backfill at once, and one
by one.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, Context, CronDataIntervalTimetable

from airflow_tx import CommitOperator, DataIntervalSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)
LAST = FIRST + timedelta(days=364)  # its schedule starts none by itself
SECONDS = 5


class Elsewhere(BaseOperator):
    """Lets somebody else work on the day, and takes what comes of it."""

    def execute(self, context: Context) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=SECONDS)), method_name="take")

    def take(self, context: Context, event: Any = None) -> list[dict[str, int]]:
        """Give the sum of the day."""
        return [{"n": 1, "total": row["day"]} for row in current_batch().read()]


days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
for dag_id in ("at_once", "one_by_one"):
    with DAG(dag_id, schedule=days, start_date=FIRST, end_date=LAST, catchup=False, max_active_runs=16):
        source = DataIntervalSource("benchmarks.backfilled.day_number.day_number", in_order=True)
        with Transaction(source=source, max_pending=int(os.environ["IN_FLIGHT"])):
            # On a busy machine Airflow fails a task whose trigger fires before the scheduler knows that it is deferred.
            work = Elsewhere(task_id="work", retries=3, retry_delay=timedelta(0))
            state = SqlState("tx_state", table=dag_id, keys=[], values={"n": Count(), "total": Sum()})
            CommitOperator(task_id="commit", updates=[persistent_aggregate(work.output, state=state)])
