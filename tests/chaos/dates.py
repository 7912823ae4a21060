"""The data intervals of the topology that is backfilled: a day for each batch of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

FIRST = datetime(2020, 1, 1, tzinfo=timezone.utc)
LAST = datetime(2025, 12, 31, tzinfo=timezone.utc)
"""Long over: Airflow's scheduler makes no runs of such dates by itself."""
DAY = timedelta(days=1)
PER_DAY = 10


def day_of(number: int) -> datetime:
    return FIRST + DAY * (number // PER_DAY)


def numbers_of_dates(start: datetime, end: datetime, spark: Any = None) -> Iterator[dict[str, int]]:
    """Read the numbers of the days from `start` to `end`, as the reader of a `DataIntervalSource`."""
    for number in range((start - FIRST) // DAY * PER_DAY, (end - FIRST) // DAY * PER_DAY):
        yield {"number": number}
