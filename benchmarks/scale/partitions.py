"""A source of many partitions: how large its records are, and what a transaction that takes rows of each costs."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from airflow_tx.base.errors import TooMuchMetadata
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.views.view import topology_view, transaction_details
from airflow_tx.state import Sum
from airflow_tx.state.sql.state import SqlState
from benchmarks.scale.filled import Repeatable, tree
from benchmarks.scale.server import COLUMNS, MeteredStore, ScaleZooKeeper, cost, metered, number, row, size, table

SIZES = (10, 500, 5_000)
ROOT = "/partitions"
TIMES = 5
LIMIT_STEP = 500


class Partitioned(Repeatable):
    """Each transaction takes ten rows of each partition, as of a topic of Kafka: [first, behind the last]."""

    def __init__(self, store: MeteredStore, count: int, **options: Any) -> None:
        super().__init__(store, ROOT, f"t{count}", **options)
        self.request = TopologyRequest("the_dag", "opaque", 8, partitioned=True)
        self.names = [f"orders-{each}" for each in range(count)]

    def begin(self, run: str) -> Begun:
        request = BeginRequest(self.request, run, run, f"{next(self._tries):06}", False, {"task0": "1"})
        begun = self.ledger.begin(request, Outside(decide=self._decide, run_state=lambda run_id: "failed"))
        assert isinstance(begun, Begun), begun
        return begun

    def _decide(self, attempt: TransactionAttempt, position: Any) -> Batch:
        before = dict.fromkeys(self.names, 1_000_000) | (position or {})
        return Batch({name: [at, at + 10] for name, at in before.items()}, {n: at + 10 for n, at in before.items()})

    def write(self, grant: Any, rows: Any) -> None:
        super().write(grant, len(self.names))


def main(*sizes: str) -> None:
    """Measure and print, for so many partitions."""
    table("partitions", "what", COLUMNS)
    largest = []
    with tempfile.TemporaryDirectory() as folder, ScaleZooKeeper() as server:
        for count in [int(each) for each in sizes] or SIZES:
            with metered(server.hosts) as store:
                largest.append((count, _measured(server, store, count, Path(folder))))
        with metered(server.hosts) as store:
            most, line = _limit(store)
    table("partitions", "largest record", "of a partition", "all records of the ledger")
    for count, (most_bytes, all_bytes) in largest:
        row(number(count), size(most_bytes), f"{most_bytes / count:.0f}", size(all_bytes))
    print(
        f"\nThe last that fits has {number(most)} partitions; of {number(most + LIMIT_STEP)} `begin` says:\n\n> {line}"
    )


def _measured(server: ScaleZooKeeper, store: MeteredStore, count: int, folder: Path) -> tuple[int, int]:
    url = f"sqlite:///{folder / f'{count}.db'}"
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, label="s")
    pipeline = Partitioned(store, count, states=[state])
    runs = (f"r{each}" for each in itertools.count())
    begun: list[Any] = []

    def commit() -> None:
        begins = begun.pop(0)
        grant = pipeline.acquire(begins, pipeline.process(begins))
        pipeline.write(grant, begins.metadata)
        pipeline.mark(grant)

    def show(what: str, action: Any, times: int = TIMES) -> None:
        row(number(count), what, cost(store, server, action, times))

    pipeline.run(next(runs))
    show("begin", lambda: begun.append(pipeline.begin(next(runs))), 3)
    show("its task and commit", commit, 3)
    last = pipeline.begin(next(runs)).attempt.txid
    show("begin again: a replay", lambda: pipeline.begin(f"r{last - 1}"))
    show("`airflow tx list T`", lambda: topology_view(store, pipeline.paths))
    show("`airflow tx show T N`", lambda: transaction_details(store, pipeline.paths, last))
    return store.largest, sum(len(data) for _, data in tree(store, pipeline.paths.base))


def _limit(store: MeteredStore) -> tuple[int, str]:
    """Begin ever larger batches: the most partitions that fit, and what the first that do not are told."""
    for count in itertools.count(10_000, LIMIT_STEP):
        pipeline = Partitioned(store, count)
        pipeline.ledger.open(pipeline.request)
        before = dict(tree(store, pipeline.paths.base))
        try:
            pipeline.begin("first")
        except TooMuchMetadata as error:
            assert dict(tree(store, pipeline.paths.base)) == before, "something was done of what was refused"
            return count - LIMIT_STEP, str(error)
    raise AssertionError
