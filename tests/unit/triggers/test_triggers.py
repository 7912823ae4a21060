"""Triggers: plain arguments, one event, never too soon, and never in the way of others on the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from importlib import import_module
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_tx.base.errors import StoreUnavailable
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.triggers.base import WaitTrigger
from airflow_tx.triggers.order import ReadyTrigger
from airflow_tx.triggers.turn import TurnTrigger
from tests.stage import Stage
from tests.unit.bench import CountingStore, MemorySpec
from tests.unit.conftest import Sleeps


class SlowStore(CountingStore):
    """Fails as often as a test says, and answers when it lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.waiting = 0
        self.answers = threading.Event()
        self.answers.set()

    def get(self, path: str) -> Any:
        self.waiting += 1
        assert self.answers.wait(60)
        self.waiting -= 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable(hosts="h", connection="c", reason="none")
        return super().get(path)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    made = SlowStore()
    for name in ("shared_store", "shared_watched_store"):
        monkeypatch.setattr(f"airflow_tx.hooks.zookeeper.{name}", lambda conn_id: made)
    return made


def begin(store: CountingStore, *run_ids: str) -> MemorySpec:
    stage = Stage(store)
    stage.begun(*run_ids)
    return stage.spec


def op(store: CountingStore, txid: int) -> str:
    node = store.get(Paths("/airflow_tx", "numbers").transaction(txid))
    assert node is not None
    text: str = json.loads(node.data)["op"]
    return text


def ready(**options: Any) -> ReadyTrigger:
    fields = {"zookeeper_conn_id": "c", "root": "/airflow_tx", "topology": "numbers", "max_pending": 1, "hold": 0.0}
    return ReadyTrigger(**{**fields, "poll": 0.01, **options})


def turn(txid: int, op: str | None, **options: Any) -> TurnTrigger:
    fields = {"zookeeper_conn_id": "c", "root": "/airflow_tx", "topology": "numbers", "mapped": ["m"], "hold": 0.0}
    return TurnTrigger(txid=txid, op=op, **{**fields, "poll": 0.01, **options})


async def events(trigger: BaseTrigger) -> list[Any]:
    return [event.payload async for event in trigger.run()]


def fire(trigger: BaseTrigger) -> list[Any]:
    return asyncio.run(asyncio.wait_for(events(trigger), 120))


async def waits(trigger: WaitTrigger, then: Any) -> tuple[bool, list[Any]]:
    """Whether it waited until `then` was called, after some looks, and what it yielded afterwards."""
    looks, event = list[Any](), trigger.event

    def looked(store: Any) -> Any:
        looks.append(event(store))
        return looks[-1]

    trigger.event = looked  # type: ignore[method-assign]
    running = asyncio.create_task(events(trigger))
    while len(looks) < 3 and not running.done():
        await asyncio.sleep(0.01)
    waited = not any(looks)
    then()
    return waited, await asyncio.wait_for(running, 120)


@pytest.mark.parametrize("trigger", [ready(), turn(3, "abc")], ids=["ready", "turn"])
def test_a_trigger_can_be_created_again_from_its_serialized_arguments(trigger: BaseTrigger) -> None:
    classpath, arguments = trigger.serialize()
    module, _, name = classpath.rpartition(".")
    rebuilt = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert rebuilt.serialize() == (classpath, arguments)


def test_begin_is_woken_once_when_the_window_has_a_free_place(store: SlowStore) -> None:
    begin(store, "r1")
    assert fire(ready(max_pending=2)) == [{"current": 1}]


def test_begin_is_woken_with_a_full_window_if_its_own_run_has_a_transaction(store: SlowStore) -> None:
    """An older `begin` of the run took it; who waits for others to make room would wait for himself."""
    begin(store, "r1")
    assert fire(ready(key="r1")) == [{"current": 1}]
    assert asyncio.run(waits(other := ready(key="r2"), lambda: setattr(other, "max_pending", 2)))[0]


def test_begin_is_not_woken_while_the_window_is_full(store: SlowStore) -> None:
    begin(store, "r1")
    trigger = ready()

    def widen() -> None:
        trigger.max_pending = 2

    assert asyncio.run(waits(trigger, widen)) == (True, [{"current": 1}])


def test_a_committer_is_woken_shortly_before_its_turn(store: SlowStore) -> None:
    begin(store, "r1")
    assert fire(turn(1, None)) == [{"reason": "its turn is near", "current": 1}]


def test_a_committer_is_not_woken_while_an_earlier_transaction_is_processed(store: SlowStore) -> None:
    from tests.unit.commit.run import Run

    spec = begin(store, "r1", "r2")

    def finish() -> None:
        run = Run(spec, "r1", [], None)
        run.begin()
        run.work()

    waited, found = asyncio.run(waits(turn(2, op(store, 2)), finish))
    assert waited
    assert found == [{"reason": "its turn is near", "current": 1}]


def test_a_committer_is_woken_when_its_own_record_has_changed(store: SlowStore) -> None:
    begin(store, "r1", "r2", "r3", "r4")
    trigger = turn(4, op(store, 4))
    waited, found = asyncio.run(waits(trigger, lambda: begin(store, "r4")))
    assert waited
    assert found == [{"reason": "its record changed"}]


def test_a_committer_is_woken_when_its_own_record_was_deleted(store: SlowStore) -> None:
    begin(store, "r1")
    assert fire(turn(4, "of a record that is gone")) == [{"reason": "its record changed"}]


@pytest.mark.parametrize(("ago", "held"), [(0, 300), (100, 200), (400, 0), (-1000, 300)])
def test_no_trigger_fires_before_its_hold_time_is_over_and_that_time_starts_at_the_deferral(
    store: SlowStore, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch, ago: int, held: int
) -> None:
    begin(store, "r1")
    trigger = ready(max_pending=2, hold=300.0)
    now = trigger.since + ago
    monkeypatch.setattr(time, "time", lambda: now)
    fire(trigger)
    assert sleeps.seconds == [held]


def test_an_unreachable_ledger_does_not_fail_a_trigger(store: SlowStore) -> None:
    begin(store, "r1")
    store.failures = 3
    assert fire(ready(max_pending=2)) == [{"current": 1}]


@pytest.mark.parametrize("trigger", [ready(), turn(4, "abc")], ids=["ready", "turn"])
def test_a_damaged_or_deleted_ledger_wakes_the_task_and_the_task_reports_the_error(
    store: SlowStore, trigger: BaseTrigger
) -> None:
    path = Paths("/airflow_tx", "numbers").current
    assert fire(trigger)[0]["reason"].startswith(f"Record {path} cannot be read: it is missing.")
    begin(store, "r1")
    store.multi([], [Put(path, b"damaged")])
    assert fire(trigger)[0]["reason"].startswith(f"Record {path} cannot be read: it is not a record")


def test_a_trigger_does_not_block_the_event_loop(store: SlowStore) -> None:
    begin(store, "r1")
    store.answers.clear()

    async def beside() -> Any:
        running = asyncio.create_task(events(ready(max_pending=2)))
        while store.waiting == 0:
            await asyncio.sleep(0.001)
        # Nobody but this loop lets it answer.
        store.answers.set()
        return await running

    assert asyncio.run(beside()) == [{"current": 1}]
