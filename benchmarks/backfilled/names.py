"""What the backfilled DAGs are called."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

OURS, PLAIN, ORDERED = "transactions", "plain", "plain_in_order"
DEFERRED, SLEPT = "deferred", "slept"
IN_FLIGHT, ALONE = "at_once", "one_by_one"

FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)
LAST = FIRST + timedelta(days=364)  # their schedule starts none by itself


def name_of(peer: str, way: str, flight: str) -> str:
    """Name the DAG of a peer, and its table."""
    return f"{peer}_{way}_{flight}"
