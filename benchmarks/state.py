"""Keys per second of one large commit, against a plain bulk upsert of the same rows that guarantees nothing.

SQLite as it is, and a PostgreSQL that forces its log to the disk. New keys, then the same keys again.
Usage: script/bench state [keys]
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_tx.protocol.attempt import Token
from airflow_tx.state import Grant
from benchmarks import topology
from benchmarks.figures import machine

KEYS = 100_000
REPEATS = 3

Rows = list[dict[str, Any]]
Commit = Callable[[int, Rows], None]


def guarded(url: str, table: str) -> Commit:
    """A commit of a `SqlState`: fence, previous values, conditional upsert."""
    state = topology.state(url, table)
    incarnation = uuid.uuid4().hex
    last: dict[str, int] = {}

    def commit(txid: int, rows: Rows) -> None:
        token = Token(1, txid, 1, txid, uuid.uuid4().hex)
        assert state.raise_and_write(Grant("benchmark", incarnation, token, dict(last)), rows) == len(rows)
        last[state.name] = txid

    return commit


def plain_sqlite(path: Path, table: str) -> Commit:
    """The driver's executemany of an upsert."""
    statement = (
        f"INSERT INTO {table} VALUES (?, ?, ?) "
        "ON CONFLICT (key) DO UPDATE SET n = n + excluded.n, total = total + excluded.total"
    )

    def commit(txid: int, rows: Rows) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")
            connection.executemany(statement, [(row["key"], row["n"], row["total"]) for row in rows])
        connection.close()

    return commit


def plain_postgres(url: str, table: str) -> Commit:
    """psycopg2's execute_values of an upsert, a thousand rows a statement."""

    def commit(txid: int, rows: Rows) -> None:
        import psycopg2  # type: ignore[import-untyped]
        from psycopg2.extras import execute_values  # type: ignore[import-untyped]

        connection = psycopg2.connect(url.replace("+psycopg2", ""))
        with connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")
            execute_values(
                cursor,
                f"INSERT INTO {table} AS old VALUES %s ON CONFLICT (key) DO UPDATE SET n = old.n + excluded.n, "
                "total = old.total + excluded.total",
                [(row["key"], row["n"], row["total"]) for row in rows],
                page_size=1000,
            )
        connection.close()

    return commit


def compare(name: str, make: Sequence[tuple[str, Callable[[str], Commit]]], rows: Rows) -> None:
    """Measure the ways in turn, and print."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(REPEATS):
        for way, made in make:
            commit = made(f"{way}{number}")
            for txid, keys in ((1, "new keys"), (2, "known keys")):
                started = time.perf_counter()
                commit(txid, rows)
                seconds.setdefault((keys, way), []).append(time.perf_counter() - started)
    for keys in ("new keys", "known keys"):
        plain, ours = (statistics.median(seconds[keys, way]) for way in ("plain", "guarded"))
        speeds = f"plain {len(rows) / plain:9,.0f}/s   SqlState {len(rows) / ours:9,.0f}/s"
        print(f"  {name:10} {keys:10}   {speeds}   takes {ours / plain:.2f} times as long")


def main() -> None:
    """Measure and print."""
    from airflow_tx.testing.postgres import LocalPostgres

    count = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    rows: Rows = [{"key": f"key{number:08}", "n": 1, "total": number} for number in range(count)]
    print(f"One commit of {count:,} keys, median of {REPEATS}; {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        compare(
            "SQLite",
            [
                ("plain", lambda table: plain_sqlite(path, table)),
                ("guarded", lambda table: guarded(f"sqlite:///{path}", table)),
            ],
            rows,
        )
    with LocalPostgres(fsync=True) as postgres:
        url = postgres.url(postgres.new_database())
        compare(
            "PostgreSQL",
            [
                ("plain", lambda table: plain_postgres(url, table)),
                ("guarded", lambda table: guarded(url, table)),
            ],
            rows,
        )


if __name__ == "__main__":
    main()
