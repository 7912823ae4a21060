"""A lane that takes the data intervals of a schedule: in order, each once, whichever run stands for one, too."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk import CronDataIntervalTimetable, get_current_context, task

from airflow_tx import current_batch
from airflow_tx.base import compat
from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import AheadOfOrder, FailedBatch, SourceError
from airflow_tx.coordinator import lane as lane_module
from airflow_tx.ledger.answers import AlreadyCommitted, Begun
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.steps.end import note_readmission, note_skip
from airflow_tx.ledger.steps.loss import note_origin
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.sources.api import rebuild
from airflow_tx.sources.dates import order_from
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.transaction.processing.begin import allocate, await_lane, has_batch
from tests.unit.bench import run_of
from tests.unit.coordinator.lane_days import DAY, FIRST, DayWorld, OpaqueDayWorld, name_of, read
from tests.unit.coordinator.lane_world import RULES, LaneWorld, LossyStore, killed_lanes, requests_of, rows_of

pytestmark = pytest.mark.skipif(compat.is_airflow_3_2(), reason="data intervals go by runs in Airflow 3.2")

AUDIT = Audit("ada", "why")
ATTEMPT = TransactionAttempt(1, 1)


def position(*spans: tuple[datetime, datetime]) -> Any:
    return {"intervals": [[start.isoformat(), end.isoformat()] for start, end in spans]}


def begun_by_lane(world: DayWorld, lane: Any) -> Begun:
    """The next day, as the lane begins it."""
    begun = allocate(lane.plan.spec, world.spec.ledger(world.store), lane.task_try)
    assert isinstance(begun, Begun)
    return begun


def fails(*days: int) -> Any:
    """What a task does with its batch: it fails on some days."""

    def on_batch(batch: Any) -> None:
        if batch.txid - 1 in days:
            raise FailedBatch("not this day")

    return on_batch


def test_all_days_of_the_schedule_that_have_ended_are_committed_in_order_without_a_run(make: Any) -> None:
    world = make(DayWorld, last=9)
    world.coordinate()
    world.assert_exact(10)
    assert world.runs == {}


def test_a_run_of_a_day_that_the_lane_has_committed_is_skipped(make: Any) -> None:
    world = make(DayWorld)
    world.coordinate()
    for run_id in (None, "backfill__2026-01-02", "manual__by hand"):
        assert world.ask(world.run_of_day(1, run_id)) == AlreadyCommitted(2)
    world.assert_exact(3)


def test_runs_of_days_and_the_lane_continue_where_the_other_one_stopped(make: Any) -> None:
    world = make(DayWorld, last=5)
    world.execute(world.run_of_day(0))
    ahead = world.run_of_day(5)
    with pytest.raises(AheadOfOrder):
        world.ask(ahead)

    def takes_the_next(batch: Any) -> None:
        if batch.txid == 2:
            threading.Thread(target=world.execute, args=(world.run_of_day(2),)).start()
            while world.spec.ledger(world.store).status(3) is None:
                threading.Event().wait(0.01)

    world.on_batch = takes_the_next
    world.coordinate()
    world.assert_exact(6)
    assert world.runs == {name_of(0): "success", name_of(2): "success"}
    assert world.ask(ahead) == AlreadyCommitted(6)


@pytest.mark.parametrize("kind", [DayWorld, OpaqueDayWorld])
def test_a_failed_day_becomes_a_run_with_its_dates_and_later_days_wait_for_its_commit(make: Any, kind: Any) -> None:
    world = make(kind, last=5, on_batch=fails(2))
    with world.executing():
        world.settle()
    world.assert_exact(6)
    assert world.runs == {name_of(2): "success"}
    assert world.dates == {name_of(2): (FIRST + 2 * DAY, FIRST + 3 * DAY)}
    assert [entry.attempt for entry in world.history.values()] == [1, 1, 2, 1, 1, 1]


def test_a_lane_that_begins_no_more_days_creates_the_runs_of_the_following_days(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(lane_module, "LEFT_IN_A_ROW", 1)
    world = make(DayWorld, on_batch=fails(0, 1, 2))
    with world.executing():
        world.settle()
    world.assert_exact(3)
    assert list(world.runs) == [name_of(day) for day in range(3)]
    assert {end - start for start, end in world.dates.values()} == {DAY}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize(("kind", "pending"), [(DayWorld, 4), (DayWorld, 1), (OpaqueDayWorld, 4)])
def test_each_day_is_counted_once_in_order_if_the_lane_is_killed_at_any_request(
    make: Any, kind: Any, pending: int, arrives: bool
) -> None:
    living = partial(make, kind, options={"max_pending": pending})
    for world in killed_lanes(living, arrives=arrives, linger=0.0, rules=replace(RULES, max_pending=pending)):
        world.assert_exact(3)
        assert world.runs.keys() <= {name_of(day) for day in range(3)}


@pytest.mark.parametrize("arrives", [False, True])
def test_a_lane_omits_no_day_if_any_reply_is_lost(make: Any, arrives: bool) -> None:
    living = partial(make, DayWorld)
    for kind, number in requests_of(living, LossyStore, linger=0.0):
        world = living()
        world.settle(store=LossyStore(world.store, number, kind, arrives=arrives), linger=0.0)
        world.assert_exact(3)
        assert world.runs == {}


def test_two_lanes_share_the_days_of_a_schedule(make: Any) -> None:
    world = make(DayWorld, last=11)
    world.coordinate_by_two()
    world.assert_exact(12)
    assert world.runs == {}


def test_a_run_takes_over_the_day_of_a_lane_that_no_longer_runs(make: Any) -> None:
    world = make(DayWorld, last=0)
    begun_by_lane(world, world.lane())
    assert world.execute(world.run_of_day(0)).attempt.attempt == 2
    world.assert_exact(1)


def test_a_run_waits_briefly_for_the_day_of_a_lane_that_still_runs(make: Any) -> None:
    world = make(DayWorld, last=0)
    lane = world.lane()
    key = world.spec.source.key(world.run_info(world.run_of_day(0)))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            world.spec.ledger(world.store).run(note_skip, 1, AUDIT)
            world.store.shown.clear()

    await_lane(world.spec, key, seconds=60.0, sleep=sleep)
    assert slept == []
    begun_by_lane(world, lane)
    with lane.opened():
        await_lane(world.spec, key, seconds=60.0, sleep=sleep)
    assert len(slept) == 3
    await_lane(world.spec, key, seconds=60.0, sleep=sleep)
    assert len(slept) == 3


def test_a_run_stops_waiting_for_a_lane_after_a_time_limit(make: Any) -> None:
    world = make(DayWorld, last=0)
    lane, now = world.lane(), iter(range(100))
    with lane.opened():
        begun_by_lane(world, lane)
        key = world.spec.source.key(world.run_info(world.run_of_day(0)))
        await_lane(world.spec, key, seconds=5.0, sleep=lambda seconds: None, clock=lambda: next(now))
    assert next(now) == 6


def test_a_day_is_skipped_in_the_lane_and_readmitted_by_its_run(make: Any) -> None:
    world = make(DayWorld)

    def is_not_wanted(batch: Any) -> None:
        if batch.txid == 2:
            world.spec.ledger(world.store).run(note_skip, 2, AUDIT)

    world.on_batch = is_not_wanted
    world.coordinate()
    assert [entry.status for entry in world.history.values()] == ["COMMITTED", "SKIPPED", "COMMITTED"]
    world.spec.ledger(world.store).run(note_readmission, 2, AUDIT)
    assert world.execute(world.run_of_day(1)).txid == 4
    assert world.totals == (30, sum(range(30)))
    world.coordinate()
    assert len(world.history) == 4


def test_the_lane_begins_with_the_first_day_that_a_backfill_has_set(make: Any) -> None:
    world = make(DayWorld, last=4)
    ledger = world.spec.ledger(world.store)
    ledger.open(world.spec.request)
    ledger.run(note_origin, order_from(FIRST + 3 * DAY))
    world.coordinate()
    assert world.days() == [FIRST + 3 * DAY, FIRST + 4 * DAY]


def test_a_lane_begins_no_day_while_the_order_may_start_at_an_earlier_run(make: Any) -> None:
    world = make(DayWorld, earlier=FIRST - DAY)
    world.coordinate()
    assert world.history == {}
    reason = f"begins with the run of {(FIRST - DAY).isoformat()}, which is still queued or running"
    assert any(reason in line for line in world.log.lines)
    world.earlier = None
    world.coordinate()
    world.assert_exact(3)


def test_a_lane_begins_no_day_while_its_dag_is_paused(make: Any) -> None:
    world = make(DayWorld, paused="numbers")
    world.coordinate()
    assert world.history == {}
    world.paused = ""
    world.coordinate()
    world.assert_exact(3)


def test_a_lane_begins_no_day_after_the_end_date_of_its_dag_until_the_end_date_changes(make: Any) -> None:
    world = make(DayWorld, last=1)
    world.coordinate()
    world.assert_exact(2)
    later = make(DayWorld, last=3)
    later.store, later.state = world.store, world.state
    later.__post_init__()
    later.coordinate()
    later.assert_exact(4)


def test_a_lane_does_not_repeat_hours_of_a_committed_day_after_a_change_to_an_hourly_schedule(make: Any) -> None:
    world = make(DayWorld, last=1)
    world.coordinate()
    hourly = make(DayWorld, last=2, schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"))
    source = hourly.plan().spec.source
    assert source.decide(ATTEMPT, position((FIRST, FIRST + 2 * DAY))).metadata == {
        "from": (FIRST + 2 * DAY).isoformat(),
        "to": (FIRST + 2 * DAY + timedelta(hours=1)).isoformat(),
    }
    daily = world.plan().spec.source
    with pytest.raises(SourceError, match="the order of txids stands at 2026-01-01T03:00:00") as refused:
        daily.decide(ATTEMPT, position((FIRST, FIRST + timedelta(hours=3))))
    assert "create the run of 2026-01-02T00:00:00+00:00" in str(refused.value)


def test_the_source_of_a_lane_is_passed_to_the_triggerer_with_the_schedule(make: Any) -> None:
    source = make(DayWorld, last=2).plan().spec.source
    sent = Trigger._decrypt_kwargs(Trigger.encrypt_kwargs({"source": list(source.serialize())}))
    again = rebuild(*json.loads(json.dumps(sent["source"])))
    before = position((FIRST, FIRST + 2 * DAY))
    assert again.decide(ATTEMPT, before) == source.decide(ATTEMPT, before)
    assert has_batch(again, ATTEMPT, before)
    assert not has_batch(again, ATTEMPT, position((FIRST, FIRST + 3 * DAY)))


class ClockChangeWorld(DayWorld):
    """Three days. The second one ends when the clocks go forward: Airflow infers it for no run by hand."""

    def dag_options(self) -> dict[str, Any]:
        first = datetime.fromisoformat("2025-03-28T01:00:00+00:00")
        schedule = CronDataIntervalTimetable("0 2 * * *", timezone="Europe/Berlin")
        return {"schedule": schedule, "catchup": True, "start_date": first, "end_date": first + 2 * DAY}

    def run_info(self, run_id: str) -> RunInfo:
        return super().run_info(run_id) if run_id in self.dates else run_of(run_id)

    def start_run(self, dag_id: str, run_id: str, *, interval: Any = None, **options: Any) -> bool:
        return LaneWorld.start_run(self, dag_id, run_id, **options)


def test_a_day_that_ends_at_a_clock_change_can_leave_the_lane_and_become_a_run(make: Any) -> None:
    world = make(ClockChangeWorld, last=2, on_batch=fails(1))
    with world.executing():
        world.settle()
    assert [entry.attempt for entry in world.history.values()] == [1, 2, 1]
    assert world.runs == {"scheduled__2025-03-30T01:00:00+00:00": "success"}
    assert world.totals[0] == 30


class ContextWorld(DayWorld):
    """Its task takes dates of its run as arguments, and others from the context."""

    def counted(self) -> Any:
        @task
        def count(data_interval_start: Any = None, ds: Any = None, ts: Any = None) -> list[dict[str, Any]]:
            context = get_current_context()
            end, date = context["data_interval_end"], context["logical_date"]
            self.on_batch((data_interval_start, ds, ts, end, date))
            return rows_of([row["number"] for row in read_batch()])

        return count(ts="theirs")


def read_batch() -> Any:
    from airflow_tx import current_batch

    return current_batch().read()


def test_a_function_in_the_lane_receives_the_same_dates_as_in_a_run(make: Any) -> None:
    seen: list[Any] = []
    world = make(ContextWorld, last=1, on_batch=seen.append)
    world.coordinate()
    world.assert_exact(2)
    assert seen == [
        (FIRST + day * DAY, f"2026-01-0{day + 1}", "theirs", FIRST + (day + 1) * DAY, FIRST + day * DAY)
        for day in range(2)
    ]


def test_the_transactions_of_a_coordinator_without_a_lane_are_only_replayed(make: Any) -> None:
    world = make(DayWorld)
    assert not world.spec.allocates
    assert world.plan().spec.allocates


# --- days that tasks read themselves -----------------------------------------------------------------------------


class BareDayWorld(DayWorld):
    """Days without a reader: the first task stages the numbers of its day."""

    def __post_init__(self) -> None:
        self.source = DataIntervalSource(in_order=True)
        super().__post_init__()

    def counted(self) -> Any:
        @task
        def extract(data_interval_start: Any = None, data_interval_end: Any = None) -> dict[str, Any]:
            dates = (datetime.fromisoformat(each.isoformat()) for each in (data_interval_start, data_interval_end))
            return current_batch().stage(read(*dates))

        @task
        def count(ref: Any) -> list[dict[str, Any]]:
            self.on_batch(current_batch())
            return rows_of([row["number"] for row in current_batch().read_output(ref)])

        return count(extract())


def test_a_lane_processes_days_whose_rows_a_task_stages(make: Any) -> None:
    world = make(BareDayWorld)
    world.coordinate()
    world.assert_exact(3)
    assert world.runs == {}
