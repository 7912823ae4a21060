"""What `compat` takes for granted of the schedules of this version of Airflow, and of the dates of runs."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pendulum
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    MultipleCronTriggerTimetable,
)
from airflow.sdk.api.datamodels._generated import DagRun, TIRunContext
from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.execution_time import comms, task_runner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction

from airflow_tx.base import compat
from airflow_tx.base.compat import IntervalSchedule
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.run.data_interval import DataIntervalSource, NextIntervalSource

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAY = timedelta(days=1)
DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
SCHEDULES = [
    IntervalSchedule(DAILY, FIRST, FIRST + 9 * DAY, catchup=True),
    IntervalSchedule(DeltaDataIntervalTimetable(DAY), FIRST, FIRST + 9 * DAY, catchup=True),
]


def starts(schedule: IntervalSchedule, now: datetime, after: datetime | None = None) -> list[datetime]:
    """The intervals that follow a date, one after the other."""
    found = []
    while (interval := schedule.next_interval(after, now)) is not None:
        assert interval.logical_date == interval.start
        found.append(interval.start)
        after = interval.end
    return found


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["cron", "delta"])
def test_a_schedule_returns_each_interval_after_it_has_ended(schedule: IntervalSchedule) -> None:
    days = [FIRST + number * DAY for number in range(10)]
    assert starts(schedule, FIRST) == []
    assert starts(schedule, FIRST + 3 * DAY) == days[:3]
    assert starts(schedule, FIRST + 3 * DAY - timedelta(seconds=1)) == days[:2]
    assert starts(schedule, FIRST + 99 * DAY) == days
    assert starts(schedule, FIRST + 99 * DAY, FIRST + 8 * DAY) == days[8:]
    assert starts(schedule, FIRST + 99 * DAY, FIRST - 8 * DAY) == days
    again = IntervalSchedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert starts(again, FIRST + 99 * DAY) == days


def test_without_catchup_a_schedule_starts_at_the_last_ended_interval_and_then_omits_none() -> None:
    today = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    schedule = IntervalSchedule(DAILY, FIRST, catchup=False)
    assert starts(schedule, today + DAY)[0] >= today - DAY
    assert starts(schedule, FIRST + 3 * DAY, FIRST + DAY) == [FIRST + DAY, FIRST + 2 * DAY]


def test_a_day_in_a_time_zone_may_have_23_hours() -> None:
    berlin = CronDataIntervalTimetable("0 0 * * *", timezone="Europe/Berlin")
    schedule = IntervalSchedule(berlin, FIRST, catchup=True)
    start = datetime(2026, 3, 28, 23, tzinfo=timezone.utc)
    found = schedule.next_interval(start, start + DAY)
    assert found is not None
    assert (found.start, found.end) == (start, start + timedelta(hours=23))
    assert schedule.makes(found.start, found.end)


# Schedules whose time zones change their clocks on one of the days.
CLOCK_CHANGES = [
    ("0 0 * * *", "UTC", datetime(2025, 3, 25), 8),
    ("0 2 * * *", "Europe/Berlin", datetime(2025, 3, 26, 1), 8),
    ("30 2 * * *", "Europe/Berlin", datetime(2025, 3, 26), 8),
    ("30 2 * * *", "America/New_York", datetime(2025, 3, 5), 8),
    ("30 2 * * *", "Europe/Berlin", datetime(2025, 10, 22), 8),
    ("0 3 * * *", "Europe/Berlin", datetime(2025, 3, 26), 8),
    ("0 0 * * *", "Europe/Berlin", datetime(2025, 3, 26), 8),
    ("0 0 * * *", "Africa/Cairo", datetime(2025, 4, 21), 8),
    ("0 0 * * *", "Asia/Beirut", datetime(2025, 3, 26), 8),
    ("0 0 * * *", "America/Santiago", datetime(2025, 9, 3), 8),
    ("0 * * * *", "Europe/Berlin", datetime(2025, 3, 29, 12), 2),
    ("0 * * * *", "Europe/Berlin", datetime(2025, 10, 25, 12), 2),
    ("*/15 1-3 * * *", "Europe/Berlin", datetime(2025, 3, 29), 3),
    ("0 0,12 * * *", "Africa/Cairo", datetime(2025, 4, 23), 4),
    ("30 2 * * 1-5", "America/New_York", datetime(2025, 3, 5), 8),
    ("0 2 1 * *", "Europe/Berlin", datetime(2025, 1, 1), 150),
]


@dataclass(frozen=True)
class Scheduled:
    """A schedule with the intervals that Airflow's own scheduler makes of it, one after the other."""

    timetable: CronDataIntervalTimetable
    first: datetime
    last: datetime
    intervals: tuple[tuple[datetime, datetime], ...]

    @property
    def schedule(self) -> IntervalSchedule:
        return IntervalSchedule(self.timetable, self.first, self.last, catchup=True)


