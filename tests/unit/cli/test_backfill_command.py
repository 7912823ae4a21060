"""`airflow tx backfill`: runs in the order of their dates, as many in flight as wanted, stopped and resumed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import CronDataIntervalTimetable

from airflow_tx.base import compat
from airflow_tx.base.errors import AheadOfOrder, ConfigError, SourceError
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Create, Delete
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import end as skip
from airflow_tx.ledger.steps import run_slots
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.cli.backfill import BackfilledDates, left_to_do
from airflow_tx.operations.cli.progress import Progress, WorkStatus
from airflow_tx.sources.run.data_interval import DataIntervalSource, NextIntervalSource
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.processing.begin import allocate, ask
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers
from tests.unit.days import DAY, FIRST, day


class Airflow:
    """Runs of days that begin, last first, and are done a second later, unless they are to fail.

    :ivar created: the numbers of the days whose runs were created.
    :ivar most: how many runs there were in flight at once; one that has committed is not.
    """

    def __init__(self, store: CountingStore, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.log = store, log
        self.states: dict[int, str] = {}
        self.created: list[int] = []
        self.failing: set[int] = set()
        self.ending: set[int] = set()
        self.most = 0
        self.seconds = 0.0
        self.stopped_at: float | None = None
        self.in_order = True
        monkeypatch.setattr(compat, "scheduled_intervals", self.intervals)
        monkeypatch.setattr(compat, "dated_runs", self.runs)
        monkeypatch.setattr(compat, "create_backfill_run", self.create)
        monkeypatch.setattr(compat, "earlier_live_run", lambda dag_id, date: None)
        monkeypatch.setattr(compat, "previous_end", lambda dag, start, end: None)

    @property
    def spec(self) -> MemorySpec:
        source = DataIntervalSource("package.reader", in_order=self.in_order)
        return MemorySpec("days", "days", source, max_pending=8, memory=self.store)

    @property
    def ledger(self) -> Ledger:
        return self.spec.ledger(self.spec.memory)

    def intervals(self, dag_id: str, first: datetime, last: datetime) -> list[compat.ScheduledInterval]:
        starts = [FIRST + number * DAY for number in range(-5, 40)]
        return [
            compat.ScheduledInterval(start, start, start + DAY, start + DAY)
            for start in starts
            if first <= start <= last
        ]

    def runs(self, dag_id: str, intervals: Sequence[compat.ScheduledInterval]) -> dict[datetime, compat.DatedRun]:
        return {FIRST + number * DAY: compat.DatedRun(f"day {number}", state) for number, state in self.states.items()}

    def create(self, dag_id: str, interval: compat.ScheduledInterval, user: str) -> bool:
        number = (interval.start - FIRST) // DAY
        assert number not in self.states
        self.states[number] = "queued"
        self.created.append(number)
        live = {number for number, state in self.states.items() if state in ("queued", "running")}
        self.most = max(self.most, len(live - self.ending))
        return True

    def sleep(self, seconds: float) -> None:
        """A second of Airflow's life."""
        self.seconds += seconds
        if self.stopped_at is not None and self.seconds >= self.stopped_at:
            raise KeyboardInterrupt
        for number in sorted(self.states, reverse=True):
            if self.states[number] == "queued":
                self.begin(number)
        for number in self.ending:  # a run goes on for a moment after its commit
            self.states[number] = "success"
        self.ending.clear()
        turn = self.ledger.turn()
        if turn.record is not None and self.states[int(turn.record.run_id[4:])] == "running":
            self.ledger.run(skip.note_skip, turn.current, Audit("ann", "as good as committed"))
            take_skip(self.ledger, turn.current, {}, log=self.log)
            self.ending.add(int(turn.record.run_id[4:]))

    def begin(self, number: int) -> None:
        try:
            answer = ask(self.spec, FakeTi("begin", f"day {number}"), day(number), retry=False)
        except AheadOfOrder:
            return
        if isinstance(answer, Begun):
            self.states[number] = "failed" if number in self.failing else "running"

    def dates(self, first: int, last: int) -> BackfilledDates:
        return BackfilledDates(self.spec, self.ledger, FIRST + first * DAY, FIRST + last * DAY)

    def backfill(self, first: int, last: int, in_flight: int = 3) -> list[str]:
        """What is left to do after the command."""
        dates = self.dates(first, last)
        dates.check_order(note=True)
        left = Progress(dates, in_flight, sleep=self.sleep, clock=lambda: self.seconds).follow()
        return left_to_do(self.spec, left)

    def txids(self) -> list[int]:
        """The days in the order of their txids."""
        found = {each.txid: number for number, each in enumerate(self.dates(0, 30).read()) if each.txid is not None}
        return [found[txid] for txid in sorted(found)]


