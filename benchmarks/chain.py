"""How fast a topology takes the transactions that another one commits, on a real ZooKeeper and a DeltaTable.

mark to begin: from the mark upstream to the end of `begin`, in a process that watches, as a lane does. begin: its time
with so many upstream transactions behind it. Usage: script/bench chain [how often]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from airflow_tx.ledger import Paths, ReadOnlyLedger, TransactionAttempt
from airflow_tx.ledger.api import Create, Put
from airflow_tx.ledger.book import LINES_A_PAGE
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import BookPage, Counter, EndLine, TopologyRecord, decode, encode
from airflow_tx.sources import UpstreamSource
from airflow_tx.state import DeltaTable
from airflow_tx.state.arrow import RowTally
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from benchmarks.topology import connected
from tests.integration.pipeline import Pipeline

TIMES = 50
BEHIND = (10, 100_000)
ROOT = "/tx"


class Upstream:
    """Topology `orders`, whose transactions write one row each."""

    def __init__(self, store: Any, folder: Path) -> None:
        self.store = store
        self.table = DeltaTable(folder / "orders")
        self.pipeline = Pipeline(store, ROOT, [self.table], topology="orders", book=True)
        self.pipeline.write = self._write  # type: ignore[method-assign]
        store.ensure(ROOT)

    def _write(self, grant: Any, rows: Any) -> None:
        attempt = TransactionAttempt(grant.txid, grant.token.attempt, grant.token.birth)
        tally = RowTally(self.table.stage([{"n": rows}], attempt), ())
        self.pipeline.written = {self.table.name: tally.written(self.table.raise_and_write(grant, tally))}

    def granted(self) -> Any:
        """Bring a transaction up to its mark."""
        begun = self.pipeline.begin(f"o{time.monotonic_ns()}")
        grant = self.pipeline.acquire(begun, self.pipeline.process(begun))
        self.pipeline.write(grant, 1)
        return grant

    def age(self, txid: int) -> None:
        """Let the next transaction have this number, and all before it a line in the book."""
        paths = Paths(ROOT, "orders")
        for number in range(txid // LINES_A_PAGE + 1):
            first = max(number * LINES_A_PAGE, 1)
            page = [self._line(each) for each in range(first, min((number + 1) * LINES_A_PAGE, txid))]
            path = paths.page(number)
            self.store.ensure(paths.ends)
            kind = Create if self.store.get(path) is None else Put
            self.store.multi((), [kind(path, encode(BookPage(page)))])
        record = replace(decode(TopologyRecord, "", self.store.get(paths.record).data), book=1)
        self.store.multi((), [Put(paths.record, encode(record)), Put(paths.current, encode(Counter(txid)))])

    def _line(self, txid: int) -> EndLine:
        return EndLine(txid, f"{txid:032x}", f"run {txid}", Outcome.COMMITTED, {self.table.name: 1})


def main(times: int = TIMES) -> None:
    """Measure and print."""
    quiet()
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(fsync=False) as zookeeper:
        with connected(zookeeper.hosts) as store, connected(zookeeper.hosts) as other:
            upstream = Upstream(store, Path(folder))
            upstream.pipeline.mark(upstream.granted())
            _print("mark to begin", _latencies(upstream, other, times))
            for behind in BEHIND:
                upstream.age(behind)
                _print(f"begin with {behind:,} behind", _begins(upstream, times))
    print(f"  {machine()}")


def _source(upstream: Upstream) -> UpstreamSource:
    return UpstreamSource(upstream.table, topology="orders", root=ROOT).named("totals")


def _latencies(upstream: Upstream, store: Any, times: int) -> list[float]:
    from airflow_tx import hooks

    hooks.shared_store = lambda conn_id: store
    source = _source(upstream)
    totals = Pipeline(store, ROOT, [], topology="totals", upstream="orders")
    position: Any = None
    batch = source.decide(TransactionAttempt(1, 1), None)
    assert batch is not None
    position = batch.position
    found = list[float]()
    for _ in range(times):
        grant = upstream.granted()
        begun = threading.Event()
        ended = [0.0]

        def wait(after: Any = position, done: list[float] = ended, ready: threading.Event = begun) -> None:
            with store.watch(*source.watched(ROOT)) as watch:
                ready.set()
                watch.wait(10)
            taken = source.decide(TransactionAttempt(1, 1), after)
            assert taken is not None
            totals.metadata = lambda row: taken.metadata
            totals.position = lambda row: taken.position
            totals.begin(f"t{time.monotonic_ns()}")
            done[0] = time.perf_counter()
            done.append(taken.position)  # type: ignore[arg-type]

        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait()
        before = time.perf_counter()
        upstream.pipeline.mark(grant)
        after_mark = time.perf_counter()
        thread.join()
        found.append(ended[0] - after_mark if after_mark < ended[0] else ended[0] - before)
        position = ended[1]
        _finish(totals)
    return found


def _finish(totals: Pipeline) -> None:
    ledger = ReadOnlyLedger(totals.store, totals.paths)
    for txid, record in ledger.open_records().items():
        begun = totals.begin(record.run_id)
        assert begun.txid == txid
        totals.mark(totals.acquire(begun, totals.process(begun)))


def _begins(upstream: Upstream, times: int) -> list[float]:
    ledger = ReadOnlyLedger(upstream.store, Paths(ROOT, "orders"))
    last = ledger.current() - 6
    birth = f"{last:032x}"
    position: Any = {"incarnation": ledger.topology().incarnation, "txid": last, "birth": birth}
    found = list[float]()
    for _ in range(times):
        before = time.perf_counter()
        batch = _source(upstream).decide(TransactionAttempt(1, 1), position)
        found.append(time.perf_counter() - before)
        assert batch is not None
    return found


def _print(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p95 = ordered[int(len(ordered) * 0.95)]
    print(f"  {what:28} median {1000 * statistics.median(ordered):6.1f} ms, p95 {1000 * p95:6.1f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
