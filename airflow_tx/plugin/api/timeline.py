"""The timeline of a topology: when all transactions in its ledger ran."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Annotated, Any

from fastapi import Depends, Query

from airflow_tx.base import compat
from airflow_tx.ledger import Outcome, Phase, TransactionView, Words, moment
from airflow_tx.operations import BEGIN
from airflow_tx.plugin.api.access import SEE_TASKS, OnlyFor, answer_of
from airflow_tx.plugin.api.airflow_runs import TaskBar, task_tries
from airflow_tx.plugin.api.redaction import EVERY_SECONDS, BatchName, redacted, without_credentials
from airflow_tx.plugin.api.snapshots import TopologySnapshot

# --- row filter ---------------------------------------------------------------------------------------------------
# The filter for timeline rows, which the server applies to a limited number of transactions.


MOST_LOOKED = 1000
"""The maximum number of transactions that one request filters. The newest ones are read."""
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
    """A property of a row that a viewer can filter by.

    A row is restated if it restates another transaction, was restated, or has a request for a restatement. A replayed
    row has more than one attempt. A slow row takes longer than 95 % of the committed transactions.
    """

    RESTATED = "restated"
    REPLAYED = "replayed"
    SLOW = "slow"


@dataclass(frozen=True)
class RowFilter:
    """The conditions of a filter. A row must meet all conditions, and every row meets an empty condition.

    :param status: the row has one of these statuses.
    :param text: the run_id, the name of the batch, or an error contains this text, regardless of case.
    :param run: the row has this run_id.
    :param marks: the row has all these properties.
    """

    status: frozenset[RowStatus] = frozenset()
    text: str = ""
    run: str = ""
    marks: frozenset[RowMark] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Return whether every row matches the filter."""
        return self == EVERY_ROW


EVERY_ROW = RowFilter()


def row_filter(
    status: Annotated[list[RowStatus] | None, Query(max_length=len(RowStatus))] = None,
    text: Annotated[str, Query(max_length=_LONGEST_TEXT)] = "",
    run: Annotated[str, Query(max_length=_LONGEST_RUN_ID)] = "",
    only: Annotated[list[RowMark] | None, Query(max_length=len(RowMark))] = None,
) -> RowFilter:
    """Return the filter of a request."""
    return RowFilter(frozenset(status or ()), text.strip().lower(), run, frozenset(only or ()))


RowFilterDep = Annotated[RowFilter, Depends(row_filter)]


@dataclass(frozen=True)
class ChosenRows:
    """The transactions that match a filter.

    :param txids: the txids in order.
    :param oldest: the oldest transaction to which the filter was applied, or None if it was applied to all
        transactions.
    :param slow: the duration beyond which a transaction is slow, in seconds. It is None if the filter does not need it,
        or no transaction is committed.
    """

    txids: Sequence[int]
    oldest: int | None
    slow: float | None


def chosen_rows(
    snapshot: TopologySnapshot, txids: Sequence[int], wanted: RowFilter, now: datetime | None = None
) -> ChosenRows:
    """Apply a filter to the newest of these transactions."""
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
    """Return the 95th percentile of the durations of the newest committed transactions, in seconds."""
    views = (snapshot.final_view(txid) for txid in snapshot.final[-MOST_LOOKED:])
    committed = (
        _seconds(view, view.ended)
        for view in views
        if view is not None and view.ended is not None and view.status == Outcome.COMMITTED.value
    )
    ordered = sorted(each for each in committed if each is not None)
    return ranked(ordered, _SLOW) if ordered else None


