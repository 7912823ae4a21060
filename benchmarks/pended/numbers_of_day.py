"""What the backfilled DAGs read: as many numbers a day, from the first day on."""

from __future__ import annotations

from datetime import datetime

from benchmarks.peers.jobs import FIRST, NUMBERS


def numbers_of_day(start: datetime, end: datetime, spark: object = None) -> list[dict[str, int]]:
    """Ten numbers, which follow those of the day before."""
    first = (start - FIRST).days * NUMBERS
    return [{"number": number} for number in range(first, first + NUMBERS)]