@pytest.fixture
def airflow(store: CountingStore, log: Any, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(store, log, monkeypatch)


def test_backfill_creates_runs_in_date_order_while_the_dag_has_free_run_slots(
    airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    assert airflow.backfill(0, 9) == ["All 10 intervals are done."]
    assert airflow.created == airflow.txids() == list(range(10))
    assert airflow.most == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "done 0 of 10, failed 0, in flight 0, waiting 10"
    assert lines[-1] == "done 10 of 10, failed 0, in flight 0, waiting 0"
    assert any(
        re.fullmatch(r"done 5 of 10, failed 0, in flight 2, waiting 3, about \d+ s left", line) for line in lines
    )


@pytest.mark.parametrize("stopped_at", range(1, 9))
def test_a_stopped_backfill_continues_at_the_date_where_it_stopped(airflow: Airflow, stopped_at: int) -> None:
    airflow.stopped_at = stopped_at
    with pytest.raises(KeyboardInterrupt):
        airflow.backfill(0, 9)
    before = len(airflow.created)
    airflow.stopped_at = None
    for _ in range(20):  # nobody follows them meanwhile
        airflow.sleep(1)
    assert len(airflow.created) == before
    assert airflow.backfill(0, 9) == ["All 10 intervals are done."]
    assert airflow.created == airflow.txids() == list(range(10))


def test_a_failed_date_ends_the_backfill_with_a_list_of_the_failed_and_the_waiting_dates(airflow: Airflow) -> None:
    airflow.failing = {2}
    assert airflow.backfill(0, 9) == [
        "2026-01-03T00:00:00+00:00: run day 2 ended as failed: airflow tx show days 3",
        "To replay the failed transactions: airflow tx replay days --failed",
        "3 in flight: 2026-01-04T00:00:00+00:00 to 2026-01-06T00:00:00+00:00",
        "4 waiting: 2026-01-07T00:00:00+00:00 to 2026-01-10T00:00:00+00:00",
    ]
    airflow.failing, airflow.states[2] = set(), "queued"
    assert airflow.backfill(0, 9) == ["All 10 intervals are done."]
    assert airflow.created == airflow.txids() == list(range(10))


def test_in_an_order_a_run_whose_begin_failed_stops_all_later_dates(airflow: Airflow) -> None:
    airflow.states[1] = "failed"
    told, *_ = airflow.backfill(0, 4)
    assert told == (
        "2026-01-02T00:00:00+00:00: run day 1 ended as failed: read the log of its `begin` task, then clear the run"
    )
    assert airflow.txids() == [0]


def test_without_an_order_a_run_whose_begin_failed_does_not_stop_other_dates(airflow: Airflow) -> None:
    airflow.in_order, airflow.states[1] = False, "failed"
    (told,) = airflow.backfill(0, 4)
    assert "run day 1 ended as failed" in told
    assert sorted(airflow.txids()) == [0, 2, 3, 4]


def test_backfill_creates_a_deleted_run_again_unless_its_transaction_is_committed(airflow: Airflow) -> None:
    airflow.backfill(0, 1)
    airflow.begin(2)
    airflow.states.clear()
    assert airflow.backfill(0, 3) == ["All 4 intervals are done."]
    assert airflow.created == [0, 1, 2, 3]


def test_a_run_that_yielded_its_slot_counts_as_in_flight(airflow: Airflow) -> None:
    airflow.backfill(0, 0)
    airflow.states[1] = "failed"
    waiter = Waiter("day 1", None, "its try", airflow.ledger.turn().current)
    for step in (run_slots.bid, run_slots.note_yield):
        airflow.ledger.run(step, waiter)
    assert [each.status for each in airflow.dates(0, 1).read()] == [WorkStatus.DONE, WorkStatus.IN_FLIGHT]


class Watched:
    """Says how long it was waited for, and that nothing has changed."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        return False


def test_the_wait_for_a_commit_returns_immediately_if_a_commit_happened_since_the_last_reading(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    dates, watched = airflow.dates(0, 9), Watched()
    dates.check_order(note=True)
    monkeypatch.setattr(airflow.store, "watch", lambda *paths: nullcontext(watched))
    dates.read()
    airflow.begin(0)
    dates.await_commit(7)
    assert watched.waits == [7]
    airflow.sleep(1)  # it is committed
    dates.await_commit(7)
    assert watched.waits == [7]
    dates.read()
    dates.await_commit(7)
    assert watched.waits == [7, 7]


def test_a_backfill_that_omits_dates_of_an_order_is_refused_before_it_creates_a_run(airflow: Airflow) -> None:
    airflow.backfill(0, 1)
    with pytest.raises(
        ConfigError, match=r"has reached 2026-01-03T00:00:00\+00:00\. The backfill cannot leave out an interval"
    ):
        airflow.backfill(4, 5)
    assert airflow.backfill(2, 5) == ["All 4 intervals are done."]


def test_a_backfill_of_dates_before_the_committed_dates_is_refused_before_it_creates_a_run(airflow: Airflow) -> None:
    airflow.backfill(3, 4)
    with pytest.raises(
        ConfigError, match=r"--from = '2026-01-02.*has reached 2026-01-06.*This interval is late.*in_order=F"
    ):
        airflow.backfill(1, 6)
    assert airflow.created == [3, 4]


def test_dates_that_are_too_late_for_the_order_are_committed_while_the_source_is_not_in_order(airflow: Airflow) -> None:
    airflow.backfill(3, 4)
    airflow.in_order = False
    assert airflow.backfill(1, 2) == ["All 2 intervals are done."]
    airflow.in_order = True
    assert airflow.backfill(5, 6) == ["All 2 intervals are done."]
    assert airflow.txids() in ([3, 4, 1, 2, 5, 6], [3, 4, 2, 1, 5, 6])


def test_backfill_moves_the_start_of_an_order_without_runs_unless_a_run_waits_for_its_dates(airflow: Airflow) -> None:
    for first, stands in ((5, 5), (2, 2), (4, 4)):
        dates = airflow.dates(first, 6)
        dates.check_order(note=True)
        dates.read()
        assert dates.order == FIRST + stands * DAY
    airflow.states[4] = "queued"
    with pytest.raises(ConfigError, match=r"so begin there: --from 2026-01-05"):
        airflow.dates(6, 6).check_order(note=True)
    airflow.dates(3, 6).check_order(note=True)
    assert airflow.backfill(3, 6) == ["All 4 intervals are done."]
    assert airflow.txids() == [3, 4, 5, 6]


def test_a_begin_that_has_read_an_outdated_start_of_the_order_is_refused_by_its_multi(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = DataIntervalSource.decide

    def decide(source: DataIntervalSource, attempt: Any, position: Any) -> Any:
        monkeypatch.setattr(DataIntervalSource, "decide", asked)
        batch = asked(source, attempt, position)
        airflow.dates(0, 6).check_order(note=True)  # a command, between the question and the multi
        return batch

    monkeypatch.setattr(DataIntervalSource, "decide", decide)
    with pytest.raises(AheadOfOrder):
        ask(airflow.spec, FakeTi("begin", "day 6"), day(6), retry=False)


def test_an_order_without_commits_can_start_at_an_earlier_date_after_a_reset(airflow: Airflow) -> None:
    airflow.begin(6)
    with pytest.raises(
        ConfigError, match=r"No transaction is committed yet\. End the runs of days, run `airflow tx repair days"
    ):
        airflow.dates(0, 6).check_order(note=True)
    Repairs(airflow.ledger).reset(airflow.spec.request, Audit("ann", "why"), clear=lambda: None)
    airflow.states.clear()
    assert airflow.backfill(0, 6) == ["All 7 intervals are done."]


def test_a_run_before_the_start_of_an_order_is_refused_with_the_command_that_moves_the_start(airflow: Airflow) -> None:
    airflow.dates(3, 6).check_order(note=True)
    with pytest.raises(SourceError, match=r"begins before 2026-01-04.*airflow tx backfill DAG --from 2026-01-02"):
        ask(airflow.spec, FakeTi("begin", "day 1"), day(1), retry=False)


def test_a_dry_run_of_backfill_writes_no_record_to_the_ledger(airflow: Airflow) -> None:
    dates = airflow.dates(0, 3)
    dates.check_order(note=False)
    assert [each.status for each in dates.read()] == [WorkStatus.WAITING] * 4
    assert airflow.store.children("/airflow_tx") is None


def test_backfill_refuses_dates_without_an_interval_and_a_source_without_dates(airflow: Airflow) -> None:
    with pytest.raises(ConfigError, match="The schedule of DAG days has no data interval between these dates"):
        airflow.dates(60, 70)
    spec = MemorySpec("numbers", "numbers", Numbers(), memory=airflow.store)
    with pytest.raises(ConfigError, match=r"source of numbers = 'Numbers' cannot be used\..* airflow backfill create"):
        BackfilledDates(spec, airflow.ledger, FIRST, FIRST + timedelta(days=1))


class DaysInLane:
    """Begins the days of a schedule as a lane does, which shows as long as it lives."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        schedule = compat.IntervalSchedule(CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), FIRST, catchup=True)
        source = DataIntervalSource("package.reader", in_order=True)
        self.spec = replace(airflow.spec, source=NextIntervalSource.of(source, schedule))
        airflow.ledger.open(self.spec.request)
        airflow.store.multi([], [Create(self.spec.paths.lane("lane-1"), b"")])

    def begin(self) -> None:
        assert isinstance(allocate(self.spec, self.airflow.ledger, "lane-1"), Begun)

    def die(self) -> None:
        self.airflow.store.multi([], [Delete(self.spec.paths.lane("lane-1"))])

    def work(self, seconds: float) -> None:
        """Begin a day, and be done with it."""
        self.begin()
        turn = self.airflow.ledger.turn()
        self.airflow.ledger.run(skip.note_skip, turn.current, Audit("ann", "as good as committed"))
        take_skip(self.airflow.ledger, turn.current, {}, log=self.airflow.log)


def test_backfill_follows_days_that_a_lane_processes_without_runs(
    airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    lane, dates = DaysInLane(airflow), airflow.dates(0, 3)
    dates.check_order(note=True)
    left = Progress(dates, 0, sleep=lane.work, clock=lambda: 0.0).follow()
    assert left_to_do(airflow.spec, left) == ["All 4 intervals are done."]
    assert airflow.created == []
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"done {count} of 4" for count in range(5)]


def test_a_day_in_a_running_lane_is_in_flight_and_a_day_of_a_stopped_lane_waits_for_its_run(airflow: Airflow) -> None:
    lane, dates = DaysInLane(airflow), airflow.dates(0, 1)
    dates.check_order(note=True)
    lane.begin()
    assert [each.status for each in dates.read()] == [WorkStatus.IN_FLIGHT, WorkStatus.WAITING]
    lane.die()
    assert [each.status for each in dates.read()] == [WorkStatus.WAITING, WorkStatus.WAITING]
