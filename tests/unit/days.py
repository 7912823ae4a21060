"""Days of a DAG that runs in the order of its data intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from airflow_tx.base.compat import RunInfo
from tests.unit.bench import run_of

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)


DAY = timedelta(days=1)


def day(number: int) -> RunInfo:
    """The run of a day, from 0."""
    start = FIRST + number * DAY
    return replace(run_of(f"day {number}"), interval_start=start, interval_end=start + DAY, logical_date=start)
