"""Rows that a transaction appends to a table of a database, beside what the driver does at best, and a SqlGuard.

Each way writes the same rows in one transaction of the database, into a table with the same primary key: empty, and
with as many rows as the largest transaction. driver: COPY (PostgreSQL), executemany (SQLite, MariaDB). rows: only makes
them, as the driver and the guard do. staged: a SqlTable is given the staged output of a task; dicts: rows that a task
has returned. Each runs in a process of its own: rows a second, its processor time without that of the server, its peak
memory.
Usage: script/bench sql_table [how many]
"""

from __future__ import annotations

import datetime as dt
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import sqlalchemy as sa

from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import StagingArea, write_manifest, write_rows
from airflow_tx.state import SqlGuard, SqlTable
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit.write import StagedRows
from benchmarks.figures import machine

ROWS = 10_000_000
SMALLEST = 10_000
IN_MEMORY = 1_000_000
"""The most rows of the ways that have all of them in memory."""
AT_ONCE = 10_000
GIVEN = ("staged", "dicts")
"""The ways of a SqlTable, whose rows are there before the time counts."""
WAYS = ("rows", "driver", *GIVEN, "SqlGuard")
NAMES = ("tx_txid", "tx_row", "id", "carrier", "dest", "tailnum", "distance", "dep_delay", "at", "late")
ATTEMPT = TransactionAttempt(1, 1)
_NOON = dt.datetime(2013, 1, 1, 12)


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Make rows as a task returns them."""
    for n in range(count):
        yield {
            "id": n,
            "carrier": f"C{n % 16}",
            "dest": f"D{n % 105}",
            "tailnum": f"N{n % 4043}",
            "distance": n % 4983,
            "dep_delay": n % 180 - 20,
            "at": _NOON + dt.timedelta(seconds=n),
            "late": n % 180 > 35,
        }


def portions(count: int) -> Iterator[list[dict[str, Any]]]:
    """Make them in portions."""
    made = rows(count)
    while portion := list(islice(made, AT_ONCE)):
        yield portion


# --- one way, in a process of its own -----------------------------------------------------------------------------


def measure(way: str, url: str, table: str, count: int, kept: str) -> None:
    """Write rows by one way, and print what it took.

    :param kept: the file with the grants of the table.
    """
    grants = pickle.loads(Path(kept).read_bytes()) if Path(kept).exists() else Grants()
    state = SqlTable.from_url(url, table=table)
    insert = _insert(table, [f":{name}" for name in NAMES])
    guard = SqlGuard.from_url(url, name=table, statements=[insert])
    grant = grants(grants.last.get(state.name, 0) + 1)
    given: Iterable[Any] = ()
    if way == "staged":
        given = _staged(Path(kept).parent / f"{table}.staged", count, state)
    elif way == "dicts":
        given = list(rows(count))
    ways: dict[str, Callable[[], object]] = {
        "rows": lambda: sum(1 for _ in rows(count)),
        "driver": lambda: _driven(url, table, count),
        **dict.fromkeys(GIVEN, lambda: state.raise_and_write(grant, given)),
        "SqlGuard": lambda: guard.raise_and_write(Grants()(1), _numbered(count)),
    }
    # Modules are imported, and a session begins.
    state.fence()
    guard.fence()
    begun = time.perf_counter(), time.process_time()
    ways[way]()
    took = time.perf_counter() - begun[0], time.process_time() - begun[1]
    if way in GIVEN:
        grants.final(grant, state)
        Path(kept).write_bytes(pickle.dumps(grants))
    print(json.dumps([*took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def _insert(table: str, marks: list[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(NAMES)}) VALUES ({', '.join(marks)})"


def _staged(folder: Path, count: int, state: SqlTable) -> StagedRows:
    """Stage rows as a task does that returns a stream of record batches."""
    made = (pa.RecordBatch.from_pylist(portion) for portion in portions(count))
    first = next(made)
    stream = pa.RecordBatchReader.from_batches(first.schema, chain([first], made))
    area = StagingArea(str(folder))
    where = area.try_dir("orders", ATTEMPT, TaskTry("task", -1, "1"))
    output = write_rows(where, "rows", stream, digested=True)
    return StagedRows(area, write_manifest(where, {"rows": output})["rows"].to_json(), state, ATTEMPT)


def _numbered(count: int) -> Iterator[dict[str, Any]]:
    for n, row in enumerate(rows(count)):
        yield {"tx_txid": -2, "tx_row": n, **row}


class _Lines:
    """Rows as COPY reads them."""

    def __init__(self, count: int) -> None:
        self._rows = portions(count)
        self._count = 0

    def read(self, size: int) -> str:
        lines = []
        for row in next(self._rows, ()):
            lines.append("\t".join(["-1", str(self._count), *map(str, row.values())]))
            self._count += 1
        return "\n".join([*lines, ""]) if lines else ""


def _driven(url: str, table: str, count: int) -> None:
    connection: Any = sa.create_engine(url).raw_connection()
    cursor = connection.cursor()
    if url.startswith("postgresql"):
        cursor.copy_expert(f"COPY {table} ({', '.join(NAMES)}) FROM STDIN", _Lines(count))
    else:
        text = _insert(table, ["?" if url.startswith("sqlite") else "%s"] * len(NAMES))
        # SQLAlchemy keeps a time in SQLite so, too.
        plain: Callable[[dt.datetime], Any] = str if url.startswith("sqlite") else lambda value: value
        for some in portions(count):
            values = [(-1, row["id"], *(row | {"at": plain(row["at"])}).values()) for row in some]
            cursor.executemany(text, values)
    connection.commit()
    connection.close()


# --- all of them --------------------------------------------------------------------------------------------------


def _of_own(way: str, url: str, table: str, count: int, kept: Path) -> tuple[float, float, float]:
    command = [sys.executable, "-m", "benchmarks.sql_table", way, url, table, str(count), str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, processor, memory = json.loads(done.stdout.splitlines()[-1])
    return seconds, processor, memory


def compared(url: str, count: int, before: int, folder: Path) -> Iterator[str]:
    """Write so many rows by each way, each into a table that has some, and tell what it took."""
    for way in WAYS:
        if way in ("dicts", "SqlGuard") and count > IN_MEMORY:
            continue
        table = f"t{uuid.uuid4().hex[:8]}"
        kept = folder / table
        _of_own("staged", url, table, before, kept)
        seconds, processor, memory = _of_own(way, url, table, count, kept)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {table}")
        engine.dispose()
        rate = f"{count / seconds:10,.0f} rows/s   processor {processor:7.2f} s   memory {memory:5.0f} MB"
        yield f"  {count:10,} rows, {before:10,} before   {way:8}   {rate}"


def main() -> None:
    """Measure and print."""
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres

    most = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    sizes = [SMALLEST * 10**n for n in range(4) if SMALLEST * 10**n < most] + [most]
    print(machine())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            "SQLite": f"sqlite:///{folder}/rows.db",
            "PostgreSQL": stack.enter_context(LocalPostgres(fsync=True)).url(),
            "MariaDB": stack.enter_context(LocalMariaDB()).url(),
        }
        for name, url in servers.items():
            print(name)
            for count in sizes:
                for before in (1, most):
                    for line in compared(url, count, before, folder):
                        print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        measure(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main()
