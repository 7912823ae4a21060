"""When something happened in a topology: the times of all transactions that its ledger remembers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Annotated

from fastapi import Depends, Query

from airflow_tx.ledger import Outcome, Phase, TransactionView
from airflow_tx.plugin.api.redaction import EVERY_SECONDS, redacted, without_credentials
from airflow_tx.plugin.api.snapshots import TopologySnapshot

# --- row filter ---------------------------------------------------------------------------------------------------
# Which rows of a timeline a viewer wants to see: chosen by the server, of a bounded number of transactions.


MOST_LOOKED = 1000
"""Transactions that one answer looks through at most: the newest ones."""
_LONGEST_TEXT = 200
_LONGEST_RUN_ID = 250
_SLOW = 0.95


class RowStatus(str, Enum):
    """The status of a row, as the timeline shows it."""

    PROCESSING = Phase.PROCESSING.value
    PROCESSED = Phase.PROCESSED.value
    COMMITTING = Phase.COMMITTING.value
    FAILED = Phase.FAILED.value
    BLOCKED = "BLOCKED"
    COMMITTED = Outcome.COMMITTED.value
    SKIPPED = Outcome.SKIPPED.value
    READMITTED = Outcome.READMITTED.value


class RowMark(str, Enum):
    """A property of a row that a viewer may ask for.

    A restated row restates another transaction, or was restated, or is to be restated. A replayed row has more than
    one attempt. A slow row takes longer than 95 of 100 committed transactions.
    """

    RESTATED = "restated"
    REPLAYED = "replayed"
    SLOW = "slow"


@dataclass(frozen=True)
class RowFilter:
    """The conditions that a row has to meet, all of them; an empty condition is met by every row.

    :param status: one of these.
    :param text: a part of its run id, of the name of its batch, or of an error, in upper or lower case.
    :param run: its run id.
    :param marks: each of these.
    """

    status: frozenset[RowStatus] = frozenset()
    text: str = ""
    run: str = ""
    marks: frozenset[RowMark] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether every row meets it."""
        return self == EVERY_ROW


EVERY_ROW = RowFilter()


def row_filter(
    status: Annotated[list[RowStatus] | None, Query(max_length=len(RowStatus))] = None,
    text: Annotated[str, Query(max_length=_LONGEST_TEXT)] = "",
    run: Annotated[str, Query(max_length=_LONGEST_RUN_ID)] = "",
    only: Annotated[list[RowMark] | None, Query(max_length=len(RowMark))] = None,
) -> RowFilter:
    """Read the filter of a request."""
    return RowFilter(frozenset(status or ()), text.strip().lower(), run, frozenset(only or ()))


RowFilterDep = Annotated[RowFilter, Depends(row_filter)]


@dataclass(frozen=True)
class ChosenRows:
    """The transactions that a filter lets through.

    :param txids: in order.
    :param oldest: the oldest transaction that was looked at; None: there is none that is older.
    :param slow: seconds beyond which a transaction is slow; None: that was not asked, or none is committed.
    """

    txids: Sequence[int]
    oldest: int | None
    slow: float | None


def chosen_rows(
    snapshot: TopologySnapshot, txids: Sequence[int], wanted: RowFilter, now: datetime | None = None
) -> ChosenRows:
    """Choose among the newest of these transactions."""
    looked = txids[-MOST_LOOKED:]
    at = now or datetime.now(timezone.utc)
    slow = slow_beyond(snapshot) if RowMark.SLOW in wanted.marks else None
    found = [
        view.txid
        for view in snapshot.transaction_views(looked)
        if _is_wanted(view, wanted) and _is_slow_enough(view, wanted, slow, at)
    ]
    return ChosenRows(found, looked[0] if len(looked) < len(txids) else None, slow)


def slow_beyond(snapshot: TopologySnapshot) -> float | None:
    """Find the seconds that 95 of 100 committed transactions do not exceed: of the newest ones of the history."""
    views = (snapshot.final_view(txid) for txid in snapshot.final[-MOST_LOOKED:])
    committed = (
        _seconds(view, view.ended)
        for view in views
        if view is not None and view.ended is not None and view.status == Outcome.COMMITTED.value
    )
    ordered = sorted(each for each in committed if each is not None)
    return ranked(ordered, _SLOW) if ordered else None


def ranked(ordered: Sequence[float], share: float) -> float:
    """Find the value that this share of values, of which there are some, does not exceed."""
    return ordered[ceil(share * len(ordered)) - 1]


def begun_at(view: TransactionView) -> datetime | None:
    """Say when a transaction began; None: that is forgotten."""
    return view.created or view.began


def _seconds(view: TransactionView, end: datetime) -> float | None:
    begun = begun_at(view)
    return None if begun is None else (end - begun).total_seconds()


def _is_wanted(view: TransactionView, wanted: RowFilter) -> bool:
    return (
        (not wanted.status or _status(view) in wanted.status)
        and (not wanted.run or view.run_id == wanted.run)
        and (RowMark.REPLAYED not in wanted.marks or view.attempt > 1)
        and (RowMark.RESTATED not in wanted.marks or _is_restated(view))
        and (not wanted.text or any(wanted.text in each.lower() for each in _texts(view)))
    )


def _is_slow_enough(
    view: TransactionView, wanted: RowFilter, slow: float | None, now: datetime
) -> bool:
    if RowMark.SLOW not in wanted.marks:
        return True
    seconds = _seconds(view, view.ended or now)
    return slow is not None and seconds is not None and seconds > slow


def _status(view: TransactionView) -> str:
    if view.open and view.blocked is not None:
        return RowStatus.BLOCKED.value
    return RowStatus.FAILED.value if view.failed else view.status


def _is_restated(view: TransactionView) -> bool:
    return (view.restates, view.restated_by, view.restate) != (None, None, None)


def _texts(view: TransactionView) -> Iterator[str]:
    """Give the texts of a row that the page shows: a search must not find a text that the page hides."""
    yield view.run_id
    yield without_credentials(view.batch)
    errors = (view.error, view.blocked, *(each["why"] for each in view.replays))
    period = time.monotonic() // EVERY_SECONDS
    yield from (_shown(each, period) for each in errors if each)


@lru_cache(maxsize=MOST_LOOKED)
def _shown(error: str, period: float) -> str:
    """Redact an error once in each period in which the connections are the same: viewers ask every two seconds.

    Do not search the stored error first to save time: then the time of an answer tells what the page hides.
    """
    return redacted(error)


# --- activity -----------------------------------------------------------------------------------------------------


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
