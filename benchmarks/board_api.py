"""What the board's API costs, with many topologies and transactions.

Usage: script/bench board_api [topologies] [viewers]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_tx.protocol.begin import TopologyRequest
from airflow_tx.store.client import ClientConfig, connect, disconnect
from airflow_tx.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine
from benchmarks.requests import received
from tests.integration.board.server import ROOT, Board
from tests.integration.commands import DAG
from tests.integration.pipeline import Pipeline

LARGE = 1000
"""Transactions of the first topology."""
EACH = 20
"""Transactions of each other one, two of them open."""
REFRESHES = 10


def main(topologies: int, viewers: int) -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(fsync=False) as zookeeper:
        print(f"{topologies} topologies: one of {LARGE} transactions, the others of {EACH}")
        with _store(zookeeper) as store:
            _fill(store, topologies)
        board = Board(Path(folder), zookeeper, {"the_dag.py": DAG})
        try:
            board.start()
            _measure(board, zookeeper, viewers)
        finally:
            board.stop()


@contextmanager
def _store(zookeeper: LocalZooKeeper) -> Iterator[ZooKeeperStore]:
    client = connect(ClientConfig(zookeeper.hosts))
    try:
        yield ZooKeeperStore(client)
    finally:
        disconnect(client)


def _fill(store: ZooKeeperStore, topologies: int) -> None:
    for number in range(topologies):
        pipeline = Pipeline(store, ROOT, topology=f"t{number:02}")
        pipeline.request = TopologyRequest("the_dag", "opaque", 8)
        many = LARGE if number == 0 else EACH
        for txid in range(1, many - 1):
            begun = pipeline.begin(f"r{txid}")
            pipeline.mark(pipeline.acquire(begun, pipeline.process(begun)))
        for txid in (many - 1, many):
            pipeline.begin(f"r{txid}")


def _measure(board: Board, zookeeper: LocalZooKeeper, viewers: int) -> None:
    timeline = "topologies/t00/transactions"
    questions: list[tuple[str, str, dict[str, Any]]] = [
        ("overview", "topologies", {}),
        (f"timeline of {LARGE}", timeline, {"limit": LARGE}),
    ]
    for what, path, params in questions:
        before, began = received(zookeeper.port), time.perf_counter()
        board.get(path, **params)
        first, asked = time.perf_counter() - began, received(zookeeper.port) - before
        print(f"{what}, first: {first * 1000:.0f} ms, {asked} requests to ZooKeeper")
        times, before, busy = [], received(zookeeper.port), board.processor_seconds
        for _ in range(REFRESHES):
            time.sleep(1.1)  # longer than a snapshot is shown
            began = time.perf_counter()
            board.get(path, **params)
            times.append(time.perf_counter() - began)
        asked, busy = received(zookeeper.port) - before, board.processor_seconds - busy
        times.sort()
        print(
            f"{what}, refreshed: median {times[REFRESHES // 2] * 1000:.0f} ms, longest {times[-1] * 1000:.0f} ms, "
            f"{busy / REFRESHES * 1000:.0f} ms of a processor, {asked / REFRESHES:.1f} requests to ZooKeeper"
        )
    with _store(zookeeper) as store, ThreadPoolExecutor(viewers) as pool:
        pipeline = Pipeline(store, ROOT, topology="t00")
        pipeline.request = TopologyRequest("the_dag", "opaque", 8)
        for count in (1, viewers):
            time.sleep(1.1)
            begun = pipeline.begin(f"s{count}")  # something has changed
            before, own, began = received(zookeeper.port), store.requests, time.perf_counter()
            busy = board.processor_seconds
            list(pool.map(lambda _: board.get(timeline, limit=100), range(count)))
            seconds, asked = time.perf_counter() - began, received(zookeeper.port) - before - (store.requests - own)
            busy = board.processor_seconds - busy
            what = f"{count} viewers after transaction {begun.txid} began"
            print(
                f"{what}: {seconds * 1000:.0f} ms, {busy * 1000:.0f} ms of a processor, {asked} requests to ZooKeeper"
            )


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    main(*(numbers + [50, 20][len(numbers) :]))
