"""How fast the last transactions were processed: what a source needs that fits its batches to a time."""

from __future__ import annotations

from datetime import datetime

from airflow_tx.protocol.records import History, Outcome

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
