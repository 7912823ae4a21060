"""What a receipt costs in a commit, and how long `verify` and `stale` take.

Usage: script/bench receipts [transactions]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from airflow_tx.ledger import ReadOnlyLedger
from airflow_tx.ledger.api import Create, Paths, Put
from airflow_tx.ledger.audit.chain import StateEvidence, ledger_evidence
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Written
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.operations.actions.stale import StaleReading
from airflow_tx.state import SqlState, Sum
from airflow_tx.state.api import FencedState
from airflow_tx.state.arrow import RowTally
from airflow_tx.state.memory import MemoryState
from airflow_tx.state.redis.state import RedisState
from airflow_tx.state.sql.schema import receipts_table
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction import code_of_dag, spec_of
from benchmarks.figures import machine, quiet
from benchmarks.topology import connected
from tests.integration.pipeline import Pipeline

COMMITS = 100
KEYS = (1, 100, 1000)
VERIFIED = 10_000


def opened(stack: ExitStack, folder: Path) -> Iterator[tuple[str, Callable[[str], FencedState]]]:
    """Every store, with how to make a state in it."""
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres
    from tests.servers.redis import LocalRedis

    made: dict[str, Any] = {"keys": ["key"], "values": {"n": Sum()}}
    urls = {"SQLite": f"sqlite:///{folder / 'state.db'}"}
    urls["PostgreSQL"] = stack.enter_context(LocalPostgres()).url()
    urls["MariaDB"] = stack.enter_context(LocalMariaDB()).url()
    for name, url in urls.items():
        yield name, lambda table, url=url: SqlState.from_url(url, table=table, **made)  # type: ignore[misc]
    server = stack.enter_context(LocalRedis())
    yield "Redis", lambda prefix: RedisState.from_url(server.url(), prefix=prefix, **made)


def cost(make: Callable[[str], FencedState], keys: int) -> tuple[float, float]:
    """Seconds of a commit without and with a receipt, taken in turns."""
    states = {"without": make(f"without{keys}"), "with": make(f"with{keys}")}
    grants = {name: Grants() for name in states}
    rows = [{"key": f"key {number}", "n": 1} for number in range(keys)]
    seconds = dict[str, list[float]](without=[], **{"with": []})
    for txid in range(1, COMMITS + 1):
        for name, state in states.items():
            grant = grants[name](txid)
            grant = grant if name == "with" else replace(grant, claim=None)
            begun = time.perf_counter()
            state.raise_and_write(grant, rows)
            seconds[name].append(time.perf_counter() - begun)
            grants[name].final(grant, state)
    return statistics.median(seconds["without"]), statistics.median(seconds["with"])


def processor_time() -> None:
    """Print what a receipt costs without any server."""
    grant, rows = Grants()(1), [{"key": f"key {number}", "n": 1} for number in range(1000)]

    def made() -> None:
        receipt = grant.receipt("state", Written(1000, "0" * 16))
        assert receipt is not None
        assert receipt.hash

    found = []
    for work in (made, lambda: list(RowTally(rows))):
        seconds = []
        for _ in range(300):
            begun = time.process_time()
            work()
            seconds.append(time.process_time() - begun)
        found.append(statistics.median(seconds) * 1000)
    print(f"  processor time: {found[0]:.3f} ms a state, {found[1]:.3f} ms for the digest of 1,000 rows")


def first(rows: list[int]) -> int:
    """Add up the rows."""
    return sum(rows)


def dag() -> Any:
    """A DAG of three tasks."""
    from airflow.sdk import DAG, task

    from airflow_tx import CommitOperator, FileSource, Transaction, persistent_aggregate

    with DAG("flights") as made, Transaction(source=FileSource("/nowhere/*.csv")) as tx:
        rows: Any = tx.batch
        for number in range(3):
            rows = task(task_id=f"task{number}")(first)(rows)
        totals = SqlState("tx_state", table="totals", keys=["key"], values={"n": Sum()})
        CommitOperator(task_id="commit", updates=[persistent_aggregate(rows, state=totals)])
    return made


class CountedStore:
    """A store that counts the requests to it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("get", "children", "multi", "sync"):
            self.requests += 1
        return found


