"""What commits to several states of one database cost: in one moment, and state by state as it was before.

Then a large table beside a small state in one moment: how long it holds the lock of the small one, and what readers
wait meanwhile.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from airflow_tx.base.errors import StateLocked
from airflow_tx.state import Grant, SqlTable
from airflow_tx.state.api import StoredState
from airflow_tx.state.arrow import RowsInParts
from airflow_tx.testing.suites.state_together import apart, together
from airflow_tx.testing.suites.state_tools import Grants
from benchmarks import sql_table, topology
from benchmarks.figures import machine, spread

STATES = (1, 2, 3, 5)
COMMITS = 100
SMALL = 10
LARGE = 10_000_000

Write = Callable[[Grant, Sequence[StoredState], Sequence[Any]], object]


def _alone(grant: Grant, states: Sequence[StoredState], given: Sequence[Any]) -> None:
    """Commit to one state."""
    (state,), (rows,) = states, given
    state.raise_and_write(grant, rows)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the statements and the transactions of this process."""
    found = Counter[str]()
    counts = {"before_cursor_execute": "statements", "commit": "transactions"}
    listeners = [(name, lambda *_, what=what: found.update([what])) for name, what in counts.items()]
    for name, listener in listeners:
        event.listen(sa.engine.Engine, name, listener)
    try:
        yield found
    finally:
        for name, listener in listeners:
            event.remove(sa.engine.Engine, name, listener)


def states_of(url: str, name: str, count: int) -> list[StoredState]:
    """Open states and tables in turn."""
    return [
        SqlTable.from_url(url, table=f"{name}_{number}") if number % 2 else topology.state(url, f"{name}_{number}")
        for number in range(count)
    ]


def measure(name: str, url: str, count: int, way: str, write: Write) -> None:
    """Commit again and again, and print what one commit took."""
    states, grants = states_of(url, f"{way}{count}", count), Grants()
    rows = [{"key": f"key{number}", "n": 1, "total": number} for number in range(SMALL)]
    seconds, waited = [], []
    with counted() as found:
        for txid in range(1, COMMITS + 11):
            grant = grants(txid)
            if txid == 11:
                found.clear()
            began, begun = time.perf_counter(), time.process_time()
            write(grant, states, [rows] * count)
            seconds.append(time.process_time() - begun)
            waited.append(time.perf_counter() - began)
            grants.final(grant, *states)
    processor, wall = (statistics.median(each[10:]) * 1000 for each in (seconds, waited))
    transactions, statements = (found[each] / COMMITS for each in ("transactions", "statements"))
    print(
        f"  {name:10} {count} states {way:9} {transactions:4.1f} transactions {statements:5.1f} statements   "
        f"processor {processor:6.2f} ms   wall {wall:7.1f} ms",
        flush=True,
    )


# --- a large table beside a small state -----------------------------------------------------------------------------


class Large(RowsInParts):
    """Rows as a task has staged them: record batches."""

    def __init__(self, count: int) -> None:
        self.count = count

    def parts(self) -> Iterator[Any]:
        """Make them."""
        import pyarrow as pa  # type: ignore[import-untyped]

        yield from map(pa.RecordBatch.from_pylist, sql_table.portions(self.count))


def reading(url: str, table: str, over: Event) -> list[float]:
    """Read a small state again and again; how long each reading took."""
    state, took = topology.state(url, table), []
    while not over.is_set():
        began = time.perf_counter()
        # A reader of SQLite gives up while a writer has more pages than its cache holds.
        with suppress(StateLocked):
            state.read()
        took.append(time.perf_counter() - began)
        over.wait(0.01)
    return took


def large(name: str, url: str, rows: int) -> None:
    """Commit a large table beside a small state, and print what others wait."""
    small, table, grants = topology.state(url, "small"), SqlTable.from_url(url, table="large"), Grants()
    given = [{"key": f"key{number}", "n": 1, "total": number} for number in range(SMALL)]
    first = grants(1)
    together(first, [small, table], [given, Large(SMALL)])
    grants.final(first, small, table)
    with ThreadPoolExecutor(1) as pool:
        for way, plan in (("nothing", None), ("moment", together), ("apart", apart)):
            over = Event()
            reader = pool.submit(reading, url, "small", over)
            grant = grants(grants.last[small.name] + 1)
            began = time.perf_counter()
            if plan is None:
                time.sleep(5)
            else:
                plan(grant, [small, table], [given, Large(rows)])
                grants.final(grant, small, table)
            took = time.perf_counter() - began
            over.set()
            print(f"  {name:10} {way:8} {took:7.1f} s   a reader: {spread(reader.result())}", flush=True)


def main(count: int = LARGE) -> None:
    """Measure and print."""
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres

    print(f"Commits of {SMALL} rows a state, median of {COMMITS}; {machine()}")
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPostgres(fsync=True) as postgres,
        LocalMariaDB(fsync=True) as mariadb,
    ):
        urls = {"SQLite": f"sqlite:///{folder}/state.db", "PostgreSQL": postgres.url(), "MariaDB": mariadb.url()}
        for name, url in urls.items():
            for each in STATES:
                ways: dict[str, Write] = {"moment": together, "apart": _alone if each == 1 else apart}
                for way, write in ways.items():
                    measure(name, url, each, way, write)
        print(f"A SqlTable of {count:,} rows beside a SqlState of {SMALL} keys; {machine()}")
        for name, url in urls.items():
            large(name, url, count)
