"""Commits as asset events: in order, each at least once, whatever dies between an event and its note."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset

from airflow_tx import committed_asset
from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger.api import Paths, Put
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Counter, TopologyRecord, WatcherRecord, decode, encode
from airflow_tx.triggers import watcher as watcher_module
from airflow_tx.triggers.watcher import (
    CommitNotStored,
    CommitsProducer,
    CommitsTrigger,
    UnconfirmedCommits,
    checked_uri,
)
from tests.stage import Stage
from tests.unit.bench import CountingStore

PATHS = Paths("/airflow_tx", "numbers")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    made = CountingStore()
    monkeypatch.setattr("airflow_tx.hooks.zookeeper.shared_store", lambda conn_id: made)
    return made


def begin(store: CountingStore) -> None:
    Stage(store).begun("r1")


def turn(store: CountingStore, txid: int) -> None:
    store.multi((), (Put(PATHS.current, encode(Counter(txid))),))


def trigger(every: int = 1, settle: float = 0.0) -> CommitsTrigger:
    place: dict[str, Any] = {"zookeeper_conn_id": "c", "root": "/airflow_tx", "topology": "numbers", "poll": 0.01}
    return CommitsTrigger(watcher="w", every=every, settle=settle, **place)


async def taken(producer: CommitsProducer, count: int) -> list[tuple[int, int]]:
    """The first events of a producer: first and last txid."""
    stream, found = producer.open_stream(), []
    async for event, _ in stream:
        found.append((event["first"], event["last"]))
        if len(found) == count:
            break
    return found


def take(producer: CommitsProducer, count: int) -> list[tuple[int, int]]:
    return asyncio.run(asyncio.wait_for(taken(producer, count), 60))


def stored(producer: CommitsProducer, *txids: int, lost: bool = False) -> None:
    """Airflow has stored the events that end with these transactions, or lost them."""
    stream = pytest.importorskip("airflow.triggers.shared_stream", reason="Airflow 3.2 does not say it")
    outcome = stream.AdvanceOutcome(acked=not lost, failed=lost, rejected=0)
    asyncio.run(producer.advance([stream.AdvanceItem(txid, outcome) for txid in txids]))


def handed_on(store: CountingStore) -> int:
    """The last transaction that the ledger has noted for the watcher."""
    node = store.get(PATHS.watcher("w"))
    assert node is not None
    return decode(WatcherRecord, PATHS.watcher("w"), node.data).txid


def started(store: CountingStore, every: int = 1) -> CommitsProducer:
    """A watcher of a ledger that has committed nothing yet, which has looked once."""
    begin(store)
    producer = CommitsProducer(trigger(every))
    assert producer._next(store) is None
    return producer


def test_a_new_watcher_starts_with_the_next_commit(store: CountingStore) -> None:
    begin(store)
    turn(store, 5)
    producer = CommitsProducer(trigger())
    assert producer._next(store) is None
    turn(store, 7)
    assert take(producer, 2) == [(5, 5), (6, 6)]


def test_a_watcher_that_existed_before_its_topology_starts_with_the_first_commit(store: CountingStore) -> None:
    producer = CommitsProducer(trigger())
    assert producer._next(store) is None
    begin(store)
    turn(store, 3)
    assert take(producer, 2) == [(1, 1), (2, 2)]


def test_a_restarted_watcher_continues_after_the_last_event_that_airflow_has_stored(store: CountingStore) -> None:
    producer = started(store)
    turn(store, 6)
    assert take(producer, 5) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    stored(producer, 1, 2)
    assert take(CommitsProducer(trigger()), 3) == [(3, 3), (4, 4), (5, 5)]  # it died, and 3 to 5 with it
    turn(store, 9)  # nobody watches
    again = CommitsProducer(trigger())
    assert take(again, 6) == [(each, each) for each in range(3, 9)]
    stored(again, *range(3, 9))
    assert CommitsProducer(trigger())._next(store) is None


def test_an_event_that_airflow_has_not_stored_is_sent_again(store: CountingStore) -> None:
    producer = started(store)
    turn(store, 3)
    take(producer, 2)
    with pytest.raises(CommitNotStored, match="up to 2 were not stored"):
        stored(producer, 2, lost=True)
    assert take(CommitsProducer(trigger()), 1) == [(1, 1)]


def test_one_event_may_cover_several_transactions(store: CountingStore) -> None:
    producer = started(store, every=3)
    turn(store, 9)
    assert take(producer, 2) == [(1, 3), (4, 6)]
    assert producer._next(store) is None  # 7 and 8 are not three
    turn(store, 10)
    assert take(producer, 1) == [(7, 9)]


def test_no_more_events_are_pending_than_airflow_can_store(store: CountingStore) -> None:
    producer = started(store)
    turn(store, 100)
    assert len(take(producer, 20)) == 20
    assert producer._next(store) is None
    stored(producer, *range(1, 11))
    assert len(take(producer, 10)) == 10


def test_the_last_event_waits_until_airflow_has_created_a_run_for_the_earlier_events(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(watcher_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    begin(store)
    producer = CommitsProducer(trigger(settle=10.0))
    assert producer._next(store) is None
    turn(store, 2)
    assert take(producer, 1) == [(1, 1)]  # nothing came before it
    turn(store, 5)
    assert take(producer, 2) == [(2, 2), (3, 3)]
    assert producer._next(store) is None
    now[0] += 9.0
    assert producer._next(store) is None
    now[0] += 1.0
    found = producer._next(store)
    assert found is not None
    assert found["last"] == 4


def test_a_watcher_starts_again_if_the_ledger_is_replaced(store: CountingStore) -> None:
    producer = started(store)
    turn(store, 4)
    take(producer, 3)
    stored(producer, 3)
    node = store.get(PATHS.record)
    assert node is not None
    record = decode(TopologyRecord, PATHS.record, node.data)
    store.multi((), (Put(PATHS.record, encode(replace(record, incarnation="new"))),))
    turn(store, 2)
    assert take(CommitsProducer(trigger()), 1) == [(1, 1)]
    watcher = store.get(PATHS.watcher("w"))
    assert watcher is not None
    assert decode(WatcherRecord, PATHS.watcher("w"), watcher.data).incarnation == "new"


def test_a_watcher_advances_after_airflow_has_stored_its_events(store: CountingStore) -> None:
    """Through Airflow's own manager of streams."""
    stream = pytest.importorskip("airflow.triggers.shared_stream", reason="Airflow 3.2 does not say it")
    begin(store)
    own = trigger()
    assert CommitsProducer(own)._next(store) is None
    turn(store, 4)

    async def watched() -> list[Any]:
        manager = stream.SharedStreamManager(log=__import__("structlog").get_logger())
        key = own.shared_stream_key()
        events, seqs = [], []
        async for event in own.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=own, key=key)):
            events.append(event.payload)
            seqs.append(manager.bind_pending_event(trigger_id=1, key=key))
            if len(events) == 2:
                manager.confirm_persisted([seq for seq in seqs if seq is not None][:1])
            if len(events) == 3:
                break
        while handed_on(store) < 1:
            await asyncio.sleep(0.01)
        await manager.stop_all()
        return events

    events = asyncio.run(asyncio.wait_for(watched(), 60))
    assert [each["last"] for each in events] == [1, 2, 3]
    assert take(CommitsProducer(trigger()), 1) == [(2, 2)]


