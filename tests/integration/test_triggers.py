"""The triggers of several topologies, whose ledgers are in two ensembles of ZooKeeper, in one triggerer."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.coordinator.plan import CoordinatorMemory, LedgerSnapshot, Rules, SnapshotReader
from airflow_tx.coordinator.trigger import CoordinatorTrigger
from airflow_tx.hooks import zookeeper as kept_client
from airflow_tx.hooks.zookeeper import shared_store, shared_watched_store
from airflow_tx.ledger.api import Paths, SystemClock, SystemIds
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.triggers.order import ReadyTrigger
from tests.stage import begin_run
from tests.unit.bench import MemorySpec, Numbers

WAITING = 8
LOOKS = 2
"""Threads in which the ledgers of one connection are looked at."""
RULES = Rules(max_pending=1, max_replays=3, backoff=0.1, message_timeout=1000.0)


@pytest.fixture
def ensembles(zookeeper: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalZooKeeper]:
    """The connection `well` has an ensemble that answers; that of `away`, which is given, can be frozen."""
    monkeypatch.setenv("AIRFLOW__TX__SESSION_TIMEOUT", "120")  # it stays connected while it is frozen
    with LocalZooKeeper(fsync=False) as other:
        for conn_id, server in (("well", zookeeper), ("away", other)):
            monkeypatch.setenv(
                f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "zookeeper", "host": server.hosts})
            )
            shared_store(conn_id)
        yield other
        for client in kept_client._kept.values():
            client.close()
        kept_client._kept.clear()


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_states(dag_id: str, run_ids: Any) -> dict[str, str | None]:
        return dict.fromkeys(run_ids, "running")

    monkeypatch.setattr(compat, "run_states", run_states)


def begun(conn_id: str, root: str) -> None:
    """One transaction is open, and no more may be."""
    spec = MemorySpec("numbers", "numbers", Numbers(), max_pending=1, memory=shared_store(conn_id), root=root)
    begin_run(spec, "r1")


def fail(conn_id: str, root: str) -> None:
    """The open transaction has failed."""
    ledger = Ledger(shared_store(conn_id), Paths(root, "numbers"), clock=SystemClock(), ids=SystemIds())
    ledger.run(processing.fail_messages, TransactionAttempt(1, 1), "no ack in time")


async def fires(trigger: Any) -> Any:
    return [event.payload async for event in trigger.run()]


@pytest.fixture
def away(ensembles: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch) -> list[ZooKeeperStore]:
    """The stores of the connection `away`. No look there comes to an end by itself."""
    stores = [shared_store("away"), shared_watched_store("away")]
    for store in stores:
        monkeypatch.setattr(store, "_read_timeout", 1e6)
    return stores


def test_an_unreachable_ensemble_does_not_delay_topologies_of_another_ensemble(
    ensembles: LocalZooKeeper, away: list[ZooKeeperStore], zookeeper_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun("well", zookeeper_root)
    begun("away", zookeeper_root)
    place: dict[str, Any] = {"root": zookeeper_root, "topology": "numbers", "hold": 0.0, "poll": 0.01}

    def ready(conn_id: str, max_pending: int) -> ReadyTrigger:
        return ReadyTrigger(zookeeper_conn_id=conn_id, max_pending=max_pending, **place)

    coordinator = CoordinatorTrigger(
        zookeeper_conn_id="well",
        dag_id="numbers",
        source=list(Numbers().serialize()),
        rules={**vars(RULES), "max_pending": 2},
        memory=CoordinatorMemory().to_json(),
        refresh=60.0,
        **place,
    )

    def sent() -> int:
        return sum(store.requests for store in away)

    async def both() -> None:
        before = sent()
        held_up = [asyncio.create_task(fires(ready("away", 1))) for _ in range(WAITING)]
        with caplog.at_level(logging.WARNING, "airflow_tx.triggers"):
            while sent() < before + LOOKS:
                await asyncio.sleep(0.01)
            assert await fires(ready("well", 2)) == [{"current": 1}]
            assert (await fires(coordinator))[0]["due"] == ["Allocate"]
            # None of the looks that are held up has come to an end.
            assert not caplog.records
        assert not any(each.done() for each in held_up)
        assert sent() == before + LOOKS
        looking = [each.name for each in threading.enumerate() if each.name.startswith("airflow_tx-trigger-away")]
        assert len(looking) == LOOKS  # however many wait
        for each in held_up:
            each.cancel()

    with ensembles.frozen():
        asyncio.run(both())


def test_a_waiting_coordinator_sends_no_request_while_the_ledger_does_not_change(
    ensembles: LocalZooKeeper, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun("well", zookeeper_root)
    sent: list[int] = []
    look = SnapshotReader.look

    def counted(reader: SnapshotReader) -> LedgerSnapshot | None:
        found = look(reader)
        sent.append(shared_watched_store("well").requests)
        return found

    monkeypatch.setattr(SnapshotReader, "look", counted)
    trigger = CoordinatorTrigger(
        zookeeper_conn_id="well",
        dag_id="numbers",
        source=list(Numbers().serialize()),
        rules=vars(RULES),
        memory=CoordinatorMemory().to_json(),
        refresh=600.0,
        root=zookeeper_root,
        topology="numbers",
        hold=0.0,
        poll=0.01,
    )

    async def waits() -> Any:
        waiting = asyncio.create_task(fires(trigger))
        while len(sent) < 12:
            await asyncio.sleep(0.01)
        asked = sent[-1]
        fail("well", zookeeper_root)
        while sent[-1] == asked and not waiting.done():
            await asyncio.sleep(0.01)
        waiting.cancel()

    asyncio.run(waits())
    # The first look reads the ledger, and after it the alarms are read; the others find nothing new.
    assert sent[1:10] == [sent[1]] * 9
    assert sent[-1] > sent[1]  # it has seen that something happened
