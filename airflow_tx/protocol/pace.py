"""How fast the last transactions were processed: what a source needs that fits its batches to a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_tx.protocol.records import History, Outcome

_WHY = "why"
KEPT = 8
"""So many measurements are kept."""


def pace_after(pace: list[list[float]], history: History) -> list[list[float]]:
    """The measurements once a transaction is over; only committed ones of a known size count.

    The largest batch is kept, however old: a long trickle must not make forget what a large batch takes. Once another
    one is as large, that one says so.

    :param pace: (rows, seconds in process), the oldest first.
    """
    if history.outcome is not Outcome.COMMITTED or history.size is None or history.processed is None:
        return pace
    rows = history.size.get("rows")  # not there: the source counts something else
    if not rows:
        return pace
    seconds = (datetime.fromisoformat(history.processed) - datetime.fromisoformat(history.began)).total_seconds()
    kept = [*pace, [rows, round(max(seconds, 0.0), 3)]]
    if len(kept) > KEPT:
        largest = max(each[0] for each in kept[1:])
        del kept[1 if kept[0][0] > largest else 0]
    return kept


def size_told(size: Mapping[str, Any]) -> str:
    """How large a batch is and why, in words.

    :param size: as a record keeps it: how many rows, or files, and why so many.
    """
    counted = ", ".join(f"{count} {unit}" for unit, count in size.items() if unit != _WHY)
    return f"{counted} ({size[_WHY]})" if size.get(_WHY) else counted
