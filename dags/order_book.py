"""The orders for daily_orders.py, which are random, but always the same for each day.

Your own function would query a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

PRODUCTS = ("apples", "bread", "coffee")


def orders(start: datetime, end: datetime, spark: object = None) -> Iterator[dict[str, Any]]:
    """Yield the orders of the days from `start` to the day before `end`."""
    day = start
    while day < end:
        chance = Random(day.date().isoformat())
        for _ in range(chance.randint(20, 200)):
            yield {"product": chance.choice(PRODUCTS), "amount": chance.randint(1, 99)}
        day += timedelta(days=1)
