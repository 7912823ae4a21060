"""Many readers of the board at once: what they cost the api-server, and how many requests reach ZooKeeper."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.figures import percentile
from benchmarks.scale.filled import LEDGERS, Repeatable, copied
from benchmarks.scale.server import MeteredStore, ScaleZooKeeper, metered, number, row, table
from tests.integration.board.server import ROOT, Board
from tests.integration.commands import DAG

READERS = (1, 10, 50)
TOPOLOGIES = 50
LARGE, EACH = 10_000, 20
"""Committed transactions of the first topology, and of each other one."""
SECONDS = 15.0
PAUSE = 2.0
"""Seconds between two questions of a reader: as the page asks."""


def main(*sizes: str) -> None:
    """Measure and print, for so many readers."""
    with tempfile.TemporaryDirectory() as folder, ScaleZooKeeper() as server, metered(server.hosts) as store:
        for each in range(1, TOPOLOGIES):
            copied(store, ROOT, _named(f"other{each:02}", EACH))
        copied(store, ROOT, LEDGERS.of(LARGE))
        board = Board(Path(folder), server, {"the_dag.py": DAG})
        try:
            board.start()
            _read(board, "vera")
            columns = ("questions", "median, s", "95 %, s", "processor of the api-server, s", "requests to ZooKeeper")
            table("readers", "meanwhile", *columns, "… a second")
            runs = (f"later{each}" for each in itertools.count())
            for count in [int(each) for each in sizes] or READERS:
                for what, change in (("nothing happens", None), ("a transaction every second", runs)):
                    _measured(board, server, store, count, what, change)
        finally:
            board.stop()


def _named(topology: str, count: int) -> Any:
    nodes = LEDGERS.of(count)
    return {path.replace("/flights", f"/{topology}", 1): node for path, node in nodes.items()}


def _measured(board: Board, server: ScaleZooKeeper, store: MeteredStore, count: int, what: str, runs: Any) -> None:
    own, before, busy = store.requests, _received(server), board.processor_seconds
    ends = time.monotonic() + SECONDS
    pipeline, took = Repeatable(store, ROOT), list[float]()

    def reader(_: int) -> None:
        while time.monotonic() < ends:
            began = time.perf_counter()
            _read(board, "vera")
            took.append(time.perf_counter() - began)
            time.sleep(PAUSE)

    with ThreadPoolExecutor(count) as pool:
        changing = _every_second(lambda: pipeline.run(next(runs)), ends) if runs is not None else None
        list(pool.map(reader, range(count)))
        if changing is not None:
            changing.join()
    sent = _received(server) - before - (store.requests - own)
    times = f"{percentile(took, 0.5):.2f} | {percentile(took, 0.95):.2f}"
    busy = board.processor_seconds - busy
    row(number(count), what, number(len(took)), times, f"{busy:.1f}", number(sent), f"{sent / SECONDS:.1f}")


def _read(board: Board, user: str) -> None:
    """What a page asks: the overview, and the timeline of one topology."""
    board.get("topologies", user)
    board.get("topologies/flights/transactions", user, limit=100)


def _received(server: ScaleZooKeeper) -> int:
    return int(server.monitored()["zk_packets_received"])


def _every_second(action: Callable[[], Any], ends: float) -> threading.Thread:
    def act() -> None:
        while time.monotonic() < ends:
            action()
            time.sleep(1.0)

    thread = threading.Thread(target=act)
    thread.start()
    return thread