def ranked(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed.

    :param ordered: the values in ascending order, at least one.
    :param share: the share, from 0 to 1.
    """
    return ordered[ceil(share * len(ordered)) - 1]


def begun_at(view: TransactionView) -> datetime | None:
    """Return when a transaction began, or None if the ledger has forgotten the time."""
    return view.created or view.began


def _seconds(view: TransactionView, end: datetime) -> float | None:
    begun = begun_at(view)
    return None if begun is None else (end - begun).total_seconds()


def _is_wanted(view: TransactionView, wanted: RowFilter) -> bool:
    return (
        (not wanted.status or _status(view) in wanted.status)
        and (not wanted.run or view.document.run_id == wanted.run)
        and (RowMark.REPLAYED not in wanted.marks or view.document.attempt > 1)
        and (
            RowMark.RESTATED not in wanted.marks
            or (view.document.restates, view.restated_by, view.restate) != (None, None, None)
        )
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


def _texts(view: TransactionView) -> Iterator[str]:
    """Yield the texts of a row as the page shows them. A search must not match text that the page hides."""
    yield view.document.run_id
    yield without_credentials(view.batch)
    errors = (view.failure, view.blocked, *(each.why for each in view.document.replays))
    period = time.monotonic() // EVERY_SECONDS
    yield from (_shown(each, period) for each in errors if each)


@lru_cache(maxsize=MOST_LOOKED)
def _shown(error: str, period: float) -> str:
    """Redact an error. The result is cached for one period, since viewers send a request every two seconds.

    To save time, the error could be searched before it is redacted. But the time of an answer would then reveal hidden
    text.

    :param period: the number of the period. The connections are read again in each period.
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
    """A time during which transactions were active.

    :param end: the end of the time, or null if a transaction is still active.
    """

    start: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The number of transactions over time, from the oldest transaction that the ledger has until now.

    :param since: the start of the first step, or null if the ledger has no transaction.
    :param until: the end of the last step.
    :param step: the length of a step, in seconds.
    :param counts: for each step, the number of transactions that ended in it, and of open transactions that began in
        it.
    """

    topology: str
    since: datetime | None
    until: datetime
    step: float
    counts: list[int]


def stretches(snapshot: TopologySnapshot, txids: Sequence[int]) -> list[Stretch]:
    """Return the times in which these transactions were active, the earliest first. Overlapping times are joined.

    A transaction that waits for its turn is not active. If there are more than `MOST_LOOKED` transactions, the older
    ones have a single time in common. If there are more than `MOST_STRETCHES` times, the times with the smallest gaps
    are joined.
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
    """Return the number of transactions over the entire time that a topology's ledger covers."""
    until = now or datetime.now(timezone.utc)
    since = _first(snapshot)
    if since is None:
        return Activity(topology=snapshot.name, since=None, until=until, step=1, counts=[])
    # The clock of the machine that started the transaction may be ahead of this machine's clock.
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
    """Return when the oldest transaction began: the first final one, or the first open one if none is final."""
    oldest = snapshot.final_view(snapshot.final[0]) if snapshot.final else None
    views = [*([] if oldest is None else [oldest]), *snapshot.opened]
    return min((begun for each in views if (begun := begun_at(each)) is not None), default=None)


def round_step(length: timedelta, most: int, steps: Sequence[timedelta]) -> timedelta:
    """Return the shortest round step that divides a time into at most `most` parts.

    With a round step, the parts stay the same for a while as the time advances.

    :param length: the time to divide.
    :param most: the maximum number of parts.
    :param steps: the possible steps, the shortest first. If all steps are too short, a multiple of the longest step is
        returned.
    """
    least = length / most
    usual = next((each for each in steps if each >= least), None)
    return usual or steps[-1] * -(-least // steps[-1])


# --- timeline -----------------------------------------------------------------------------------------------------
# Transactions over time: attempts, tasks, waits and commits. They are read from the ledger and from
# Airflow's task instances.


@dataclass(frozen=True, kw_only=True)
class AttemptBar:
    """One attempt of a transaction.

    :param begun_at: when the attempt began, or null if the ledger has forgotten the time.
    :param failed_at: when the last task of the attempt failed, according to Airflow, or null if no task failed.
    :param ended_at: when the next attempt began or the transaction became final, or null if the attempt is running.
    :param outcome: `replayed`. For the newest attempt, it is the phase or the outcome of the transaction.
    :param why: the reason why the attempt was replayed.
    """

    attempt: int
    begun_at: datetime | None
    failed_at: datetime | None = None
    ended_at: datetime | None
    outcome: str
    why: Words | None = None


@dataclass(frozen=True, kw_only=True)
class WaitBar:
    """The time that a processed transaction waits for its turn.

    :param end: the end of the wait, or null if the transaction still waits.
    :param waiting_for: a description of the next event that the transaction needs, or null if the wait has ended.
    """

    start: datetime
    end: datetime | None
    waiting_for: Words | None


@dataclass(frozen=True, kw_only=True)
class CommitBar:
    """The time from the last grant to the end of the commit.

    :param end: the end of the commit, or null if the commit is running.
    """

    start: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One transaction, as the timeline shows it.

    :param phase: PROCESSING, PROCESSED, COMMITTING or FAILED for an open transaction, otherwise COMMITTED, SKIPPED or
        READMITTED. UNREADABLE if the record cannot be read. Then the error names the record.
    :param waiting_for: the next event that the transaction needs, as `airflow tx show` describes it, or null if there
        is none.
    :param blocked: the reason why the coordinator no longer replays the transaction, or null if it still does.
    :param rows: the number of rows in the batch, or null if the tasks did not count them.
    :param batch_name: the file, the range or the interval of the batch, or null if the batch has no name.
    :param to_skip: whether the transaction will be skipped when it has the turn.
    :param restates: the transaction that this one restates, or null if there is none.
    :param restated_by: the transaction that counts instead of this one, or null if there is none.
    :param to_restate: whether a user has requested the restatement of the transaction, and no run has begun it.
    :param behind: the upstream corrections that the transaction lacks, and the next step, or null if it lacks none.
    :param lane: whether a lane works on the transaction now.
    :param has_run: whether Airflow has the run of the transaction.
    :param rejected: the number of rows that its tasks and its source have rejected.
    :param warnings: the names of the checks that ended with a warning.
    """

    txid: int
    run_id: str
    phase: str
    open: bool
    attempt: int
    attempts: list[AttemptBar]
    tasks: Annotated[list[TaskBar], OnlyFor(SEE_TASKS)]
    waiting: WaitBar | None
    commit: CommitBar | None
    rows: int | None
    batch_name: BatchName | None
    waiting_for: Words | None
    blocked: Words | None
    error: Words | None
    to_skip: bool
    restates: int | None
    restated_by: int | None
    to_restate: bool
    behind: Words | None
    lane: bool
    has_run: bool
    rejected: int
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Transactions of a topology, newest first.

    :param total: the number of transactions within `since` and `until`. With a filter, only transactions before
        `before` count.
    :param before: the parameter `before` of the request for the next page, or null if this is the last page.
    :param earlier: the times during which transactions of the next pages were active, or null if they were not
        requested.
    :param txids: all transactions that match the filter, the newest first, or null without a filter.
    :param looked_to: the oldest transaction to which the filter was applied, or null if it was applied to all
        transactions.
    :param slow_beyond: the 95th percentile of the durations of committed transactions, in seconds. It is null if it was
        not requested.
    """

    topology: str
    transactions: list[TimelineRow]
    total: int
    limit: int
    before: int | None
    earlier: list[Stretch] | None = None
    txids: list[int] | None = None
    looked_to: int | None = None
    slow_beyond: float | None = None


@dataclass(frozen=True)
class TimelineWindow:
    """The window of a request.

    :param since: return only transactions that ended at this time or later, and open transactions.
    :param until: return only transactions that began before this time.
    :param before: return only transactions with smaller txids.
    :param limit: the maximum number of transactions.
    """

    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    limit: int = 100

    def rounded(self) -> TimelineWindow:
        """Extend the window to multiples of a step, so that viewers of similar windows share a response."""
        since = None if self.since is None else _whole(self.since)
        until = None if self.until is None else _whole(self.until)
        if until is not None and self.until is not None and until < self.until:
            until = min(until, _LAST - _STEP) + _STEP
        return replace(self, since=since, until=until)


_STEP = timedelta(seconds=10)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def _whole(moment: datetime) -> datetime:
    """Round a moment down to a multiple of the step, in UTC.

    A moment outside UTC's range becomes its first or last one.
    """
    try:
        utc = moment.astimezone(timezone.utc)
    except OverflowError:
        return _FIRST if moment.year < _LAST.year else _LAST
    return utc - (utc - _FIRST) % _STEP


def timeline(
    snapshot: TopologySnapshot,
    window: TimelineWindow,
    wanted: RowFilter = EVERY_ROW,
    *,
    with_tasks: bool,
    with_earlier: bool = False,
) -> Timeline:
    """Return the transactions of a topology, newest first.

    :param wanted: a filter for the transactions in the window.
    :param with_tasks: whether to add the tries of tasks, which require a right.
    :param with_earlier: whether to add the times of the transactions on the next pages.
    """
    within = _within(snapshot, window)
    earlier = within if window.before is None else within[: bisect_left(within, window.before)]
    chosen = None if wanted.is_empty else chosen_rows(snapshot, earlier, wanted)
    txids = earlier if chosen is None else chosen.txids
    rest = txids[: -window.limit]
    some = txids[-window.limit :]
    views = snapshot.transaction_views(reversed(some))
    return Timeline(
        topology=snapshot.name,
        transactions=timeline_rows(snapshot.record.dag_id, views, with_tasks=with_tasks),
        total=len(within if chosen is None else txids),
        limit=window.limit,
        before=some[0] if rest else None,
        earlier=stretches(snapshot, rest) if with_earlier else None,
        **_chosen(chosen),
    )


def _chosen(chosen: ChosenRows | None) -> dict[str, Any]:
    if chosen is None:
        return {}
    return {
        "txids": list(reversed(chosen.txids)),
        "looked_to": chosen.oldest,
        "slow_beyond": chosen.slow,
    }


def timeline_rows(
    dag_id: str, views: Sequence[TransactionView], *, with_tasks: bool
) -> list[TimelineRow]:
    """Describe these transactions in the given order."""
    run_ids = {each.document.run_id for each in views if each.document.run_id and not each.lane}
    runs = compat.runs_of(dag_id, run_ids)
    tries = task_tries(dag_id, run_ids) if with_tasks else {}
    return [
        timeline_row(
            each, tries.get(each.document.run_id, ()), has_run=each.document.run_id in runs
        )
        for each in views
    ]


def timeline_row(view: TransactionView, tries: Sequence[TaskBar], *, has_run: bool) -> TimelineRow:
    """Describe one transaction for the timeline.

    :param tries: the tries of the tasks of its run. Empty if the viewer may not read them.
    """
    attempts = attempt_bars(view)
    tasks = task_bars(own_tries(tries, view), attempts)
    attempts = [replace(each, failed_at=_failed_at(each, tasks)) for each in attempts]
    # The bars of a failed transaction end at its failure.
    stopped = attempts[-1].failed_at if attempts and view.failed else None
    return answer_of(
        TimelineRow,
        view,
        phase=Phase.FAILED.value if view.failed else view.status,
        attempts=attempts,
        tasks=tasks,
        waiting=_waiting(view, stopped),
        commit=_commit(view, stopped),
        batch_name=view.batch or None,
        error=view.failure,
        to_skip=view.open and view.skip is not None,
        to_restate=view.document.restates is None and view.restate is not None,
        has_run=has_run,
    )


def attempt_bars(view: TransactionView) -> list[AttemptBar]:
    """Return the attempts of a transaction that the ledger remembers."""
    bars = []
    begun = view.created
    for replay in view.document.replays:
        ended = moment(replay.when)
        bars.append(
            AttemptBar(
                attempt=replay.attempt,
                begun_at=begun,
                ended_at=ended,
                outcome="replayed",
                why=replay.why,
            )
        )
        begun = ended
    if view.document.attempt:
        newest = view.began or begun
        bars.append(
            AttemptBar(
                attempt=view.document.attempt,
                begun_at=newest,
                ended_at=view.ended,
                outcome=view.status,
                why=view.failure,
            )
        )
    return bars


def own_tries(tries: Sequence[TaskBar], view: TransactionView) -> Sequence[TaskBar]:
    """Return the tries of a transaction. The run of a restated or readmitted transaction also has tries of others.

    Each transaction of a run begins in a try of `begin`.
    """
    begins = sorted((each for each in tries if each.operator == BEGIN and each.start), key=_start)
    created = view.created or view.began
    own = [each for each in begins if created is not None and _start(each) <= created]
    first = _FIRST
    if own and any(each.end and each.end <= _start(own[-1]) and _made(each) for each in own[:-1]):
        first = _start(own[-1])
    ended = view.ended or _LAST
    last = min((_start(each) for each in begins if _start(each) > ended), default=_LAST)
    return [each for each in tries if not each.start or first <= each.start < last]


def _start(each: TaskBar) -> datetime:
    return each.start or _LAST


def _made(begin: TaskBar) -> bool:
    """Return whether a try of `begin` may have begun a transaction or an attempt."""
    return begin.state not in ("failed", "up_for_retry", "up_for_reschedule")


def task_bars(tries: Sequence[TaskBar], attempts: Sequence[AttemptBar]) -> list[TaskBar]:
    """Return the tries of tasks in the order of their starts. Tries that never started are last.

    A try of `begin` belongs to the attempt that it begins. So its attempt is found by its end, and not by its start.
    """
    ordered = sorted(
        tries,
        key=lambda each: (
            each.start or _LAST,
            each.task_id,
            each.map_index,
            each.try_number,
        ),
    )
    return [
        replace(
            each,
            attempt=_attempt_at(each.end if each.operator == BEGIN else each.start, attempts),
        )
        for each in ordered
    ]


def _failed_at(attempt: AttemptBar, tasks: Sequence[TaskBar]) -> datetime | None:
    ends = [
        each.end for each in tasks if each.attempt == attempt.attempt and each.state == "failed"
    ]
    return max((end for end in ends if end is not None), default=None)


def _attempt_at(start: datetime | None, attempts: Sequence[AttemptBar]) -> int | None:
    """Return the attempt that was running at a moment, or else the newest one. Without attempts, return None."""
    if not attempts:
        return None
    if start is None:
        return attempts[-1].attempt
    for each in attempts:
        if each.ended_at is None or start < each.ended_at:
            return each.attempt
    return attempts[-1].attempt


def _waiting(view: TransactionView, stopped: datetime | None) -> WaitBar | None:
    start = view.processed
    if start is None or (view.failed and stopped is None):
        return None
    end = view.granted or view.ended or stopped
    return WaitBar(start=start, end=end, waiting_for=view.waiting_for if end is None else None)


def _commit(view: TransactionView, stopped: datetime | None) -> CommitBar | None:
    start = view.granted
    if start is None or (view.failed and stopped is None):
        return None
    return CommitBar(start=start, end=view.ended or stopped)


def _within(snapshot: TopologySnapshot, window: TimelineWindow) -> Sequence[int]:
    first = 0 if window.since is None else snapshot.first_since(window.since)
    txids = [*snapshot.final[first:], *snapshot.open_by_txid]
    if window.until is None:
        return txids
    until = window.until

    def began_later(txid: int) -> bool:
        found = snapshot.open_by_txid.get(txid) or snapshot.final_view(txid)
        begun = None if found is None else begun_at(found)
        return begun is not None and begun >= until

    # Transactions begin in the order of their txids.
    return txids[: bisect_left(txids, True, key=began_later)]