@pytest.fixture(params=CLOCK_CHANGES, ids=lambda each: f"{each[0]} {each[1]} {each[2]:%m-%d}")
def scheduled(request: pytest.FixtureRequest) -> Scheduled:
    cron, zone, first, days = request.param
    first = first.replace(tzinfo=timezone.utc)
    timetable = CronDataIntervalTimetable(cron, timezone=zone)
    core: Any = coerce_to_core_timetable(timetable)
    restriction = TimeRestriction(pendulum.instance(first), pendulum.instance(first + days * DAY), catchup=True)
    info = None
    found = []
    while info := core.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction):
        found.append((info.data_interval.start, info.data_interval.end))
    return Scheduled(timetable, first, first + days * DAY, tuple(found))


def test_no_interval_is_omitted_when_the_clocks_change(scheduled: Scheduled) -> None:
    after = None
    for interval in scheduled.intervals:
        found = scheduled.schedule.next_interval(after, scheduled.last + 99 * DAY)
        assert found is not None
        assert (found.start, found.end) == interval
        after = found.end
    assert scheduled.schedule.next_interval(after, scheduled.last + 99 * DAY) is None


def test_a_schedule_without_a_start_date_returns_the_same_next_intervals(scheduled: Scheduled) -> None:
    schedule = IntervalSchedule(scheduled.timetable)
    for (_, after), interval in pairwise(scheduled.intervals):
        found = schedule.next_interval(after, scheduled.last + 99 * DAY)
        assert found is not None
        assert (found.start, found.end) == interval


def test_the_previous_interval_ends_where_an_interval_begins_even_when_the_clocks_change(scheduled: Scheduled) -> None:
    for (_, before), interval in pairwise(scheduled.intervals):
        assert scheduled.schedule.previous_end(*interval) == before


def test_a_lane_takes_every_interval_when_the_clocks_change(scheduled: Scheduled) -> None:
    source = NextIntervalSource.of(DataIntervalSource(in_order=True), scheduled.schedule)
    position = None
    for number, (start, end) in enumerate(scheduled.intervals, 1):
        batch = source.decide(TransactionAttempt(number, 1), position)
        assert batch is not None
        assert source.interval(batch.metadata) == (start, end)
        position = batch.position


