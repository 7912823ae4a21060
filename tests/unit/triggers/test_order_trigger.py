"""A run that is ahead of the order is woken when it has come to its interval, names a gap, and makes room for it."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timezone
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_tx.base import compat
from airflow_tx.base.compat import tasks
from airflow_tx.base.errors import AheadOfOrder
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps.run_slots import bid
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.transaction.commit.run_slots import Yielded, yield_slot
from airflow_tx.transaction.processing.begin import ask, comes_soon
from airflow_tx.triggers.order import OrderTrigger, OrderWatch
from tests.unit.bench import CountingStore, FakeTi, Looking, MemorySpec
from tests.unit.days import DAY, FIRST, day

PATHS = Paths("/airflow_tx", "days")
GRACE = 30.0


def spec_on(store: CountingStore) -> MemorySpec:
    source = DataIntervalSource("package.reader", in_order=True)
    return MemorySpec("days", "days", source, max_pending=8, memory=store)


def ledger_on(store: CountingStore) -> Ledger:
    return (spec := spec_on(store)).ledger(spec.memory)


def begin(store: CountingStore, *numbers: int) -> None:
    for number in numbers:
        ask(spec_on(store), FakeTi("begin", f"day {number}"), day(number), retry=False, dag=DAG("days", schedule=None))


class Airflow:
    """The states of runs by their date, and how many runs are running."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: dict[datetime, str] = {}
        self.running = 8

        def runs_on(dag_id: str, date: datetime, states: Collection[str]) -> int:
            return int(self.states.get(date) in states)

        async def runs_on_async(dag_id: str, date: datetime, states: Collection[str]) -> int:
            return runs_on(dag_id, date, states)

        async def running_runs(dag_id: str) -> int:
            return self.running

        async def run_states(dag_id: str, run_ids: list[str]) -> dict[str, str]:
            return dict.fromkeys(run_ids, "running")

        monkeypatch.setattr(compat, "runs_on", runs_on)
        monkeypatch.setattr(compat, "runs_on_async", runs_on_async)
        monkeypatch.setattr(compat, "running_runs_async", running_runs)
        monkeypatch.setattr(compat, "run_states", run_states)
        monkeypatch.setattr(compat, "earlier_live_run", lambda dag_id, date: None)
        monkeypatch.setattr(compat, "is_paused", lambda dag_id: False)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def trigger(number: int, **options: Any) -> OrderTrigger:
    fields = {"zookeeper_conn_id": "c", "root": "/airflow_tx", "topology": "days", "max_pending": 8, "hold": 0.0}
    dates = {"after": (FIRST + number * DAY).isoformat(), "missing": FIRST.isoformat()}
    return OrderTrigger(**{**fields, **dates, "key": f"day {number}", "poll": 0.01, **options})


def test_the_order_trigger_can_be_created_again_from_its_serialized_arguments() -> None:
    classpath, arguments = trigger(1).serialize()
    module, _, name = classpath.rpartition(".")
    rebuilt = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert rebuilt.serialize() == (classpath, arguments)


def test_the_order_trigger_wakes_only_the_run_of_the_next_interval(store: CountingStore, airflow: Airflow) -> None:
    begin(store, 0)
    woken = [number for number in range(1, 4) if trigger(number).event(store) is not None]
    assert woken == [1]
    begin(store, 1)
    assert trigger(2).event(store) == {"current": 1}


def test_the_order_trigger_also_waits_for_a_place_in_the_window(store: CountingStore, airflow: Airflow) -> None:
    begin(store, 0)
    assert trigger(1, max_pending=1).event(store) is None


def test_the_order_trigger_fires_again_after_some_time_if_the_order_has_not_begun(
    store: CountingStore, airflow: Airflow
) -> None:
    ledger_on(store).open(spec_on(store).request)
    assert trigger(1).event(store) is None
    assert trigger(1, patience=0.0).event(store) == {"current": 1}


class Waiting(Looking):
    """The watch of a run of day 2, whose trigger looks every second; day 0 is committed."""

    def __init__(self, store: CountingStore, log: Any, *, limit: int | None = 8) -> None:
        super().__init__(store)
        run = {"dag_id": "days", "run_id": "day 2", "txid": None, "task_try": "t", "limit": limit, "grace": GRACE}
        dates = {"after": FIRST + 2 * DAY, "missing": FIRST}
        self.watch = OrderWatch(PATHS, run, clock=lambda: self.now, log=log, **dates)


def skipped(store: CountingStore, log: Any) -> None:
    """Day 0 begins and is skipped, so that nothing is open."""
    from airflow_tx.ledger.steps import end
    from airflow_tx.ledger.steps.step import Audit
    from airflow_tx.transaction.commit.handoff import take_skip

    begin(store, 0)
    ledger = ledger_on(store)
    ledger.run(end.note_skip, 1, Audit("ann", "broken"))
    take_skip(ledger, 1, {}, log=log)


