"""A ledger of many committed transactions: what begin, commit, commands and the server cost then."""

from __future__ import annotations

import itertools
from typing import Any

from airflow_tx.coordinator.plan import SnapshotReader
from airflow_tx.ledger.views.view import topology_view, transaction_details
from benchmarks.scale.filled import LEDGERS, Repeatable, compare, copied
from benchmarks.scale.server import COLUMNS, MB, MeteredStore, ScaleZooKeeper, cost, metered, number, row, table

SIZES = (1_000, 10_000, 100_000)
ROOT = "/scale"
TIMES = 10
COMPARED, HISTORY = 120, 50
"""So many transactions, of which so many are remembered."""


def main(*sizes: str) -> None:
    """Measure and print, for so many committed transactions."""
    counts = [int(each) for each in sizes] or SIZES
    with ScaleZooKeeper() as server, metered(server.hosts) as store:
        records = compare(store, COMPARED, history=HISTORY)
        print(f"\nMade in memory and copied, or made by steps: {records} records, all equal.")
    table("committed transactions", "what", COLUMNS)
    servers = [_measured(count) for count in counts]
    table(
        "committed transactions", "records", "bytes in records", "heap, MB", "snapshot, MB", "start, s", "processor, s"
    )
    for cells in servers:
        row(*cells)


def _measured(count: int) -> list[str]:
    with ScaleZooKeeper() as server:
        with metered(server.hosts) as store:
            copied(store, ROOT, LEDGERS.of(count))
            _requests(server, store, count)
            found = server.monitored()
        records, size = int(found["zk_znode_count"]), int(found["zk_approximate_data_size"])
        heap = server.heap_used
        seconds, busy = server.started_again()
        sizes = [f"{heap / MB:.0f}", f"{server.snapshot_size / MB:.1f}", f"{seconds:.1f}", f"{busy:.1f}"]
        return [number(count), number(records), number(size), *sizes]


def _requests(server: ScaleZooKeeper, store: MeteredStore, count: int) -> None:
    pipeline = Repeatable(store, ROOT)
    paths = pipeline.paths
    runs = (f"later__{each:07}" for each in itertools.count())
    begun: list[Any] = []

    def again() -> None:
        pipeline.run(next(runs))

    def begin() -> None:
        begun.append(pipeline.begin(next(runs)))

    def commit() -> None:
        begins = begun.pop(0)
        pipeline.mark(pipeline.acquire(begins, pipeline.process(begins)))

    again()
    for what, action, times in (
        ("a whole transaction, each step a process", again, TIMES),
        ("its begin", begin, 4),
        ("its task and commit", commit, 4),
        ("begin of a run that is committed", lambda: _committed(pipeline), TIMES),
        ("the coordinator looks", lambda: SnapshotReader(store, paths).look(), TIMES),
        ("`airflow tx list T` (50 shown)", lambda: topology_view(store, paths), 3),
        ("`airflow tx list`, a topology", lambda: topology_view(store, paths, recent=0), 3),
        ("`airflow tx show T N`", lambda: transaction_details(store, paths, count), 3),
    ):
        row(number(count), what, cost(store, server, action, times))


def _committed(pipeline: Repeatable) -> None:
    try:
        pipeline.begin("scheduled__0000001")
    except AssertionError:  # it is no new transaction
        return
    raise AssertionError("a committed run was begun again")