def stale(store: Any, paths: Paths, state: SqlState, count: int) -> None:
    """Print how long it takes to find what the change of one task of three has made stale."""
    made = dag()
    spec = spec_of(made)
    states: Any = type("States", (dict,), {"dag": made})({state.name: state})
    counted = CountedStore(store)
    begun, used = time.perf_counter(), time.process_time()
    found = StaleReading(ReadOnlyLedger(cast("Any", counted), paths), (spec, states)).read()
    done, at = time.perf_counter(), time.process_time()
    assert found.compared == count
    print(
        f"  stale of {count:,} transactions: {done - begun:.1f} s, {at - used:.1f} s of a core, {counted.requests:,} "
        f"requests to ZooKeeper; {len(found.txids):,} are stale, as one task of three changed after them"
    )


def books(count: int, folder: Path) -> tuple[MemoryStore, Paths, SqlState]:
    """A ledger of so many transactions, and a state in SQLite with the receipts of all."""
    store, memory = MemoryStore(), MemoryState("sqlite.totals", values={"n": Sum()})
    store.ensure("/tx")
    pipeline = Pipeline(store, "/tx", [memory], history=count, tasks=3)
    made = dag()
    now = code_of_dag(made, spec_of(made))
    for number in range(count):
        pipeline.code = now if number >= count * 6 // 10 else {**now, "task1": "0" * 16}
        pipeline.run(f"run {number}")
    url = f"sqlite:///{folder / 'books.db'}"
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, label="sqlite")
    fence = memory.fence()
    assert fence is not None
    grants = Grants()
    grants.incarnation = fence.incarnation
    state.raise_and_write(replace(grants(1), token=fence.token, batch=fence.kept), [{"key": "total", "n": 1}])
    engine, table = sa.create_engine(url), receipts_table(None)
    own = {"state": "totals", "incarnation": fence.incarnation, "topology": "flights"}
    with engine.begin() as connection:
        connection.execute(table.delete())
        names = ("txid", "attempt", "receipt", "hash")
        kept = [{**own, **dict(zip(names, astuple(each)[: len(names)], strict=True))} for each in memory.receipts()]
        connection.execute(table.insert(), kept)
    engine.dispose()
    return store, pipeline.paths, state


def verify(count: int, folder: Path) -> None:
    """Print how long it takes to read and to compare everything, from a real ZooKeeper and SQLite."""
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

    memory, paths, state = books(count, folder)
    with LocalZooKeeper(fsync=False) as server, connected(server.hosts) as store:
        copy(memory, store, "/tx")
        begun = time.perf_counter()
        ledger = ledger_evidence(store, paths)
        read = time.perf_counter()
        states = [StateEvidence(state.name, state.fence(), state.receipts())]
        found = verified(ledger, states)
        done = time.perf_counter()
        stale(store, paths, state, count)
    assert (found.first, found.last, found.findings) == (1, count, ()), found
    print(f"  verify of {count:,} transactions: {done - begun:.1f} s, of which ZooKeeper {read - begun:.1f} s")


def copy(memory: MemoryStore, store: Any, path: str) -> None:
    """Write every record below a path."""
    creates, waiting = list[Create | Put](), [path]
    while waiting:
        each = waiting.pop()
        node, children = memory.get(each), memory.children(each)
        creates.append(Create(each, b"" if node is None else node.data))
        waiting += [f"{each}/{name}" for name in (children.names if children else ())]
    for start in range(0, len(creates), 200):
        store.multi([], creates[start : start + 200])


def main(count: int = VERIFIED) -> None:
    """Measure and print."""
    quiet()
    print(f"Receipts; {machine()}")
    processor_time()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for store, make in opened(stack, folder):
            for keys in KEYS:
                without, with_ = cost(make, keys)
                more = (with_ - without) * 1000
                print(f"  {store:10}  {keys:5,} keys: {without * 1000:6.2f} ms without, {more:+5.2f} ms with a receipt")
        verify(count, folder)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
