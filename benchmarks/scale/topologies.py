"""Many topologies on one ensemble: a transaction of one of them, their coordinators, and whoever looks at all."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from airflow_tx.coordinator.monitor import Monitor
from airflow_tx.coordinator.plan import SnapshotReader
from airflow_tx.ledger.api import Paths, topologies
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.sources.lag import LagWatch
from airflow_tx.sources.memory import MemorySource
from airflow_tx.transaction.alarms import AlarmLimits, AlarmTopology
from benchmarks.scale.filled import FlatStore, Repeatable, copied, fill
from benchmarks.scale.server import (
    COLUMNS,
    MB,
    MeteredStore,
    MeteredWatchedStore,
    ScaleZooKeeper,
    cost,
    metered,
    number,
    row,
    table,
)

SIZES = (20, 200, 1_000)
ROOT = "/many"
EACH = 5
"""Committed transactions of each topology; one more is open."""
LOOKS = 10


def main(*sizes: str) -> None:
    """Measure and print, for so many topologies."""
    table("topologies", "what", COLUMNS)
    servers = [_measured(int(each)) for each in sizes or SIZES]
    table("topologies", "records", "heap, MB", "sessions", "watches", "threads that ask for lags")
    for cells in servers:
        row(*cells)


def _measured(count: int) -> list[str]:
    with ScaleZooKeeper() as server, metered(server.hosts) as store:
        names = [f"topology{each:04}" for each in range(count)]
        for name in names:
            _copied(store, name)
        watched = MeteredWatchedStore.beside(store)
        looks = [_Look(watched, name) for name in names]
        plain = [_Look(store, name) for name in names]
        pipeline = Repeatable(store, ROOT, names[-1])
        runs = (f"later__{each}" for each in itertools.count())
        pipeline.run("open")

        def show(what: str, action: Any, times: int = 1, by: Any = store) -> None:
            row(number(count), what, cost(by, server, action, times))

        show("a transaction of one of them", lambda: pipeline.run(next(runs)), 10)
        show("all coordinators look for the first time", lambda: _look(looks), by=watched)
        show("… again, nothing has happened", lambda: _look(looks), LOOKS, by=watched)
        show("… a transaction later of one of them", lambda: _look(looks, pipeline.run(next(runs))), by=watched)
        show("… without remembering what was read", lambda: _look(plain), LOOKS)
        show("`airflow tx list`", lambda: _listed(store))
        threads = _asked_for_lags(names)
        found = server.monitored()
        sessions, watches = found["zk_num_alive_connections"], found["zk_watch_count"]
        heap = f"{server.heap_used / MB:.0f}"
        return [number(count), number(int(found["zk_znode_count"])), heap, sessions, watches, number(threads)]


def _copied(store: MeteredStore, name: str) -> None:
    flat = FlatStore()
    pipeline = Repeatable(flat, "", name, kept=True)
    fill(pipeline, 1, EACH)
    pipeline.begin("open")
    copied(store, ROOT, flat.nodes)


class _Look:
    """What the trigger of a coordinator reads again and again, in the triggerer."""

    def __init__(self, store: ZooKeeperStore, name: str) -> None:
        paths = Paths(ROOT, name)
        self._store = store
        self._reader = SnapshotReader(store, paths)
        self._monitor = Monitor(AlarmTopology(name, "the_dag", AlarmLimits()), paths, None)

    def step(self) -> None:
        while (look := self._reader.look()) is None:
            time.sleep(0.01)  # a record became final, and the word of it is on its way
        assert self._monitor.observe(self._store, look) == []
        if look.room(TopologyRequest("the_dag", "opaque", 8).max_pending):
            self._reader.next_position(look)


def _look(coordinators: list[_Look], _: int = 0) -> None:
    for each in coordinators:
        each.step()


def _listed(store: MeteredStore) -> None:
    for name in topologies(store, ROOT):
        topology_view(store, Paths(ROOT, name), recent=0)


def _asked_for_lags(names: list[str]) -> int:
    """How many threads all of the coordinators' questions for lags take at once, at most; each is asked every 30 s."""
    watches = [LagWatch(name, lambda: MemorySource({})) for name in names]
    most = 0
    for watch in watches:
        watch.latest(lambda: None)
        most = max(most, threading.active_count())
    return most
