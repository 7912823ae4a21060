"""Ten numbers a day, from 0 on the first day of 2013: what the sources of backfilled runs read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)
DAY = timedelta(days=1)
SIZE = 10


def of_interval(start: datetime, end: datetime, spark: object = None) -> Iterator[dict[str, int]]:
    """The numbers of all days that begin in the interval."""
    day = start
    while day < end:
        first = (day - FIRST).days * SIZE
        yield from ({"number": number} for number in range(first, first + SIZE))
        day += DAY


def of_partition(partition: str, spark: object = None) -> Iterator[dict[str, int]]:
    """The numbers of the day that the partition is called by."""
    day = datetime.fromisoformat(partition[:10]).replace(tzinfo=timezone.utc)  # a key of Airflow 3.2 has no zone
    return of_interval(day, day + DAY)
