"""The coordinator's trigger: plain arguments, one event, a source that is asked elsewhere, and little to do."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.base.errors import SourceError, StoreUnavailable
from airflow_tx.coordinator import trigger as coordinator
from airflow_tx.coordinator.plan import CoordinatorMemory, Finding, SnapshotReader
from airflow_tx.coordinator.trigger import CoordinatorTrigger
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.batch import WHOLE
from airflow_tx.ledger.records import Loss
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.sources.api import Batch
from tests.stage import Stage
from tests.unit.bench import CountingStore, MemorySpec, Numbers
from tests.unit.conftest import Sleeps

RULES = {"max_pending": 2, "max_replays": 3, "backoff": 0.1, "message_timeout": 1000.0, "silence": 10.0}
NUMBERS = ["tests.unit.bench.Numbers", {}]
HERE = "tests.unit.coordinator.test_trigger."


class Retained(Numbers):
    """Has lost its rows before `first`, and leaves none of them out by itself."""

    first = 0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{HERE}Retained", {}

    def initialize_transaction(self, txid: int, position: Any) -> Batch:
        if lost := self.losses(position):
            raise SourceError(
                source="Retained", problem=f"{lost[0].description} are lost", remedy="airflow tx accept-loss"
            )
        return super().initialize_transaction(txid, position)

    def losses(self, position: Any) -> list[Loss]:
        lost = position is not None and position < self.first
        return [Loss(WHOLE, position, self.first, f"rows {position} to {self.first - 1}")] if lost else []


class Hanging(Numbers):
    """Answers when the test lets it."""

    released = threading.Event()
    asked = 0

    def initialize_transaction(self, txid: int, position: Any) -> Batch:
        type(self).asked += 1
        assert self.released.wait(60)
        return super().initialize_transaction(txid, position)


class Source(Numbers):
    """What it says is set by the test."""

    rows = False
    asked = 0

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def initialize_transaction(self, txid: int, position: Any) -> Batch:
        type(self).asked += 1
        if self.fails:
            raise OSError("no route to the source")
        return super().initialize_transaction(txid, position) if self.rows else None  # type: ignore[return-value]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    made = CountingStore()
    for name in ("shared_store", "shared_watched_store"):
        monkeypatch.setattr(f"airflow_tx.hooks.zookeeper.{name}", lambda conn_id: made)
    monkeypatch.setattr(Source, "rows", False)
    monkeypatch.setattr(Source, "asked", 0)
    return made


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A source that does not answer; its threads end with the test."""
    monkeypatch.setattr(Hanging, "released", threading.Event())
    monkeypatch.setattr(Hanging, "asked", 0)
    yield [f"{HERE}Hanging", {}]
    Hanging.released.set()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    states: dict[str, str] = {}

    async def run_states(dag_id: str, run_ids: Any) -> dict[str, str | None]:
        return {run_id: states.get(run_id) for run_id in run_ids}

    monkeypatch.setattr(compat, "run_states", run_states)
    monkeypatch.setattr(coordinator, "STATES_EVERY", 0.02)
    return states


@pytest.fixture
def clock(sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    """The clock of the triggers, which only their sleeps move."""
    monkeypatch.setattr(coordinator, "time", SimpleNamespace(monotonic=sleeps.monotonic, thread_time=lambda: 0.0))
    return sleeps


def begin(store: CountingStore, *run_ids: str) -> None:
    Stage(store).begun(*run_ids)


def finish(store: CountingStore, run_id: str) -> None:
    from tests.unit.commit.run import Run

    run = Run(Stage(store).spec, run_id, [], logging.getLogger())
    run.begin()
    run.work()
    run.commit_now()


def made(**options: Any) -> CoordinatorTrigger:
    fields: dict[str, Any] = {
        "zookeeper_conn_id": "c",
        "root": "/airflow_tx",
        "topology": "numbers",
        "dag_id": "numbers",
        "source": None,
        "rules": RULES,
        "memory": CoordinatorMemory().to_json(),
        "hold": 0.0,
        "poll": 0.01,
        "refresh": 60.0,
    }
    return CoordinatorTrigger(**{**fields, **options})


async def events(trigger: CoordinatorTrigger) -> list[Any]:
    return [event.payload async for event in trigger.run()]


def fire(trigger: CoordinatorTrigger) -> dict[str, Any]:
    (event,) = asyncio.run(asyncio.wait_for(events(trigger), 120))
    json.dumps(event)
    found: dict[str, Any] = event
    return found


async def _waits(trigger: CoordinatorTrigger, then: Any) -> tuple[list[list[str]], list[Any]]:
    looks, step = list[list[str]](), coordinator._Watch.step

    async def looked(watch: Any) -> list[str]:
        looks.append(await step(watch))
        return looks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator._Watch, "step", looked)
        running = asyncio.create_task(events(trigger))
        while len(looks) < 3 and not running.done():
            await asyncio.sleep(0.01)
        before = [*looks]
        then()
        return before, await asyncio.wait_for(running, 120)