def test_commands_list_every_interval_between_two_dates_when_the_clocks_change(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = DAG("d", schedule=scheduled.timetable, start_date=FIRST, catchup=False)
    kept = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    monkeypatch.setattr("airflow_tx.base.compat.runs._backfilled_dag", lambda dag_id, session: kept)
    starts = [start for start, _ in scheduled.intervals]
    for number, start in enumerate(starts):
        found = compat.scheduled_intervals("d", start, starts[-1])
        assert [each.start for each in found] == starts[number:]


@pytest.mark.parametrize(
    ("schedule", "zone"),
    [
        (None, ""),
        ("@daily", "Europe/Berlin"),
        (timedelta(days=1), ""),
        (CronDataIntervalTimetable("0 0 * * *", timezone="Africa/Cairo"), "Africa/Cairo"),
        (CronTriggerTimetable("0 0 * * *", timezone=pendulum.timezone(7200)), "+02:00"),
        (MultipleCronTriggerTimetable("0 0 * * *", "0 1 * * *", timezone="Africa/Cairo"), "Africa/Cairo"),
        (AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 0 * * *", timezone="UTC"), assets=[Asset("a")]), ""),
        (coerce_to_core_timetable(CronTriggerTimetable("0 0 * * *", timezone="Africa/Cairo")), "Africa/Cairo"),
        (coerce_to_core_timetable(DeltaDataIntervalTimetable(DAY)), ""),
    ],
    ids=str,
)
def test_the_time_zone_of_a_schedule_is_the_time_zone_of_its_cron_expression(schedule: Any, zone: str) -> None:
    dag = DAG("d", schedule=schedule, start_date=pendulum.datetime(2026, 1, 1, tz="Europe/Berlin"))
    assert compat.zone_of(dag) == zone


def test_a_schedule_creates_only_runs_of_its_own_intervals() -> None:
    schedule = SCHEDULES[0]
    assert schedule.makes(FIRST, FIRST + DAY)
    assert not schedule.makes(FIRST, FIRST + timedelta(hours=1))


def test_the_run_of_an_interval_has_the_run_id_that_the_scheduler_would_give_it() -> None:
    found = SCHEDULES[0].next_interval(None, FIRST + DAY)
    assert found is not None
    assert SCHEDULES[0].run_id(found) == "scheduled__2026-01-02T00:00:00+00:00"


def test_the_dates_of_a_schedule_are_read_from_the_dag_or_from_its_tasks() -> None:
    with DAG("dated", schedule=DAILY, start_date=FIRST, end_date=FIRST + DAY, catchup=True) as dag:
        BaseOperator(task_id="a")
    schedule = IntervalSchedule.of_dag(dag)
    assert (schedule.earliest, schedule.latest, schedule.catchup) == (FIRST, FIRST + DAY, True)
    with DAG("dated", schedule=DAILY) as dag:
        BaseOperator(task_id="a", start_date=FIRST + DAY, end_date=FIRST + 3 * DAY)
        BaseOperator(task_id="b", start_date=FIRST, end_date=FIRST + 2 * DAY)
    schedule = IntervalSchedule.of_dag(dag)
    assert (schedule.earliest, schedule.latest) == (FIRST, FIRST + 3 * DAY)
    with DAG("dated", schedule=DAILY) as dag:
        BaseOperator(task_id="a")
    schedule = IntervalSchedule.of_dag(dag)
    assert (schedule.earliest, schedule.latest, schedule.catchup) == (None, None, False)


def test_the_context_of_an_interval_equals_the_context_of_an_airflow_run() -> None:
    dates: dict[str, Any] = {"data_interval_start": FIRST, "data_interval_end": FIRST + DAY, "logical_date": FIRST}
    partition: dict[str, Any] = {"partition_key": None, "partition_date": None, "consumed_asset_events": []}
    run = DagRun.model_construct(dag_id="d", run_id="r", run_after=FIRST, conf={}, **dates, **partition)
    task = BaseOperator(task_id="t", dag=DAG("d", schedule=DAILY))
    ti = RuntimeTaskInstance.model_construct(id=uuid.uuid4(), task=task, task_id="t", dag_id="d", run_id="r")
    ti._ti_context_from_server = TIRunContext.model_construct(dag_run=run)
    theirs: Any = ti.get_template_context()
    ours = compat.interval_context(FIRST, FIRST + DAY)
    assert {key: theirs[key] for key in ours} == ours
    assert {key: type(theirs[key]) for key in ours} == {key: type(ours[key]) for key in ours}
    assert ours.keys() == compat.INTERVAL_KEYS


class Supervisor:
    """Has one run on a date, or none."""

    def __init__(self, run_id: str | None = None, date: datetime = FIRST, state: str = "failed") -> None:
        self.run = run_id and DagRun.model_construct(run_id=run_id, logical_date=date, state=state)
        self.asked: list[Any] = []

    def send(self, message: Any) -> Any:
        if isinstance(message, comms.GetPreviousDagRun):
            assert FIRST < message.logical_date < FIRST + timedelta(seconds=1)
            return comms.PreviousDagRunResult.model_construct(dag_run=self.run)
        self.asked.append((message.run_id, message.logical_date, message.run_after, message.reset_dag_run))
        return comms.OKResponse(ok=True)


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        ({}, [("r", FIRST, FIRST + DAY, False)]),
        ({"run_id": "earlier", "date": FIRST - DAY}, [("r", FIRST, FIRST + DAY, False)]),
        ({"run_id": "r"}, [("r", FIRST, FIRST + DAY, False)]),
        ({"run_id": "other"}, [("other", FIRST, FIRST + DAY, True)]),
        ({"run_id": "other", "state": "queued"}, []),
    ],
    ids=["none", "of another date", "itself", "another one that has ended", "another one that goes on"],
)
def test_no_second_run_is_started_for_an_interval_that_already_has_a_run_of_any_name(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], asked: list[Any]
) -> None:
    supervisor = Supervisor(**found)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    assert compat.start_run("d", "r", interval=(FIRST, FIRST + DAY)) is bool(asked)
    assert supervisor.asked == asked
