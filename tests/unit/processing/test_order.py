"""Txids follow the data intervals, whichever run begins first: who begins, who waits, who is late."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import permutations
from typing import Any

import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_tx.base import compat
from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import AheadOfOrder, SourceError
from airflow_tx.ledger.answers import Begun, WindowFull
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.steps import end as skip
from airflow_tx.ledger.steps import loss
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.sources.dates import order_from
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.processing.begin import ask, conf_of, key_of, order_in
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, run_of
from tests.unit.days import DAY, FIRST, day


@dataclass
class Days:
    """A ledger of days, and what Airflow knows of their runs."""

    store: CountingStore
    source: dict[str, Any] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    dag: DAG = field(
        default_factory=lambda: DAG("days", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"))
    )
    max_pending: int = 8

    @property
    def spec(self) -> MemorySpec:
        source = DataIntervalSource("package.reader", **{"in_order": True, **self.source})
        return MemorySpec("days", "days", source, max_pending=self.max_pending, memory=self.store)

    @property
    def ledger(self) -> Ledger:
        return self.spec.ledger(self.spec.memory)

    def earlier_live_run(self, dag_id: str, date: datetime) -> datetime | None:
        live = [number for number, state in self.states.items() if state in ("queued", "running")]
        return max((start for number in live if (start := FIRST + number * DAY) < date), default=None)

    def ask(self, run: RunInfo) -> Any:
        """Let a run begin: the txid and the attempt, or what it waits for."""
        ti = FakeTi("begin", run.run_id, runs={run.run_id: "running"})
        try:
            answer = ask(self.spec, ti, run, retry=False, dag=self.dag)
        except AheadOfOrder as ahead:
            return ahead
        return str(answer.attempt) if isinstance(answer, Begun) else answer

    def begin(self, number: int) -> Any:
        return self.ask(day(number))

    def txids(self) -> dict[str, int]:
        """By the day that each transaction begins with."""
        ledger, paths = self.ledger, self.spec.paths
        found = {}
        for txid in range(1, 10):
            node = self.store.get(paths.meta(txid))
            if node is not None and ledger.status(txid) is not None:
                found[json.loads(node.data)["rows"]["from"][8:10]] = txid
        return found


@pytest.fixture
def days(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> Days:
    made = Days(store)
    monkeypatch.setattr(compat, "earlier_live_run", made.earlier_live_run)
    return made


def waits_for(answer: Any) -> datetime:
    assert isinstance(answer, AheadOfOrder), answer
    missing: datetime = answer.missing
    return missing


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_txids_follow_the_order_of_days_no_matter_in_which_order_their_runs_begin(
    days: Days, order: tuple[int, ...]
) -> None:
    days.states = dict.fromkeys(range(4), "running")
    waiting = list(order)
    while waiting:
        still = [number for number in waiting if isinstance(days.begin(number), AheadOfOrder)]
        assert len(still) < len(waiting), "somebody can always begin"
        waiting = still
    assert days.txids() == {"01": 1, "02": 2, "03": 3, "04": 4}


def test_an_order_starts_at_the_earliest_queued_or_running_run(days: Days) -> None:
    days.states = {2: "queued", 5: "running"}
    assert waits_for(days.begin(5)) == FIRST + 2 * DAY
    assert days.begin(2) == "1.1"
    assert waits_for(days.begin(5)) == FIRST + 3 * DAY


def test_an_order_starts_at_the_interval_in_its_record(days: Days) -> None:
    ledger = days.ledger
    ledger.open(days.spec.request)
    assert ledger.run(loss.note_origin, order_from(FIRST)) == order_from(FIRST)
    assert ledger.run(loss.note_origin, order_from(FIRST + DAY)) == order_from(FIRST + DAY), "it is moved"
    assert ledger.run(loss.note_origin, order_from(FIRST)) == order_from(FIRST)
    assert waits_for(days.begin(1)) == FIRST
    assert days.begin(0) == "1.1"
    assert ledger.run(loss.note_origin, order_from(FIRST)) == {
        "intervals": [[FIRST.isoformat(), (FIRST + DAY).isoformat()]]
    }
    assert order_in(days.store, days.spec.paths) == FIRST + DAY


def test_a_gap_delays_later_days_until_its_run_begins(days: Days) -> None:
    assert days.begin(0) == "1.1"
    assert waits_for(days.begin(2)) == FIRST + DAY
    assert waits_for(days.begin(3)) == FIRST + DAY
    assert days.begin(1) == "2.1"
    assert [days.begin(number) for number in (2, 3)] == ["3.1", "4.1"]


def test_a_run_that_was_killed_while_it_waited_blocks_no_other_run(days: Days) -> None:
    assert days.begin(0) == "1.1"
    assert waits_for(days.begin(2)) == FIRST + DAY  # and is never heard of again
    assert days.begin(1) == "2.1"
    assert waits_for(days.begin(3)) == FIRST + 2 * DAY
    assert days.begin(2) == "3.1"


def test_a_late_day_is_refused_with_the_txid_that_it_would_get(days: Days) -> None:
    days.begin(3)
    with pytest.raises(SourceError) as refusal:
        days.begin(1)
    said = str(refusal.value)
    assert "interval 2026-01-02T00:00:00+00:00/2026-01-03T00:00:00+00:00 of run day 1 begins before 2026-01-05" in said
    assert "It would become transaction 2" in said
    assert "\n" not in said


def test_the_remedy_for_a_late_day_allows_it_and_leaves_the_order_unchanged(days: Days) -> None:
    days.begin(3)
    days.source = {"in_order": False}
    assert days.begin(1) == "2.1"
    days.source = {}
    assert waits_for(days.begin(5)) == FIRST + 4 * DAY
    assert days.begin(4) == "3.1"


def test_a_day_before_the_start_of_the_order_is_refused_and_the_remedy_allows_it(days: Days) -> None:
    ledger = days.ledger
    ledger.open(days.spec.request)
    ledger.run(loss.note_origin, order_from(FIRST + DAY))
    with pytest.raises(SourceError, match="begins before 2026-01-02.*airflow tx backfill DAG --from 2026-01-01"):
        days.begin(0)
    days.source = {"in_order": False}
    two_days = replace(day(0), interval_end=FIRST + 2 * DAY)
    assert days.ask(two_days) == "1.1", "where the order begins is no interval that it could overlap"


def test_a_cleared_run_keeps_its_txid_although_later_days_have_begun(days: Days) -> None:
    for kind in ("transactional", "opaque"):
        other = Days(CountingStore(), {"kind": kind})
        for number in range(3):
            other.begin(number)
        assert [other.begin(number) for number in (1, 0, 2)] == ["2.2", "1.2", "3.2"]


def test_an_order_can_be_enabled_for_an_existing_ledger_and_earlier_days_can_still_be_replayed(days: Days) -> None:
    days.source = {"in_order": False, "kind": "opaque"}
    for number in (4, 0):
        days.begin(number)
    days.source = {"kind": "opaque"}
    assert days.begin(0) == "2.2"
    assert waits_for(days.begin(6)) == FIRST + 5 * DAY
    assert days.begin(5) == "3.1"


def test_a_failed_day_that_is_skipped_does_not_delay_the_next_day(days: Days, log: Any) -> None:
    days.begin(0)
    ledger = days.ledger
    ledger.run(skip.note_skip, 1, Audit("ann", "broken"))
    take_skip(ledger, 1, {}, log=log)
    assert days.begin(1) == "2.1"


def test_a_run_waits_for_a_place_in_the_window_before_it_waits_for_its_turn_in_the_order(days: Days) -> None:
    days.max_pending = 1
    days.begin(0)
    assert isinstance(days.begin(2), WindowFull)


def test_a_run_that_was_deleted_and_created_again_has_no_dates_and_does_not_wait_for_the_order(days: Days) -> None:
    days.begin(0)
    days.begin(1)
    anew = replace(run_of("day 1"), conf=conf_of(key_of(days.spec, day(1))))
    assert days.ask(anew) == "2.2"


def weekdays() -> DAG:
    """A schedule whose intervals do not touch: there is none for the weekend."""
    from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

    class Weekdays(Timetable):
        def next_dagrun_info(
            self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
        ) -> DagRunInfo | None:
            last = last_automated_data_interval
            start: Any = restriction.earliest if last is None else last.start + DAY
            while start.weekday() > 4:
                start = start + DAY
            if restriction.latest is not None and start > restriction.latest:
                return None
            return DagRunInfo.interval(start=start, end=start + DAY)

        def infer_manual_data_interval(self, *, run_after: Any) -> DataInterval:
            return DataInterval(run_after - DAY, run_after)

    return DAG("days", schedule=Weekdays(), start_date=FIRST)


def test_a_day_that_the_schedule_omits_is_not_a_gap(days: Days) -> None:
    days.dag = weekdays()
    assert days.begin(1) == "1.1"  # Friday
    assert waits_for(days.begin(5)) == FIRST + 2 * DAY, "Tuesday"
    assert days.begin(4) == "2.1", "Monday"


@pytest.mark.parametrize(
    ("cron", "start", "end", "before"),
    [
        ("0 0 * * *", datetime(2026, 3, 28, 23), datetime(2026, 3, 29, 22), datetime(2026, 3, 28, 23)),
        ("0 0 * * *", datetime(2026, 3, 29, 22), datetime(2026, 3, 30, 22), datetime(2026, 3, 29, 22)),
        ("0 0 * * 1-5", datetime(2026, 1, 4, 23), datetime(2026, 1, 5, 23), datetime(2026, 1, 4, 23)),
    ],
    ids=["23 hours", "after them", "Monday, after the interval from Friday on"],
)
def test_the_schedule_defines_the_end_of_the_previous_interval(
    cron: str, start: datetime, end: datetime, before: datetime
) -> None:
    dag = DAG("days", schedule=CronDataIntervalTimetable(cron, timezone="Europe/Berlin"), start_date=FIRST)
    moments = [each.replace(tzinfo=timezone.utc) for each in (start, end, before)]
    assert compat.previous_end(dag, moments[0], moments[1]) == moments[2]


def test_a_dag_without_intervals_has_no_previous_interval() -> None:
    assert compat.previous_end(DAG("days", schedule=None), FIRST, FIRST + DAY) is None
