"""What the board's API costs, with many topologies and transactions, and how long its viewers wait.

Usage: script/bench board_api [topologies] [viewers]
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, percentile
from benchmarks.requests import received
from benchmarks.scale.filled import FlatStore, Repeatable, copied, fill
from tests.integration.board.server import ROOT, Board
from tests.integration.commands import DAG
from tests.integration.pipeline import Pipeline

LARGE = 1000
"""Final transactions of the first topology, beside two open ones."""
EACH = 20
"""Transactions of each other one, two of them open."""
REFRESHES = 10
VIEWING = 60.0
"""Seconds for which all viewers look at once."""
PAUSE = 2.0
"""Seconds between two refreshes of a page, of two questions each."""


def main(topologies: int, viewers: int) -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(fsync=False) as zookeeper:
        print(f"{topologies} topologies: one of {LARGE} final transactions, the others of {EACH} transactions")
        with _store(zookeeper) as store:
            _fill(store, topologies)
        board = Board(Path(folder), zookeeper, {"the_dag.py": DAG})
        try:
            board.start()
            _measure(board, zookeeper, viewers)
            _view(board, zookeeper, topologies, viewers)
            _look(board, zookeeper)
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
        flat = FlatStore()
        pipeline = Repeatable(flat, "", _named(number), kept=True)
        pipeline.request = TopologyRequest(f"dag{number}", "opaque", 8)
        fill(pipeline, 1, LARGE if number == 0 else EACH - 2)
        pipeline.begin("open1")
        pipeline.begin("open2")
        copied(store, ROOT, flat.nodes)


def _named(number: int) -> str:
    return f"t{number:02}"


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
        pipeline = _pipeline(store, 0)
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


def _pipeline(store: ZooKeeperStore, number: int) -> Pipeline:
    pipeline = Pipeline(store, ROOT, topology=_named(number))
    pipeline.request = TopologyRequest(f"dag{number}", "opaque", 8)
    return pipeline


def _view(board: Board, zookeeper: LocalZooKeeper, topologies: int, viewers: int) -> None:
    """Let all viewers look at every page, while a transaction begins each second, and print how long each waits."""
    times: dict[str, list[float]] = {what: [] for what, _, _ in _ROUTES}
    refused: list[int] = []
    ends, held, busy = time.monotonic() + VIEWING, board.resident_bytes, board.processor_seconds
    before = received(zookeeper.port)

    def view(viewer: int) -> None:
        chosen = random.Random(viewer)
        questions = itertools.cycle(_ROUTES)
        with board.client("vera") as client:
            while time.monotonic() < ends:
                for what, path, params in itertools.islice(questions, 2):
                    number = chosen.randrange(topologies)
                    began = time.perf_counter()
                    answer = client.get(f"/api/v1/{path.format(number=number, name=_named(number))}", params=params)
                    if answer.status_code != 200:
                        refused.append(answer.status_code)
                    times[what].append(time.perf_counter() - began)
                time.sleep(PAUSE)

    def change() -> None:
        with _store(zookeeper) as store:
            for number in itertools.cycle(range(1, topologies)):
                if time.monotonic() >= ends:
                    return
                _pipeline(store, number).begin(f"later{time.monotonic_ns()}")
                time.sleep(1)

    board.token("vera")
    changing = threading.Thread(target=change)
    changing.start()
    with ThreadPoolExecutor(viewers) as pool:
        list(pool.map(view, range(viewers)))
    changing.join()
    print(f"{viewers} viewers for {VIEWING:.0f} s, a transaction begins each second; {machine()}")
    for what, _, _ in _ROUTES:
        print(f"{what}: {_spread(times[what])}")
    asked, busy = received(zookeeper.port) - before, board.processor_seconds - busy
    print(f"not answered with 200: {len(refused)} {sorted(set(refused))}")
    print(f"{busy:.1f} s of a processor, {asked / VIEWING:.1f} requests a second to ZooKeeper")
    print(f"memory of the api-server: {held / 2**20:.0f} MB before, {board.resident_bytes / 2**20:.0f} MB after")


def _look(board: Board, zookeeper: LocalZooKeeper) -> None:
    """Look at the page of every final transaction, twice, and print how much memory the api-server keeps."""
    with board.client("vera") as client:
        for what in ("for the first time", "once more"):
            times, held, busy = [], board.resident_bytes, board.processor_seconds
            before = received(zookeeper.port)
            for txid in range(1, LARGE + 1):
                began = time.perf_counter()
                client.get(f"/api/v1/topologies/{_named(0)}/transactions/{txid}").raise_for_status()
                times.append(time.perf_counter() - began)
            asked, busy = received(zookeeper.port) - before, board.processor_seconds - busy
            grown = (board.resident_bytes - held) / 2**20
            print(f"the pages of {LARGE} final transactions, {what}: {_spread(times)}; {machine()}")
            print(f"{busy:.1f} s of a processor, {asked} requests to ZooKeeper, memory grows by {grown:.1f} MB")


def _spread(seconds: list[float]) -> str:
    middle, most = percentile(seconds, 0.5) * 1000, percentile(seconds, 0.95) * 1000
    return f"{len(seconds)} answers, p50 {middle:.0f} ms, p95 {most:.0f} ms, longest {max(seconds) * 1000:.0f} ms"


_ROUTES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("overview", "topologies", {}),
    ("timeline", "topologies/{name}/transactions", {"limit": 100}),
    ("overview, filtered", "topologies", {"state": "waits", "text": "t1"}),
    ("topology", "topologies/{name}", {}),
    ("figures", "topologies/{name}/figures", {}),
    ("transaction", "topologies/{name}/transactions/5", {}),
    ("DAG", "dags/dag{number}", {}),
    ("run", "dags/dag{number}/runs/scheduled__0000005", {}),
)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    main(*(numbers + [50, 20][len(numbers) :]))
