"""The work of a day: five seconds elsewhere, for which a task is deferred, or sleeps in its worker."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, Context, task

from airflow_tx import current_batch
from benchmarks.backfilled.names import DEFERRED

SECONDS = 5

Rows = list[dict[str, int]]


def summed(day: Rows | None) -> Rows:
    """Sum up a day; that of the transaction if none is given."""
    return [{"n": 1, "total": row["day"]} for row in (current_batch().read() if day is None else day)]


class Elsewhere(BaseOperator):
    """Lets somebody else work on the day, while no worker is held, and takes what comes of it."""

    template_fields = ("day",)

    def __init__(self, day: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.day = day

    def execute(self, context: Context) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=SECONDS)), method_name="take")

    def take(self, context: Context, event: Any = None) -> Rows:
        """Give the sum of the day."""
        return summed(self.day)


@task
def slept(day: Any = None) -> Rows:
    """Wait in the worker for somebody else, and give the sum of the day."""
    time.sleep(SECONDS)
    return summed(day)


def work(way: str, day: Any = None) -> Any:
    """Make the task that works on a day, and return its output."""
    # On a busy machine Airflow fails a task whose trigger fires before the scheduler knows that it is deferred.
    retried: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(0)}
    if way == DEFERRED:
        return Elsewhere(task_id="work", day=day, **retried).output
    return slept.override(task_id="work", **retried)(day)
