"""What commits to several states of one database cost: in one moment, and state by state as it was before.

Then a large table beside a small state in one moment: how long the fence and the values of the small one are locked
(other sessions try to lock them), what a reader of it waits meanwhile, and the peak memory of the writer. Reader and
sessions are processes of their own.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from airflow_tx.base.errors import StateLocked
from airflow_tx.state import Grant, SqlTable
from airflow_tx.state.api import StoredState
from airflow_tx.state.arrow import RowsInParts
from airflow_tx.testing.suites.state_together import apart, together
from airflow_tx.testing.suites.state_tools import Grants
from benchmarks import topology
from benchmarks.diff import peak
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


AT_ONCE = 100_000
EVERY = 0.01
"""Seconds between two readings."""
LOCKS: Mapping[str, str] = {
    "fence": "SELECT 1 FROM airflow_tx_fence WHERE state = 'small' FOR UPDATE NOWAIT",
    "values": "SELECT 1 FROM small FOR UPDATE NOWAIT",
}


class Large(RowsInParts):
    """Narrow rows as a task has staged them: record batches."""

    def __init__(self, count: int) -> None:
        self.count = count

    def parts(self) -> Iterator[Any]:
        """Make them."""
        import pyarrow as pa  # type: ignore[import-untyped]

        for first in range(0, self.count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, self.count))
            yield pa.record_batch({"id": pa.array(numbers), "amount": pa.array([each % 4983 for each in numbers])})


@dataclass(frozen=True)
class Reading:
    """How a reader was served."""

    began: float
    took: float
    refused: bool

    @property
    def waits(self) -> Iterator[float]:
        """What readers wait who come meanwhile: else the longer a reading takes, the less it would count."""
        return (self.took - number * EVERY for number in range(1 + int(self.took / EVERY)))


def reading(url: str, over: Any) -> list[Reading]:
    """Read the small state again and again."""
    state, found = topology.state(url, "small"), []
    while not over.wait(EVERY):
        # The same clock in all processes.
        began, refused = time.monotonic(), False
        try:
            state.read()
        except StateLocked:
            # A reader of SQLite gives up while a writer has more pages than its cache holds.
            refused = True
        found.append(Reading(began, time.monotonic() - began, refused))
    return found


def locked(url: str, what: str, over: Any) -> float:
    """Try to lock rows of the small state again and again; the longest time for which another session had them."""
    lite = url.startswith("sqlite")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": 0} if lite else {})
    longest, since = 0.0, None
    with engine.connect() as connection:
        while not over.wait(0.005):
            now = time.monotonic()
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE" if lite else LOCKS[what]).close()
            except sa.exc.OperationalError:
                since = since or now
                longest = max(longest, now - since)
                continue
            since = None
            if lite:
                connection.exec_driver_sql("ROLLBACK")
    return longest


def large(name: str, url: str, rows: int) -> None:
    """Commit a large table beside a small state, and print what others wait."""
    small, table, grants = topology.state(url, "small"), SqlTable.from_url(url, table="large"), Grants()
    given = [{"key": f"key{number}", "n": 1, "total": number} for number in range(SMALL)]
    first = grants(1)
    together(first, [small, table], [given, Large(SMALL)])
    grants.final(first, small, table)
    spawned = multiprocessing.get_context("spawn")
    with spawned.Manager() as manager, ProcessPoolExecutor(3, spawned) as pool:
        for way, plan in (("nothing", None), ("moment", together), ("apart", apart)):
            over = manager.Event()
            reader = pool.submit(reading, url, over)
            locks = {what: pool.submit(locked, url, what, over) for what in LOCKS}
            time.sleep(5)
            # Forget the peak of memory so far.
            Path("/proc/self/clear_refs").write_text("5")
            began = time.monotonic()
            if plan is None:
                time.sleep(10)
            else:
                grant = grants(grants.last[small.name] + 1)
                plan(grant, [small, table], [given, Large(rows)])
                grants.final(grant, small, table)
            took = time.monotonic() - began
            over.set()
            seen = [each for each in reader.result() if each.began >= began]
            refused = [each for each in seen if each.refused]
            waits = [wait for each in seen for wait in each.waits]
            held = ", ".join(f"{what} {found.result():7.2f} s" for what, found in locks.items())
            print(
                f"  {name:10} {way:8} {took:7.1f} s   locked: {held}   {peak():4.0f} MB   "
                f"a reader: {spread(waits)}, {len(refused)} of {len(seen)} refused",
                flush=True,
            )


def main(count: str = str(LARGE), *only: str) -> None:
    """Measure and print.

    :param only: databases, for the large table alone; WAL: SQLite in this mode.
    """
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPostgres(fsync=True) as postgres,
        LocalMariaDB(fsync=True) as mariadb,
    ):
        urls = {"SQLite": f"sqlite:///{folder}/state.db", "PostgreSQL": postgres.url(), "MariaDB": mariadb.url()}
        if not only:
            print(f"Commits of {SMALL} rows a state, median of {COMMITS}; {machine()}")
        for name, url in urls.items() if not only else ():
            for each in STATES:
                ways: dict[str, Write] = {"moment": together, "apart": _alone if each == 1 else apart}
                for way, write in ways.items():
                    measure(name, url, each, way, write)
        print(f"A SqlTable of {int(count):,} rows beside a SqlState of {SMALL} keys; {machine()}")
        # A mode of the file, for all who open it.
        urls["WAL"] = f"sqlite:///{folder}/wal.db"
        with sa.create_engine(urls["WAL"]).connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        for name in only or urls:
            large(name, urls[name], int(count))
