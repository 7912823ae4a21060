"""What the backfilled DAGs are called."""

from __future__ import annotations

OURS, PLAIN, ORDERED = "transactions", "plain", "plain_in_order"
DEFERRED, SLEPT = "deferred", "slept"
IN_FLIGHT, ALONE = "at_once", "one_by_one"


def name_of(peer: str, way: str, flight: str) -> str:
    """Name the DAG of a peer, and its table."""
    return f"{peer}_{way}_{flight}"
