"""What a commit of 10 rows costs in a table of 10 rows and in a large one: processor time, and statements."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import event

from benchmarks import topology

ROWS = 1_000_000
SMALL = 10
COMMITS = 300


def measure(name: str, url: str, size: int, guarded: Callable[[Any], Callable[[int, Any], None]]) -> None:
    """Fill a table, commit to it again and again, and print."""
    state = topology.state(url, f"flat{size}")
    commit = guarded(state)
    commit(1, [{"key": f"key{number:08}", "n": 1, "total": number} for number in range(size)])
    sent: list[str] = []
    event.listen(state._store._engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    rows = [{"key": f"key{size // SMALL * number:08}", "n": 1, "total": number} for number in range(SMALL)]
    seconds = []
    for txid in range(2, COMMITS + 2):
        sent.clear()
        begun = time.process_time()
        commit(txid, rows)
        seconds.append(time.process_time() - begun)
    spent = statistics.median(seconds[20:]) * 1000
    print(f"  {name:10} {size:10,} rows: {spent:.2f} ms of processor time, {len(sent)} statements", flush=True)


def main(guarded: Callable[[Any], Callable[[int, Any], None]], rows: int = ROWS) -> None:
    """Measure and print."""
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres

    with tempfile.TemporaryDirectory() as folder, LocalPostgres() as postgres, LocalMariaDB() as mariadb:
        urls = {"SQLite": f"sqlite:///{folder}/state.db", "PostgreSQL": postgres.url(), "MariaDB": mariadb.url()}
        for name, url in urls.items():
            for size in (SMALL, rows):
                measure(name, url, size, guarded)
