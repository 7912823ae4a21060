"""Figures over time of one topology: throughput, seconds, sizes and failures, as far as its ledger knows them."""

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
"""Transactions that one answer counts at most: the newest ones."""
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
"""Lengths of a period: a person reads from 12:04 to 12:06 more easily than from 12:03:27 to 12:04:57."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The distribution of values: half of them are not above `p50`, 95 of 100 are not above `p95`."""

    p50: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class FigurePoint:
    """One period.

    :param transactions: how many were committed.
    :param rows: without restatements, whose rows were counted before; null: no other transaction counted its rows.
    :param processing: seconds from the begin of the last attempt until every task had acked.
    :param commit: seconds from the grant until the end.
    :param size: rows of a batch.
    :param age: seconds for which the oldest transaction had been open, at most; null: none was open.
    :param lag: the last one that this api-server has seen, since the ledger keeps none; null: it has seen none.
    :param replays: attempts that began, without the first ones.
    :param failures: of the transactions that ended, in all their attempts; the ledger does not keep when they failed.
    :param skipped: how many transactions were skipped.
    :param rejected: rows that the committed transactions kept aside; `warnings`: their checks that only warned.
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

    :param step: seconds of each point; the last point may end after `until`.
    :param total: of all points together; its lag is the last one.
    :param known_since: when the oldest transaction that was counted ended; null: all of the span is known.
    :param untimed_replays: replays of these transactions of which the ledger does not know when they were.
    :param late_after: seconds after which an open transaction is late; null: its DAG sets no limit, or was not read.
    :param max_lag: the lag beyond which the topology is late; null: the same.
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
    """The time that is asked for, from the begin of a period."""

    since: datetime
    until: datetime
    step: timedelta

    @classmethod
    def of(cls, window: TimelineWindow) -> FigureSpan:
        """Make it of what a person asks: an hour until now, at most ten years, and never backwards."""
        now = datetime.now(timezone.utc)
        end = now if window.until is None else min(max(window.until, _EARLIEST), now)
        start = end - DEFAULT_SPAN if window.since is None else max(window.since, end - WIDEST_SPAN)
        return cls.between(min(start, end - LEAST_SPAN), end)

    @classmethod
    def between(cls, start: datetime, end: datetime) -> FigureSpan:
        """Divide the time between two moments into periods of a round length that begin at round times."""
        step = round_step(end - start, MOST_POINTS, _STEPS)
        return cls(start - (start - _EARLIEST) % step, end, step)

    @property
    def starts(self) -> list[datetime]:
        """When each period begins."""
        count = ceil((self.until - self.since) / self.step)
        return [self.since + index * self.step for index in range(count)]

    def index(self, at: datetime) -> int:
        """Find the period that has this moment, or that is nearest to it."""
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
        """Note for how long a transaction was open."""
        self.age = seconds if self.age is None else max(self.age, seconds)

    def point(self, start: datetime) -> FigurePoint:
        """Count."""
        committed = [each for each in self.ended if each.status == Outcome.COMMITTED.value]
        sizes = {each.txid: rows for each in committed if (rows := _rows(each)) is not None}
        # The rows of a restatement were counted before.
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
    """Count the transactions of a span, the newest ones if there are too many.

    :param lags: of its source, the oldest first.
    """
    first = snapshot.first_since(span.since)
    end = snapshot.first_since(span.until)
    least = max(first, end - MOST_COUNTED)
    # Where the record of a transaction cannot be read, its place in the order is not sure.
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
    """Say from when on nothing is missing: the history may begin within the span."""
    # A history that begins with the first transaction of all has forgotten nothing.
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
    """Give the transactions that ended after the span, and the open ones, in the order in which they began."""
    yield from _final(snapshot, snapshot.final[end:])
    yield from (each for each in snapshot.opened if begun_at(each) is not None)


def _ended(each: TransactionView) -> datetime:
    assert each.ended is not None
    return each.ended


def _begun(each: TransactionView) -> datetime:
    # Of some skipped transactions the ledger knows only when they were skipped.
    return begun_at(each) or _ended(each)


def _note_open(each: TransactionView, span: FigureSpan, periods: Sequence[_Period]) -> None:
    """Note for how long a transaction had been open at the end of each period, or when it ended."""
    begun = _begun(each)
    end = min(each.ended or span.until, span.until)
    for index in range(span.index(begun), span.index(end) + 1):
        seconds = min(end, span.since + (index + 1) * span.step) - begun
        # The clocks of two workers may differ.
        periods[index].is_open(max(seconds, timedelta(0)))


def _rows(view: TransactionView) -> int | None:
    counted = (view.document.size or {}).get("rows")
    return view.rows if view.rows is not None or not isinstance(counted, int) else counted


def spread(values: Iterable[float | None]) -> Spread | None:
    """Find the values that 50 and 95 of 100 do not exceed; None: there is no value."""
    ordered = sorted(each for each in values if each is not None)
    if not ordered:
        return None
    return Spread(p50=ranked(ordered, 0.5), p95=ranked(ordered, 0.95))