def test_a_gap_in_the_order_is_logged_once_with_its_remedy(store: CountingStore, airflow: Airflow, log: Any) -> None:
    skipped(store, log)
    log.lines.clear()
    assert Waiting(store, log).looks(3 * GRACE) is None
    (line,) = log.lines
    assert line.startswith("No run for the interval that begins at 2026-01-02T00:00:00+00:00 is queued or running")
    assert "airflow tx backfill days --from 2026-01-02T00:00:00+00:00 --to 2026-01-03T00:00:00+00:00" in line


@pytest.mark.parametrize("state", ["queued", "running"])
def test_an_interval_whose_run_is_queued_or_running_is_not_a_gap(
    store: CountingStore, airflow: Airflow, log: Any, state: str
) -> None:
    skipped(store, log)
    log.lines.clear()
    airflow.states, airflow.running = {FIRST + DAY: state}, 7
    assert Waiting(store, log).looks(3 * GRACE) is None
    assert log.lines == []


def test_a_waiting_run_yields_to_the_queued_run_of_the_next_interval(
    store: CountingStore, airflow: Airflow, log: Any
) -> None:
    skipped(store, log)
    airflow.states = {FIRST + DAY: "queued"}
    waiting = Waiting(store, log)
    assert waiting.looks(GRACE) is None
    event = waiting.looks(GRACE)
    assert event == {"yield": 2, "missing": (FIRST + DAY).isoformat()}
    ti = FakeTi("begin", "day 2")
    context = {"ti": ti, "task": SimpleNamespace()}
    ledger = ledger_on(store)
    ledger.run(bid, Waiter("day 2", None, str(ti.id), 2))
    with pytest.raises(Yielded, match=r"run of 2026-01-02T00:00:00\+00:00 waits for a run slot"):
        yield_slot(spec_on(store), context, blocking=2, txid=None, missing=FIRST + DAY, log=log)
    assert ledger.topology().yielded["day 2"].blocking == 2


def test_a_waiting_run_does_not_yield_to_a_run_that_has_begun_or_does_not_exist(
    store: CountingStore, airflow: Airflow, log: Any
) -> None:
    skipped(store, log)
    for airflow.states in ({}, {FIRST + DAY: "running"}):
        context = {"ti": FakeTi("begin", "day 2")}
        yield_slot(spec_on(store), context, blocking=2, txid=None, missing=FIRST + DAY, log=log)
    assert ledger_on(store).topology().yielded == {}


def test_no_waiting_run_yields_while_the_run_of_an_open_transaction_is_running(
    store: CountingStore, airflow: Airflow, log: Any
) -> None:
    begin(store, 0)
    assert Waiting(store, log).looks(3 * GRACE) is None, "its run is running"


def test_begin_is_deferred_to_the_order_trigger_and_its_message_names_the_gap(
    store: CountingStore, airflow: Airflow, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from airflow_tx.operators.commit import BeginTransactionOperator

    begin(store, 0)
    with DAG("days", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)) as dag:
        operator = BeginTransactionOperator(task_id="begin", transaction=spec_on(store))
    monkeypatch.setattr(type(operator), "log", log)
    monkeypatch.setattr(tasks, "running_runs", lambda dag_id: 1)
    info = day(2)
    run = SimpleNamespace(
        run_id=info.run_id,
        run_type="backfill",
        start_date=None,
        data_interval_start=info.interval_start,
        data_interval_end=info.interval_end,
        logical_date=info.logical_date,
        partition_key=None,
        partition_date=None,
        conf={},
    )
    context: Any = {"ti": FakeTi("begin", info.run_id), "dag_run": run, "dag": dag}
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    made = deferred.value.trigger
    assert isinstance(made, OrderTrigger)
    assert (made.after, made.missing) == ((FIRST + 2 * DAY).isoformat(), (FIRST + DAY).isoformat())
    assert made.event(store) is None
    assert [line[:24] for line in log.lines[-2:]] == ["The interval 2026-01-03T", "No run for the interval "]


def test_begin_waits_in_its_worker_while_the_next_interval_may_begin_soon(
    store: CountingStore, airflow: Airflow
) -> None:
    begin(store, 0)
    ahead = AheadOfOrder(interval="day 2", after=FIRST + 2 * DAY, missing=FIRST + DAY)
    slept: list[float] = []

    def wait(*, until: int, seconds: float = 20.0) -> bool:
        """Day 1 begins after so many looks."""
        slept.clear()

        def sleep(pause: float) -> None:
            slept.append(pause)
            if len(slept) == until:
                begin(store, 1)

        return comes_soon(spec_on(store), ahead, seconds=seconds, sleep=sleep, clock=lambda: sum(slept))

    assert not wait(until=3)
    assert slept == [], "its run is not running"
    airflow.states = {FIRST + DAY: "running"}
    assert not wait(until=3, seconds=0.0)
    assert not wait(until=1000)
    assert 4.5 < sum(slept) < 5.5
    assert wait(until=3)
    assert len(slept) == 3
