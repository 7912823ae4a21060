"""What the source of the backfilled DAGs reads."""

from __future__ import annotations

from datetime import datetime


def day_number(start: datetime, end: datetime, spark: object = None) -> list[dict[str, int]]:
    """The number of the day in its year."""
    return [{"day": start.timetuple().tm_yday}]