def test_without_confirmation_by_airflow_an_event_counts_as_stored_after_some_time(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(store)
    turn(store, 4)
    producer = UnconfirmedCommits(trigger())
    assert take(producer, 3) == [(1, 1), (2, 2), (3, 3)]
    assert producer._next(store) is None
    assert handed_on(store) == 0
    again = UnconfirmedCommits(trigger())
    assert take(again, 3) == [(1, 1), (2, 2), (3, 3)]  # it died before
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + watcher_module.STORED_AFTER)
    assert again._next(store) is None
    assert handed_on(store) == 3
    assert UnconfirmedCommits(trigger())._next(store) is None


def test_a_triggerer_of_airflow_3_2_runs_the_watcher_itself(store: CountingStore) -> None:
    started(store)
    turn(store, 3)

    async def ran() -> list[Any]:
        found: list[Any] = []
        async for event in trigger().run():
            found.append(event.payload["last"])
            if len(found) == 2:
                break
        return found

    assert asyncio.run(asyncio.wait_for(ran(), 60)) == [1, 2]


def test_an_asset_has_a_watcher_and_a_valid_uri() -> None:
    asset = committed_asset("sales/eu", every=10)
    assert isinstance(asset, Asset)
    assert asset.uri == "airflow-tx://zookeeper_default/airflow_tx/sales%2Feu/every-10"
    (watcher,) = asset.watchers
    classpath, arguments = watcher.trigger.serialize()
    assert classpath == "airflow_tx.triggers.CommitsTrigger"
    assert CommitsTrigger(**arguments).every == 10
    assert asset.normalized_uri == asset.uri
    for every in (0, True, "2"):
        with pytest.raises(ConfigError, match="1 or more"):
            committed_asset("a", every=every)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="CONNECTION/ROOT/TOPOLOGY"):
        checked_uri(urlsplit("airflow-tx://"))
