"""Figures over time of one topology: throughput, seconds and sizes, as far as the history of its ledger goes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import ceil

from airflow_tx.plugin.api.lag_board import LagPoint
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.timeline import TimelineWindow
from airflow_tx.protocol.records import Outcome
from airflow_tx.protocol.status import TransactionView

POINTS = 40
MOST_COUNTED = 1000
"""Transactions that one answer counts at most: the newest ones."""
DEFAULT_SPAN = timedelta(hours=1)
WIDEST_SPAN = timedelta(days=3653)
LEAST_SPAN = timedelta(seconds=10)
_EARLIEST = datetime(1971, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The distribution of values: half of them are not above `p50`, 95 of 100 are not above `p95`."""

    p50: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class FigurePoint:
    """The commits of one period.

    :param rows: without restatements, whose rows were counted before; null: no other transaction counted its rows.
    :param processing: seconds from the begin of the last attempt until every task had acked.
    :param commit: seconds from the grant until the end.
    :param size: rows of a batch.
    """

    start: datetime
    transactions: int
    rows: int | None
    processing: Spread | None
    commit: Spread | None
    size: Spread | None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of the transactions that were committed from `since` until `until`.

    :param step: seconds of each point.
    :param total: of all points together.
    :param known_since: when the oldest transaction that was counted ended; null: all of the span is known.
    :param lag: as this api-server has seen it; the ledger keeps none.
    """

    topology: str
    since: datetime
    until: datetime
    step: float
    points: list[FigurePoint]
    total: FigurePoint
    known_since: datetime | None
    lag: list[LagPoint]
    lag_unit: str | None


@dataclass(frozen=True)
class FigureSpan:
    """The time that is asked for."""

    since: datetime
    until: datetime

    @classmethod
    def of(cls, window: TimelineWindow) -> FigureSpan:
        """Make it of what a person asks: an hour until now, at most ten years, and never backwards."""
        now = datetime.now(timezone.utc)
        end = now if window.until is None else min(max(window.until, _EARLIEST), now)
        start = end - DEFAULT_SPAN if window.since is None else max(window.since, end - WIDEST_SPAN)
        return cls(min(start, end - LEAST_SPAN), end)

    @property
    def step(self) -> timedelta:
        return (self.until - self.since) / POINTS


def figures(
    snapshot: TopologySnapshot, span: FigureSpan, lags: Sequence[LagPoint], *, lag_unit: str | None
) -> Figures:
    """Count the committed transactions of a span, the newest ones if there are too many.

    :param lags: of its source.
    """
    first = snapshot.first_since(span.since)
    end = snapshot.first_since(span.until)
    least = max(first, end - MOST_COUNTED)
    counted = list(_committed(snapshot, snapshot.final[least:end]))
    by_point: dict[int, list[TransactionView]] = {}
    for each in counted:
        by_point.setdefault(_index(each, span), []).append(each)
    points = [
        _point(span.since + index * span.step, by_point.get(index, [])) for index in range(POINTS)
    ]
    return Figures(
        topology=snapshot.name,
        since=span.since,
        until=span.until,
        step=span.step.total_seconds(),
        points=points,
        total=_point(span.since, counted),
        known_since=counted[0].ended if counted and least > first else _known_since(snapshot, span),
        lag=[each for each in lags if span.since <= each.at <= span.until],
        lag_unit=lag_unit,
    )


def _known_since(snapshot: TopologySnapshot, span: FigureSpan) -> datetime | None:
    """Say from when on nothing is missing: the history may begin within the span."""
    # A history that begins with the first transaction of all has forgotten nothing.
    if not snapshot.final or snapshot.final[0] == 1:
        return None
    oldest = snapshot.final_view(snapshot.final[0])
    begins = None if oldest is None else oldest.ended
    return begins if begins is not None and begins > span.since else None


def _index(each: TransactionView, span: FigureSpan) -> int:
    assert each.ended is not None
    return min(int((each.ended - span.since) / span.step), POINTS - 1)


def _committed(snapshot: TopologySnapshot, txids: Iterable[int]) -> Iterable[TransactionView]:
    for txid in txids:
        view = snapshot.final_view(txid)
        if view is not None and view.ended is not None and view.status == Outcome.COMMITTED.value:
            yield view


def _rows(view: TransactionView) -> int | None:
    return view.rows if view.rows is not None else (view.size or {}).get("rows")


def _point(start: datetime, some: Sequence[TransactionView]) -> FigurePoint:
    sizes = {each.txid: rows for each in some if (rows := _rows(each)) is not None}
    # The rows of a restatement were counted before.
    counted = [sizes[each.txid] for each in some if each.txid in sizes and each.restates is None]
    return FigurePoint(
        start=start,
        transactions=len(some),
        rows=sum(counted) if counted else None,
        processing=spread([each.processing_seconds for each in some]),
        commit=spread([each.commit_seconds for each in some]),
        size=spread(sizes.values()),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Find the values that 50 and 95 of 100 do not exceed; None: there is no value."""
    ordered = sorted(each for each in values if each is not None)
    if not ordered:
        return None
    p50, p95 = (ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
    return Spread(p50=p50, p95=p95)
