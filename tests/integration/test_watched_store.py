"""The store that remembers what it reads: what others write is seen, and what nobody writes is read once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_tx.ledger.api import Create, Delete, Put
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import WatchedStore, ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.pipeline import Pipeline

SOON = 240.0


@pytest.fixture
def watched(zookeeper: LocalZooKeeper) -> Iterator[WatchedStore]:
    client = connect(ClientConfig(zookeeper.hosts))
    yield WatchedStore(client)
    disconnect(client)


def data_at(store: ZooKeeperStore, path: str) -> bytes | None:
    node = store.get(path)
    return None if node is None else node.data


def test_unchanged_records_are_read_once(watched: WatchedStore, store: ZooKeeperStore, zookeeper_root: str) -> None:
    pipeline = Pipeline(store, zookeeper_root)
    pipeline.run("r1")
    second = pipeline.begin("r2")
    first = topology_view(watched, pipeline.paths)
    asked, mark = watched.requests, watched.mark(pipeline.paths.base)
    assert topology_view(watched, pipeline.paths) == first
    assert (watched.requests, watched.mark(pipeline.paths.base)) == (asked, mark)

    Pipeline(store, zookeeper_root, topology="another").run("r1")
    pipeline.mark(pipeline.acquire(second, pipeline.process(second)))
    eventually(lambda: watched.mark(pipeline.paths.base) != mark, SOON, "the change is known")
    fresh = topology_view(store, pipeline.paths)
    eventually(lambda: topology_view(watched, pipeline.paths) == fresh, SOON, "the change is seen")


def test_a_read_returns_created_deleted_and_changed_records(
    watched: WatchedStore, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    store.ensure(zookeeper_root)
    path = f"{zookeeper_root}/one"
    assert (watched.get(path), watched.children(path)) == (None, None)
    for writes, data, names in (
        ([Create(path, b"1")], b"1", ("one",)),
        ([Put(path, b"2")], b"2", ("one",)),
        ([Create(f"{zookeeper_root}/two", b"")], b"2", ("one", "two")),
        ([Delete(path)], None, ("two",)),
        ([Create(path, b"3")], b"3", ("one", "two")),
    ):
        store.multi([], writes)

        def seen(data: bytes | None = data, names: tuple[str, ...] = names) -> bool:
            children = watched.children(zookeeper_root)
            return data_at(watched, path) == data and children is not None and children.names == names

        eventually(seen, SOON, f"{writes} are seen")


def test_a_cached_read_never_returns_an_older_value_than_an_earlier_read(
    watched: WatchedStore, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    store.ensure(zookeeper_root)
    path = f"{zookeeper_root}/one"
    store.multi([], [Create(path, b"0")])
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(lambda: [data_at(watched, path) for _ in range(300)]) for _ in range(4)]
        for number in range(1, 200):
            store.multi([], [Put(path, str(number).encode())])
        for read in reads:
            found = [int(each or b"-1") for each in read.result()]
            assert found == sorted(found), "time goes backwards"
    eventually(lambda: data_at(watched, path) == b"199", SOON, "the last one is seen")


def test_changes_during_a_lost_connection_are_seen(
    watched: WatchedStore, store: ZooKeeperStore, zookeeper: LocalZooKeeper, zookeeper_root: str
) -> None:
    store.ensure(zookeeper_root)
    path = f"{zookeeper_root}/one"
    store.multi([], [Create(path, b"1")])
    assert data_at(watched, path) == b"1"
    mark = watched.mark(path)
    zookeeper.expire_session(watched._client)
    store.multi([], [Put(path, b"2")])
    eventually(lambda: data_at(watched, path) == b"2", SOON, "the change is seen")
    assert watched.mark(path) != mark


def test_long_records_are_cached_up_to_a_limit_of_their_total_size(
    watched: WatchedStore, store: ZooKeeperStore, zookeeper_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_tx.ledger.store.zookeeper.MOST_BYTES", 2_000)
    store.ensure(zookeeper_root)
    paths = [f"{zookeeper_root}/{number}" for number in range(9)]
    store.multi([], [Create(path, b"x" * 900) for path in paths])
    for path in (*paths, *paths):
        assert data_at(watched, path) == b"x" * 900
        assert sum(len(each.data) for each in watched._found.values()) <= 2_000 + 900


def test_a_committed_transaction_is_read_without_setting_a_watch(
    watched: WatchedStore, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    pipeline = Pipeline(store, zookeeper_root)
    pipeline.run("r1")
    place = LedgerPlace("flights", "zookeeper_default", pipeline.paths)
    record = topology_view(store, pipeline.paths).record
    snapshot = TopologySnapshot(record, place, watched, None, (1,), unwatched=store)
    asked = watched.requests
    for _ in range(2):
        found = snapshot.final_view(1)
        assert found is not None
        assert found.document.run_id == "r1"
    assert watched.requests == asked
