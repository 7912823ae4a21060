"""Figures over time: what is counted, and from when on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import pytest

from airflow_tx.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.figures import MOST_COUNTED, POINTS, Figures, FigureSpan, figures, spread
from airflow_tx.plugin.api.final_views import FinalViews
from airflow_tx.plugin.api.lag_board import LagPoint
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.timeline import TimelineWindow
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.records import History, Outcome, TopologyRecord
from airflow_tx.protocol.status import view_final

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)
SPAN = FigureSpan(NOON, NOON + timedelta(minutes=POINTS))


def _history(txid: int, outcome: Outcome = Outcome.COMMITTED) -> History:
    """Transaction n ends n minutes after noon, after 10 s of processing and 2 s of commit, with n rows."""
    ended = NOON + timedelta(minutes=txid)
    began, processed, granted = (ended - timedelta(seconds=each) for each in (15, 5, 2))
    times = [each.isoformat() for each in (began, processed, granted, ended)]
    return History(
        txid=txid, attempts=1, run_id=f"r{txid}", outcome=outcome, began=times[0], processed=times[1],
        granted_at=times[2], ended=times[3], rows=txid, ack_val="0" * 16, op="op",
    )  # fmt: skip


def _figures(*txids: int, span: FigureSpan = SPAN, lags: Sequence[LagPoint] = (), skipped: int = 0) -> Figures:
    finals = FinalViews(
        view_final(_history(txid, Outcome.SKIPPED if txid == skipped else Outcome.COMMITTED), None) for txid in txids
    )
    place = LedgerPlace("flights", "zookeeper_default", Paths("/tx", "flights"))
    record = TopologyRecord("life", "dag", "opaque", 3)
    snapshot = TopologySnapshot(record, place, None, None, final=txids, finals=finals)
    return figures(snapshot, span, lags, lag_unit="files")


def test_each_stretch_of_time_has_what_was_committed_in_it() -> None:
    found = _figures(1, 2, 3, skipped=2)
    assert [(each.transactions, each.rows) for each in found.points[:5]] == [
        (0, None),
        (1, 1),
        (0, None),
        (1, 3),
        (0, None),
    ]
    assert len(found.points) == POINTS
    assert (found.total.transactions, found.total.rows) == (2, 4)
    assert (found.total.processing, found.total.commit) == (spread([10.0]), spread([2.0]))
    assert found.known_since is None


@pytest.mark.parametrize(("values", "p50", "p95"), [([7.0], 7, 7), ([3.0, 1.0, 2.0], 2, 3), ([*range(1, 101)], 50, 95)])
def test_a_spread_is_of_values_that_there_were(values: list[float], p50: float, p95: float) -> None:
    found = spread(values)
    assert found is not None
    assert (found.p50, found.p95) == (p50, p95)
    assert spread([]) is None


def test_figures_say_from_when_on_the_history_knows_everything() -> None:
    assert _figures(7, 8, 9).known_since == NOON + timedelta(minutes=7)
    later = FigureSpan(NOON + timedelta(minutes=8), SPAN.until)
    assert _figures(7, 8, 9, span=later).known_since is None
    # Nothing is known of the whole span.
    before = FigureSpan(NOON - timedelta(hours=1), NOON)
    assert _figures(7, 8, 9, span=before).known_since == NOON + timedelta(minutes=7)


def test_of_very_many_transactions_the_newest_are_counted_and_that_is_said() -> None:
    span = FigureSpan(NOON, NOON + timedelta(days=2))
    found = _figures(*range(1, MOST_COUNTED + 101), span=span)
    assert found.total.transactions == MOST_COUNTED
    assert found.known_since == NOON + timedelta(minutes=101)


def test_lags_are_those_that_were_seen_within_the_span() -> None:
    seen = [LagPoint(at=NOON + timedelta(minutes=minute), value=8 - minute) for minute in (-1, 0, 1)]
    found = _figures(1, lags=seen)
    assert [each.value for each in found.lag] == [8, 7]
    assert found.lag_unit == "files"


@pytest.mark.parametrize("since", [None, datetime.min, datetime.max, NOON.replace(tzinfo=None)])
@pytest.mark.parametrize("until", [None, datetime.min, datetime.max, NOON.replace(tzinfo=None)])
def test_a_span_is_never_backwards_and_never_wider_than_ten_years(
    since: datetime | None, until: datetime | None
) -> None:
    start, end = (None if each is None else each.replace(tzinfo=timezone.utc) for each in (since, until))
    span = FigureSpan.of(TimelineWindow(start, end).rounded())
    assert timedelta(0) < span.until - span.since <= timedelta(days=3653)
