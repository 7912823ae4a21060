"""Figures over time: what is counted, and from when on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import CheckNote, Deed, Outcome, Replayed, TaskRows
from airflow_tx.ledger.records import Phase, TopologyRecord, TransactionRecord, encode
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.status import TransactionView, view_final, view_unreadable
from airflow_tx.ledger.views.view import TopologyView
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.dag_process import LagPoint
from airflow_tx.plugin.api.figures import MOST_COUNTED, Figures, FigureSpan, figures, spread
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.plugin.api.timeline import TimelineWindow
from airflow_tx.transaction.alarms import AlarmLimits
from tests.finals import final_record, plain_receipt

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
SPAN = FigureSpan.between(NOON, NOON + 40 * MINUTE)
NO_LIMITS = AlarmLimits()
RECEIPT = plain_receipt(granted=NOON.isoformat())


def _history(txid: int, outcome: Outcome = Outcome.COMMITTED, **changes: Any) -> TransactionRecord:
    """Transaction n ends n minutes after noon, after 10 s of processing and 2 s of commit, with n rows."""
    ended = NOON + txid * MINUTE
    began, processed, granted = (ended - timedelta(seconds=each) for each in (15, 5, 2))
    times = [each.isoformat() for each in (began, processed, granted, ended)]
    history = final_record(
        txid=txid, run_id=f"r{txid}", outcome=outcome, began=times[0], processed=times[1],
        granted_at=times[2], ended=times[3], rows=txid, created=times[0],
    )  # fmt: skip
    return replace(history, **changes)


def _replayed(txid: int, *times: datetime, attempts: int | None = None, **changes: Any) -> TransactionRecord:
    """A transaction that was replayed at these times."""
    replays = [Replayed(number, when.isoformat(), "it failed") for number, when in enumerate(times, start=1)]
    return _history(txid, attempt=attempts or len(times) + 1, replays=replays, receipt=RECEIPT, **changes)


def _counted(
    *histories: TransactionRecord,
    span: FigureSpan = SPAN,
    lags: Sequence[LagPoint] = (),
    limits: AlarmLimits = NO_LIMITS,
    opened: Sequence[TransactionRecord] = (),
    damaged: Collection[int] = (),
) -> Figures:
    place = LedgerPlace("flights", "zookeeper_default", Paths("/tx", "flights"))
    store = MemoryStore()
    store.restore(tuple((place.paths.history(each.txid), encode(each), 0) for each in histories))
    record = TopologyRecord("life", "dag", "opaque", 3)
    unread = UnreadableRecord(path="/x", reason="it is empty")
    views = [
        view_unreadable(each.txid, unread, is_open=True) if each.txid in damaged else _open(each) for each in opened
    ]
    view = TopologyView("flights", record, 1, 1, tuple(views), "")
    final = tuple(each.txid for each in histories)
    snapshot = TopologySnapshot(record, place, store, view, final=final)
    return figures(snapshot, span, lags, lag_unit="files", limits=limits)


def _open(history: TransactionRecord) -> TransactionView:
    final = view_final(history, None)
    return replace(final, document=replace(final.document, phase=Phase.FAILED, end=None))


def _figures(*txids: int, span: FigureSpan = SPAN, lags: Sequence[LagPoint] = (), skipped: int = 0) -> Figures:
    outcomes = {txid: Outcome.SKIPPED if txid == skipped else Outcome.COMMITTED for txid in txids}
    return _counted(*(_history(*each) for each in outcomes.items()), span=span, lags=lags)


def test_each_period_shows_the_transactions_and_rows_that_were_committed_in_it() -> None:
    found = _figures(1, 2, 3, skipped=2)
    assert [(each.transactions, each.rows) for each in found.points[:5]] == [
        (0, None),
        (1, 1),
        (0, None),
        (1, 3),
        (0, None),
    ]
    assert len(found.points) == 40
    assert (found.total.transactions, found.total.rows) == (2, 4)
    assert (found.total.processing, found.total.commit) == (spread([10.0]), spread([2.0]))
    assert found.known_since is None


def test_an_unreadable_open_transaction_is_not_counted_in_any_figure() -> None:
    found = _counted(_history(1), opened=[_history(2), _history(3)], damaged={3})
    assert found == _counted(_history(1), opened=[_history(2)])


@pytest.mark.parametrize(
    ("seconds", "step"), [(60, 2), (600, 15), (3_600, 120), (21_600, 600), (86_400, 3_600), (2_592_000, 86_400)]
)
def test_a_period_has_a_round_length_and_starts_at_a_round_time(seconds: int, step: int) -> None:
    end = NOON + timedelta(minutes=7, seconds=31)
    span = FigureSpan.between(end - timedelta(seconds=seconds), end)
    assert span.step == timedelta(seconds=step)
    assert {each.timestamp() % step for each in span.starts} == {0}
    assert span.starts[0] <= end - timedelta(seconds=seconds) < span.starts[1]
    assert span.starts[-1] < end <= span.starts[-1] + span.step


def test_the_age_in_a_period_is_the_age_of_its_oldest_open_transaction() -> None:
    opened = _history(9, created=(NOON + 4.5 * MINUTE).isoformat())
    found = _counted(_history(2, created=(NOON + 0.5 * MINUTE).isoformat()), opened=[opened])
    ages = [each.age for each in found.points[:7]]
    assert ages == [30.0, 90.0, 90.0, None, 30.0, 90.0, 150.0]
    assert found.total.age == 35.5 * 60


def test_an_age_is_never_negative_even_if_clocks_differ() -> None:
    begun = NOON + timedelta(seconds=61)
    assert _counted(_history(1, created=begun.isoformat())).total.age == 0.0


def test_a_transaction_that_ended_after_the_time_span_counts_as_open_in_the_span() -> None:
    span = FigureSpan.between(NOON, NOON + 2 * MINUTE)
    later = [_history(txid, created=(NOON + txid * 0.1 * MINUTE).isoformat()) for txid in (5, 6, 30)]
    found = _counted(*later, span=span)
    assert found.total.age == 90.0
    assert found.total.transactions == 0


def test_a_replay_counts_in_the_period_in_which_it_began_even_for_an_open_transaction() -> None:
    replayed = _replayed(3, NOON + MINUTE, NOON + 2 * MINUTE)
    opened = _replayed(5, NOON + 2 * MINUTE, created=NOON.isoformat())
    found = _counted(replayed, opened=[opened])
    assert [each.replays for each in found.points[:4]] == [0, 1, 2, 0]
    assert (found.total.replays, found.untimed_replays) == (3, 0)


def test_replays_whose_time_is_no_longer_in_the_ledger_are_counted_separately() -> None:
    found = _counted(_replayed(3, NOON + MINUTE, attempts=25))
    assert (found.total.replays, found.untimed_replays) == (1, 23)


def test_failures_and_skips_count_in_the_period_in_which_their_transaction_ended() -> None:
    skipped = _history(3, Outcome.SKIPPED, failures=1)
    found = _counted(_history(2, failures=2), skipped, _history(4, Outcome.READMITTED))
    assert [(each.failures, each.skipped) for each in found.points[1:5]] == [(0, 0), (2, 0), (1, 1), (0, 1)]
    assert (found.total.failures, found.total.skipped) == (3, 2)


def test_rejected_rows_and_warnings_count_in_the_period_of_their_commit() -> None:
    tasks = {"count": TaskRows(1, 9, {"tx_rejected": 2, "tx_malformed": 1, "good": 6})}
    warned = {"few": CheckNote(False, "3", severity="warn"), "many": CheckNote(True)}
    failed = {"few": CheckNote(False, "3", accepted=Deed("ada", NOON.isoformat(), "ok"))}
    found = _counted(
        _history(1, receipt=replace(RECEIPT, tasks=tasks, checks=warned)),
        _history(2, receipt=replace(RECEIPT, checks=failed)),
        _history(3),
    )
    assert [(each.rejected, each.warnings) for each in found.points[1:4]] == [(3, 1), (0, 0), (0, 0)]
    assert (found.total.rejected, found.total.warnings) == (3, 1)


def test_the_figures_include_the_limits_beyond_which_the_topology_is_late() -> None:
    found = _counted(_history(1), limits=AlarmLimits(late_after=3600.0, max_lag=5))
    assert (found.late_after, found.max_lag) == (3600.0, 5)


@pytest.mark.parametrize(("values", "p50", "p95"), [([7.0], 7, 7), ([3.0, 1.0, 2.0], 2, 3), ([*range(1, 101)], 50, 95)])
def test_the_percentiles_of_a_distribution_are_measured_values(values: list[float], p50: float, p95: float) -> None:
    found = spread(values)
    assert found is not None
    assert (found.p50, found.p95) == (p50, p95)
    assert spread([]) is None


def test_the_figures_include_the_time_from_which_the_history_is_complete() -> None:
    assert _figures(7, 8, 9).known_since == NOON + timedelta(minutes=7)
    later = FigureSpan.between(NOON + 8 * MINUTE, SPAN.until)
    assert _figures(7, 8, 9, span=later).known_since is None
    # Nothing is known of the whole span.
    before = FigureSpan.between(NOON - timedelta(hours=1), NOON)
    assert _figures(7, 8, 9, span=before).known_since == NOON + timedelta(minutes=7)


def test_figures_of_too_many_transactions_cover_the_newest_and_name_the_first_covered_time() -> None:
    span = FigureSpan.between(NOON, NOON + timedelta(days=2))
    found = _figures(*range(1, MOST_COUNTED + 101), span=span)
    assert found.total.transactions == MOST_COUNTED
    assert found.known_since == NOON + timedelta(minutes=101)


def test_a_period_shows_the_last_lag_that_was_measured_in_it() -> None:
    seen = [LagPoint(at=NOON + minute * MINUTE, value=value) for minute, value in ((-1, 9), (0, 8), (0.5, 7), (2, 6))]
    found = _figures(1, lags=seen)
    assert [each.lag for each in found.points[:4]] == [7, None, 6, None]
    assert found.total.lag == 6
    assert found.lag_unit == "files"


@pytest.mark.parametrize("since", [None, datetime.min, datetime.max, NOON.replace(tzinfo=None)])
@pytest.mark.parametrize("until", [None, datetime.min, datetime.max, NOON.replace(tzinfo=None)])
def test_a_span_ends_after_its_start_and_is_at_most_ten_years_and_one_period_long(
    since: datetime | None, until: datetime | None
) -> None:
    start, end = (None if each is None else each.replace(tzinfo=timezone.utc) for each in (since, until))
    span = FigureSpan.of(TimelineWindow(start, end).rounded())
    assert timedelta(0) < span.until - span.since <= timedelta(days=3653) + span.step
