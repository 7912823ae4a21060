"""When something happened in a topology: the times of all transactions that its ledger remembers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise

from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.row_filter import MOST_LOOKED, begun_at
from airflow_tx.protocol.status import TransactionView

MOST_STRETCHES = 100
_MOST_COUNTS = 120
_STEPS = tuple(
    timedelta(seconds=each)
    for each in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A time in which transactions were under way.

    :param end: null: one still is.
    """

    start: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class Activity:
    """How much happened when, from the oldest transaction that the ledger remembers until now.

    :param since: null: it remembers none.
    :param step: seconds of each count.
    :param counts: transactions that ended in each step, and the open ones that began in it.
    """

    topology: str
    since: datetime | None
    until: datetime
    step: float
    counts: list[int]


def stretches(snapshot: TopologySnapshot, txids: Sequence[int]) -> list[Stretch]:
    """List the times in which these transactions were under way, the earliest first, joined where they meet.

    A time in which they only wait for their turn is left out. Of more than `MOST_LOOKED` transactions, the times
    of the older ones are one stretch. Where there are too many stretches, the closest ones are joined.
    """
    found: list[tuple[datetime, datetime | None]] = []
    for view in snapshot.transaction_views(txids[-MOST_LOOKED:]):
        found += _under_way(view)
    oldest = snapshot.final_view(txids[0]) if len(txids) > MOST_LOOKED else None
    begun = None if oldest is None else begun_at(oldest)
    if begun is not None and found:
        found.append((begun, min(each for each, _ in found)))
    return [Stretch(start=start, end=end) for start, end in _fewer(_joined(found))]


def _under_way(view: TransactionView) -> Iterator[tuple[datetime, datetime | None]]:
    begun = begun_at(view)
    if begun is not None:
        end = view.processed or view.ended
        yield begun, None if view.open and end is None else max(begun, end or begun)
    if view.granted is not None:
        yield view.granted, view.ended


def _joined(
    found: Iterable[tuple[datetime, datetime | None]],
) -> list[tuple[datetime, datetime | None]]:
    joined: list[tuple[datetime, datetime | None]] = []
    for start, end in sorted(found, key=lambda each: each[0]):
        last_start, last_end = joined[-1] if joined else (start, start)
        if last_end is None:
            break
        if joined and start <= last_end:
            joined[-1] = (last_start, None if end is None else max(last_end, end))
        else:
            joined.append((start, end))
    return joined


def _fewer(
    found: list[tuple[datetime, datetime | None]],
) -> list[tuple[datetime, datetime | None]]:
    gaps = [following - end for (_, end), (following, _) in pairwise(found) if end is not None]
    kept = set(
        sorted(range(len(gaps)), key=lambda index: gaps[index], reverse=True)[: MOST_STRETCHES - 1]
    )
    fewer = found[:1]
    for index, (start, end) in enumerate(found[1:]):
        if index in kept:
            fewer.append((start, end))
        else:
            fewer[-1] = (fewer[-1][0], end)
    return fewer


def activity(snapshot: TopologySnapshot, now: datetime | None = None) -> Activity:
    """Count the transactions of a topology over all the time that its ledger remembers."""
    until = now or datetime.now(timezone.utc)
    since = _first(snapshot)
    if since is None:
        return Activity(topology=snapshot.name, since=None, until=until, step=1, counts=[])
    # The clock of the machine that began it may be ahead.
    until = max(until, since)
    step = round_step(until - since, _MOST_COUNTS, _STEPS)
    start = _EPOCH + (since - _EPOCH) // step * step
    places = [start + index * step for index in range((until - start) // step + 1)]
    firsts: list[int] = []
    for place in places:
        firsts.append(snapshot.first_since(place, start=firsts[-1] if firsts else 0))
    counts = [
        following - first
        for first, following in zip(firsts, [*firsts[1:], len(snapshot.final)], strict=True)
    ]
    for view in snapshot.opened:
        begun = begun_at(view)
        if begun is not None and start <= begun < until:
            counts[(begun - start) // step] += 1
    return Activity(
        topology=snapshot.name,
        since=start,
        until=start + len(places) * step,
        step=step.total_seconds(),
        counts=counts,
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _first(snapshot: TopologySnapshot) -> datetime | None:
    """Say when the oldest transaction began: the oldest one is final, or all are open."""
    oldest = snapshot.final_view(snapshot.final[0]) if snapshot.final else None
    views = [*([] if oldest is None else [oldest]), *snapshot.opened]
    return min((begun for each in views if (begun := begun_at(each)) is not None), default=None)


def round_step(length: timedelta, most: int, steps: Sequence[timedelta]) -> timedelta:
    """Choose a round step that divides a time into at most so many parts: the same parts are answered for a while.

    :param steps: to choose from, the shortest first; if all are too short, a multiple of the longest is chosen.
    """
    least = length / most
    usual = next((each for each in steps if each >= least), None)
    return usual or steps[-1] * -(-least // steps[-1])
