"""Figures of one topology over time: throughput, durations, sizes and failures, as far as the ledger has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from math import ceil

from airflow_tx.ledger import Outcome, TransactionView, moment
from airflow_tx.plugin.api.dag_process import LagPoint
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.plugin.api.timeline import TimelineWindow, begun_at, ranked, round_step
from airflow_tx.transaction import AlarmLimits

MOST_POINTS = 40
MOST_COUNTED = 1000
"""The maximum number of transactions that one response counts. The newest ones are counted."""
DEFAULT_SPAN = timedelta(hours=1)
WIDEST_SPAN = timedelta(days=3653)
LEAST_SPAN = timedelta(seconds=10)
_EARLIEST = datetime(1971, 1, 1, tzinfo=timezone.utc)
_MINUTE = 60
_HOUR = 60 * _MINUTE
_STEPS = tuple(
    timedelta(seconds=each)
    for each in (
        *(1, 2, 5, 10, 15, 30),
        *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
        *(each * _HOUR for each in (1, 2, 3, 6, 12)),
        *(each * 24 * _HOUR for each in (1, 2, 7, 14, 28, 56, 112, 224)),
    )
)
"""The allowed lengths of a period.

A period from 12:04 to 12:06 is easier to read than one from 12:03:27 to 12:04:57.
"""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The distribution of values. `p50` is the median, and `p95` is the 95th percentile."""

    p50: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class FigurePoint:
    """The figures of one period.

    :param start: the start of the period.
    :param transactions: the number of committed transactions.
    :param rows: the number of their rows, or null if it is unknown. Rows of restatements were counted before, so they
        are omitted.
    :param processing: seconds from the start of the last attempt until all tasks had acked.
    :param commit: seconds from the grant to the end of the transaction.
    :param size: the number of rows in a batch.
    :param age: the longest time that a transaction was open, in seconds. It is null if no transaction was open.
    :param lag: the last lag that this api-server has received, or null if there is none. The ledger does not store
        lags.
    :param replays: the number of attempts that began, without first attempts.
    :param failures: the number of failures, in all attempts of the transactions that ended. The ledger does not have
        their times.
    :param skipped: the number of skipped transactions.
    :param rejected: the number of rejected rows in the committed transactions.
    :param warnings: the number of checks of the committed transactions that ended with a warning.
    """

    start: datetime
    transactions: int
    rows: int | None
    processing: Spread | None
    commit: Spread | None
    size: Spread | None
    age: float | None
    lag: int | None
    replays: int
    failures: int
    skipped: int
    rejected: int
    warnings: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of the transactions that were open at any time from `since` until `until`.

    :param step: the length of a point, in seconds. The last point may end after `until`.
    :param total: the figures of the whole span. Its lag is the last known lag.
    :param known_since: the end of the oldest counted transaction, or null if the figures cover the whole span.
    :param untimed_replays: the number of replays whose time the ledger lacks.
    :param late_after: seconds after which an open transaction is late, or null if there is no limit or the DAG was not
        read.
    :param max_lag: the lag beyond which the topology is late, or null if there is no limit or the DAG was not read.
    """

    topology: str
    since: datetime
    until: datetime
    step: float
    points: list[FigurePoint]
    total: FigurePoint
    known_since: datetime | None
    untimed_replays: int
    lag_unit: str | None
    late_after: float | None
    max_lag: int | None


@dataclass(frozen=True)
class FigureSpan:
    """A span of time, divided into periods.

    :param since: the start of the first period.
    :param until: the end of the last period.
    :param step: the length of a period.
    """

    since: datetime
    until: datetime
    step: timedelta

    @classmethod
    def of(cls, window: TimelineWindow) -> FigureSpan:
        """Return the span of a window: by default the last hour, at most ten years. It never ends before it begins."""
        now = datetime.now(timezone.utc)
        end = now if window.until is None else min(max(window.until, _EARLIEST), now)
        start = end - DEFAULT_SPAN if window.since is None else max(window.since, end - WIDEST_SPAN)
        return cls.between(min(start, end - LEAST_SPAN), end)

    @classmethod
    def between(cls, start: datetime, end: datetime) -> FigureSpan:
        """Divide the time between two moments into periods with a round length and round start times."""
        step = round_step(end - start, MOST_POINTS, _STEPS)
        return cls(start - (start - _EARLIEST) % step, end, step)

    @property
    def starts(self) -> list[datetime]:
        """Return the start of each period."""
        count = ceil((self.until - self.since) / self.step)
        return [self.since + index * self.step for index in range(count)]

    def index(self, at: datetime) -> int:
        """Return the index of the period that contains this moment, or of the nearest period."""
        last = ceil((self.until - self.since) / self.step) - 1
        return min(max(int((at - self.since) / self.step), 0), last)


@dataclass
class _Period:
    """The counts of one period."""

    ended: list[TransactionView] = field(default_factory=list)
    replays: int = 0
    age: timedelta | None = None
    lag: int | None = None

    def is_open(self, seconds: timedelta) -> None:
        """Record for how long a transaction has been open in this period."""
        self.age = seconds if self.age is None else max(self.age, seconds)

    def point(self, start: datetime) -> FigurePoint:
        """Return the figures of the period."""
        committed = [each for each in self.ended if each.status == Outcome.COMMITTED.value]
        sizes = {each.txid: rows for each in committed if (rows := _rows(each)) is not None}
        # The rows of a restatement were counted with the restated transaction.
        counted = [
            sizes[each.txid]
            for each in committed
            if each.txid in sizes and each.document.restates is None
        ]
        return FigurePoint(
            start=start,
            transactions=len(committed),
            rows=sum(counted) if counted else None,
            processing=spread([each.processing_seconds for each in committed]),
            commit=spread([each.commit_seconds for each in committed]),
            size=spread(sizes.values()),
            age=None if self.age is None else self.age.total_seconds(),
            lag=self.lag,
            replays=self.replays,
            failures=sum(each.document.failures for each in self.ended),
            skipped=len(self.ended) - len(committed),
            rejected=sum(each.rejected for each in committed),
            warnings=sum(len(each.warnings) for each in committed),
        )


def figures(
    snapshot: TopologySnapshot,
    span: FigureSpan,
    lags: Sequence[LagPoint],
    *,
    lag_unit: str | None,
    limits: AlarmLimits,
) -> Figures:
    """Count the transactions of a span. If there are too many, only the newest are counted.

    :param lags: the lags of the source, the oldest first.
    :param lag_unit: the unit of the lags.
    :param limits: the limits beyond which the topology is late.
    """
    first = snapshot.first_since(span.since)
    end = snapshot.first_since(span.until)
    least = max(first, end - MOST_COUNTED)
    # An unreadable record may have a wrong end time, so check again whether the end is in the span.
    ended = [
        each
        for each in _final(snapshot, snapshot.final[least:end])
        if span.since <= _ended(each) < span.until
    ]
    later = takewhile(lambda each: _begun(each) < span.until, _later(snapshot, end))
    periods = [_Period() for _ in span.starts]
    total = _Period(ended)
    untimed = 0
    for each in ended:
        periods[span.index(_ended(each))].ended.append(each)
    for each in [*ended, *later]:
        _note_open(each, span, periods)
        times = [moment(replay.when) for replay in each.document.replays]
        untimed += max(each.document.attempt - 1 - len(times), 0)
        for at in times:
            if at is not None and span.since <= at < span.until:
                periods[span.index(at)].replays += 1
    for lag in lags:
        if span.since <= lag.at <= span.until:
            periods[span.index(lag.at)].lag = total.lag = lag.value
    total.replays = sum(each.replays for each in periods)
    total.age = max((each.age for each in periods if each.age is not None), default=None)
    starts = span.starts
    return Figures(
        topology=snapshot.name,
        since=span.since,
        until=span.until,
        step=span.step.total_seconds(),
        points=[each.point(start) for each, start in zip(periods, starts, strict=True)],
        total=total.point(span.since),
        known_since=_ended(ended[0]) if ended and least > first else _known_since(snapshot, span),
        untimed_replays=untimed,
        lag_unit=lag_unit,
        late_after=limits.late_after,
        max_lag=limits.max_lag,
    )


def _known_since(snapshot: TopologySnapshot, span: FigureSpan) -> datetime | None:
    """Return the start of the history, or None if the history covers the whole span."""
    # A history whose first transaction is txid 1 is complete.
    if not snapshot.final or snapshot.final[0] == 1:
        return None
    oldest = snapshot.final_view(snapshot.final[0])
    begins = None if oldest is None else oldest.ended
    return begins if begins is not None and begins > span.since else None


def _final(snapshot: TopologySnapshot, txids: Iterable[int]) -> Iterator[TransactionView]:
    for txid in txids:
        view = snapshot.final_view(txid)
        if view is not None and view.ended is not None:
            yield view


def _later(snapshot: TopologySnapshot, end: int) -> Iterator[TransactionView]:
    """Yield the transactions that ended after the start of the span, then the open ones, ordered by start."""
    yield from _final(snapshot, snapshot.final[end:])
    yield from (each for each in snapshot.opened if begun_at(each) is not None)


def _ended(each: TransactionView) -> datetime:
    assert each.ended is not None
    return each.ended


def _begun(each: TransactionView) -> datetime:
    # For some skipped transactions, the ledger only has the end.
    return begun_at(each) or _ended(each)


def _note_open(each: TransactionView, span: FigureSpan, periods: Sequence[_Period]) -> None:
    """Record in each period how long a transaction had been open at the end of the period, or at its own end."""
    begun = _begun(each)
    end = min(each.ended or span.until, span.until)
    for index in range(span.index(begun), span.index(end) + 1):
        seconds = min(end, span.since + (index + 1) * span.step) - begun
        # The clocks of two workers may differ, so the difference may be negative.
        periods[index].is_open(max(seconds, timedelta(0)))


def _rows(view: TransactionView) -> int | None:
    counted = (view.document.size or {}).get("rows")
    return view.rows if view.rows is not None or not isinstance(counted, int) else counted


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the median and the 95th percentile of the values, or None if there are no values."""
    ordered = sorted(each for each in values if each is not None)
    if not ordered:
        return None
    return Spread(p50=ranked(ordered, 0.5), p95=ranked(ordered, 0.95))