def waits(trigger: CoordinatorTrigger, then: Any) -> list[str]:
    """What is due after `then`, and not before, however often it looks."""
    before, found = asyncio.run(_waits(trigger, then))
    assert before == [[]] * 3
    due: list[str] = found[0]["due"]
    return due


def test_the_trigger_can_be_created_again_from_its_serialized_arguments() -> None:
    trigger = made(source=NUMBERS, memory=CoordinatorMemory(source_wait=3.0).to_json(), shows=False)
    classpath, arguments = trigger.serialize()
    module, _, name = classpath.rpartition(".")
    rebuilt = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert rebuilt.serialize() == (classpath, arguments)


def test_the_trigger_fires_if_the_source_has_rows_although_no_ledger_exists(
    store: CountingStore, runs: dict[str, str]
) -> None:
    source = [f"{HERE}Source", {}]
    runs["r1"] = "running"

    def feed() -> None:
        Source.rows = True

    assert waits(made(source=source), feed) == ["Allocate"]
    begin(store, "r1")
    assert fire(made(source=NUMBERS, rules={**RULES, "max_pending": 8}))["due"] == ["Allocate"]


@pytest.mark.parametrize("opened", [True, False], ids=["after an open one", "after a final one"])
def test_the_trigger_searches_for_rows_after_the_rows_that_were_accepted_as_lost(
    store: CountingStore, runs: dict[str, str], monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    monkeypatch.setattr(Retained, "first", 0)
    begin(store, "r1")
    runs["r1"] = "running"
    if not opened:
        finish(store, "r1")
    monkeypatch.setattr(Retained, "first", 25)

    def accept() -> None:
        spec = MemorySpec("numbers", "numbers", Retained(), max_pending=8, memory=store)
        with spec.store() as ledger:
            spec.ledger(ledger).accept_loss(Retained().losses(10), Audit("ann", "the retention was too short"))

    assert waits(made(source=[f"{HERE}Retained", {}]), accept) == ["Allocate"]


def test_the_trigger_does_not_query_the_source_while_the_window_is_full(
    store: CountingStore, runs: dict[str, str]
) -> None:
    begin(store, "r1", "r2")
    runs.update(r1="running", r2="running")
    Source.rows = True
    event = fire(made(source=[f"{HERE}Source", {}], refresh=0.2))
    assert (event["due"], event["refresh"], Source.asked) == ([], True, 0)


def test_the_trigger_fires_after_the_wait_before_a_replay_has_elapsed(
    store: CountingStore, runs: dict[str, str]
) -> None:
    begin(store, "r1")
    runs["r1"] = "running"
    trigger = made(rules={**RULES, "backoff": 0.2})
    assert waits(trigger, lambda: runs.update(r1="failed")) == ["Replay"]


def test_the_event_of_the_trigger_contains_the_memory_of_the_coordinator(
    store: CountingStore, runs: dict[str, str], clock: Sleeps
) -> None:
    begin(store, "r1")
    runs["r1"] = "failed"
    memory = CoordinatorMemory.from_json(fire(made(refresh=0.2, rules={**RULES, "backoff": 50.0}))["memory"])
    assert memory.health[1].finding is Finding.ENDED
    assert memory.health[1].lasts > 0
    again = made(memory=memory.to_json(), refresh=0.2, rules={**RULES, "backoff": 50.0})
    assert CoordinatorMemory.from_json(fire(again)["memory"]).health[1].lasts > memory.health[1].lasts


def test_the_trigger_does_not_fire_before_its_hold_time_is_over(
    store: CountingStore, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = made(source=NUMBERS, hold=300.0)
    now = trigger.since + 100
    monkeypatch.setattr(time, "time", lambda: now)
    fire(trigger)
    assert sleeps.seconds[0] == 200


class AtOnce(Executor):
    """Answers before it is waited for."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        answered = Future[Any]()
        answered.set_result(fn(*args, **kwargs))
        return answered


def test_a_failing_source_is_logged_once_and_queried_with_growing_waits(
    store: CountingStore, capsys: pytest.CaptureFixture[str], clock: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_thread", lambda *names: AtOnce())
    event = fire(made(source=[f"{HERE}Source", {"fails": True}], refresh=2.0))
    assert event["due"] == []
    # The wait doubles from 10 ms on.
    assert 2 <= Source.asked <= 9
    assert CoordinatorMemory.from_json(event["memory"]).source_failures == Source.asked
    assert capsys.readouterr().out.count("no route to the source") == 1


def test_a_source_that_cannot_be_created_in_the_triggerer_is_queried_by_the_task(
    store: CountingStore, capsys: pytest.CaptureFixture[str]
) -> None:
    event = fire(made(source=["a_dag_file.Source", {}]))
    assert event["due"] == ["Allocate"]
    assert CoordinatorMemory.from_json(event["memory"]).source_wait > 10
    assert "a_dag_file" in capsys.readouterr().out


def test_an_unreachable_or_unreadable_ledger_does_not_wake_a_coordinator(
    store: CountingStore, runs: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(store, "r1")
    runs["r1"] = "running"
    path = Paths("/airflow_tx", "numbers").current
    node = store.get(path)
    assert node is not None
    store.multi([], [Put(path, b"damaged")])
    trigger = made(source=NUMBERS)
    assert waits(trigger, lambda: store.multi([], [Put(path, node.data)])) == ["Allocate"]
    assert capsys.readouterr().out.count("cannot be read") == 1

    failures = iter([StoreUnavailable(hosts="h", connection="c", reason="none")] * 5)
    for name in ("shared_store", "shared_watched_store"):
        monkeypatch.setattr(f"airflow_tx.hooks.zookeeper.{name}", lambda conn_id: _raise_or(failures, store))
    assert fire(made(source=NUMBERS))["due"] == ["Allocate"]


def _raise_or(failures: Any, store: CountingStore) -> CountingStore:
    for failure in failures:
        raise failure
    return store


def test_a_slow_source_does_not_block_the_event_loop(store: CountingStore, hanging: list[Any]) -> None:
    async def beside() -> list[Any]:
        running = asyncio.create_task(events(made(topology="slow", source=hanging)))
        while not Hanging.asked:
            await asyncio.sleep(0.001)
        # Nobody but this loop lets it answer.
        Hanging.released.set()
        return await running

    (event,) = asyncio.run(beside())
    assert event["due"] == ["Allocate"]


def test_a_source_that_hangs_does_not_delay_another_topology(store: CountingStore, hanging: list[Any]) -> None:
    async def beside() -> Any:
        held_up = [asyncio.create_task(events(made(topology=f"hung-{number}", source=hanging))) for number in range(5)]
        while Hanging.asked < len(held_up):
            await asyncio.sleep(0.01)
        answered = await events(made(source=NUMBERS))
        assert not any(each.done() for each in held_up)
        Hanging.released.set()
        assert [(await each)[0]["due"] for each in held_up] == [["Allocate"]] * len(held_up)
        return answered

    assert asyncio.run(asyncio.wait_for(beside(), 120))[0]["due"] == ["Allocate"]


def test_a_source_that_hangs_does_not_delay_a_replay(
    store: CountingStore, runs: dict[str, str], hanging: list[Any]
) -> None:
    begin(store, "r1")
    runs["r1"] = "running"
    trigger = made(source=hanging, topology="numbers", rules={**RULES, "max_pending": 8})
    assert waits(trigger, lambda: runs.update(r1="failed")) == ["Replay"]


def test_a_source_that_hangs_is_queried_once_although_its_coordinator_restarts(
    store: CountingStore, hanging: list[Any], clock: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No time passes before it is asked.
    monkeypatch.setattr(f"{coordinator.__name__}.time.monotonic", lambda: clock.monotonic() if Hanging.asked else 0.0)
    for _ in range(3):
        assert fire(made(topology="restarted", source=hanging, refresh=0.2))["refresh"]
    assert Hanging.asked == 1
    Hanging.released.set()
    assert fire(made(topology="restarted", source=hanging))["due"] == ["Allocate"]


def test_a_reading_of_a_topology_sends_six_requests(store: CountingStore) -> None:
    begin(store, "r1", "r2")
    looker = SnapshotReader(store, Paths("/airflow_tx", "numbers"))
    store.requests = 0
    looker.look()
    # Two counters, the topology, two records and the wishes; where the first one starts is known.
    assert store.requests == 6


def test_each_logger_that_the_coordinator_silences_belongs_to_the_module_of_a_source() -> None:
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    quiet = [each for each in known if coordinator._is_heard in each.filters]
    assert quiet
    assert [each for each in quiet if import_module(each.name).log is not each] == []
