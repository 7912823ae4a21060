"""Keys per second of one large commit, against a plain bulk upsert of the same rows that guarantees nothing.

A SqlState that pushes its aggregators down; one that reads, combines in Python and writes back, as it does for
aggregators that SQL cannot express; and opaque values that are got and put one key at a time, as by a state without
bulk calls, in one database transaction (a tenth of the keys). SQLite as it is, PostgreSQL and MariaDB forcing their
logs to the disk. New keys, then the same keys again. The plain upsert is what each driver has for many rows: an
`executemany` of INSERT … ON CONFLICT on SQLite, psycopg2's `execute_values` with a thousand rows a statement, PyMySQL's
`executemany` of INSERT … ON DUPLICATE KEY, which it sends as statements of many rows.

Then the processor time of a commit of 10 rows, where one process commits one after another.
Usage: script/bench state [keys]; script/bench state spark [keys]; script/bench state flat [rows];
script/bench state together [rows [SQLite | WAL | PostgreSQL | MariaDB ...]]: commits to 1, 2, 3 and 5 states of one
database, and a large table beside a small state; with databases, the latter alone
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airflow_tx.ledger.attempt import Token
from airflow_tx.state import Count, FencedState, Grant, RedisState, SqlState, Sum
from benchmarks import topology
from benchmarks.figures import machine

KEYS = 100_000
REPEATS = 3
SMALL = 10
COMMITS = 200

Rows = list[dict[str, Any]]
Commit = Callable[[int, Rows], None]


@dataclass(frozen=True)
class SumByHand:
    """A sum that no store knows: it is read, combined and written back."""

    name: ClassVar[str] = "sum_by_hand"
    type: ClassVar[str] = "bigint"

    def zero(self) -> int:
        """0."""
        return 0

    def init(self, value: Any) -> Any:
        """The number."""
        return value

    def combine(self, a: Any, b: Any) -> Any:
        """The sum."""
        return a + b


def pushed_down(url: str, table: str) -> Commit:
    """A commit of a `SqlState`: fence, previous values, conditional upsert."""
    return guarded(topology.state(url, table))


def got_and_put(url: str, table: str) -> Commit:
    """The same, reading the values before it writes them."""
    values = {"n": SumByHand(), "total": SumByHand()}
    return guarded(SqlState.from_url(url, table=table, keys=["key"], values=values, kind="opaque"))


def guarded(state: FencedState) -> Commit:
    """Transactions of a state."""
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
        from psycopg2.extras import execute_values  # type: ignore[import-untyped]

        connection = connected_postgres(url)
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


def plain_mariadb(url: str, table: str) -> Commit:
    """PyMySQL's executemany of an upsert, which sends a megabyte of rows a statement."""

    def commit(txid: int, rows: Rows) -> None:
        connection = connected_mariadb(url)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (`key` VARCHAR(255) COLLATE utf8mb4_bin PRIMARY KEY, n BIGINT, "
                "total BIGINT)"
            )
            cursor.executemany(
                f"INSERT INTO {table} VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE n = n + VALUES(n), "
                "total = total + VALUES(total)",
                [(row["key"], row["n"], row["total"]) for row in rows],
            )
            connection.commit()

    return commit


def one_by_one(connect: Callable[[], Any], table: str, *, key: str, upsert: str, mark: str = "%s") -> Commit:
    """A SELECT and an upsert for each key, through the driver: value, value before, txid.

    :param key: the type of the key column.
    :param upsert: what comes after the VALUES.
    :param mark: of a parameter.
    """
    columns = "name, txid, n, prev_n, total, prev_total"
    get = f"SELECT txid, n, prev_n, total, prev_total FROM {table} WHERE name = {mark}"
    put = f"INSERT INTO {table} ({columns}) VALUES ({', '.join([mark] * 6)}) {upsert}"

    def commit(txid: int, rows: Rows) -> None:
        connection = connect()
        cursor = connection.cursor()
        types = f"name {key} PRIMARY KEY, txid BIGINT, n BIGINT, prev_n BIGINT, total BIGINT, prev_total BIGINT"
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} ({types})")
        for row in rows:
            cursor.execute(get, (row["key"],))
            stored, n, prev_n, total, prev_total = cursor.fetchone() or (0, 0, 0, 0, 0)
            base_n, base_total = (prev_n, prev_total) if stored == txid else (n, total)
            cursor.execute(put, (row["key"], txid, base_n + row["n"], base_n, base_total + row["total"], base_total))
        connection.commit()
        connection.close()

    return commit


_UPDATED = ("txid", "n", "prev_n", "total", "prev_total")
ON_CONFLICT = "ON CONFLICT (name) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _UPDATED)
ON_DUPLICATE = "ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in _UPDATED)


def connected_mariadb(url: str) -> Any:
    """PyMySQL on the address of a URL."""
    import pymysql  # type: ignore[import-untyped]
    from sqlalchemy.engine import make_url

    place = make_url(url)
    return pymysql.connect(
        host=place.host, port=place.port, user=place.username, password=place.password, database=place.database
    )


def connected_postgres(url: str) -> Any:
    """psycopg2 on the address of a URL."""
    import psycopg2  # type: ignore[import-untyped]

    return psycopg2.connect(url.replace("+psycopg2", ""))


def compare(name: str, make: Sequence[tuple[str, Callable[[str], Commit]]], rows: Rows) -> None:
    """Measure the ways in turn, and print."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(REPEATS):
        for way, made in make:
            commit = made(f"{way}{number}")
            chosen = rows[: len(rows) // 10] if way == "single" else rows
            for txid, keys in ((1, "new keys"), (2, "known keys")):
                started = time.perf_counter()
                commit(txid, chosen)
                seconds.setdefault((keys, way), []).append((time.perf_counter() - started) / len(chosen))
    for keys in ("new keys", "known keys"):
        ways = ("plain", "pushed", "put", "single")
        plain, pushed, put, single = (statistics.median(seconds[keys, way]) for way in ways)
        speeds = [f"{1 / each:8,.0f}/s" for each in (plain, pushed, put, single)]
        print(
            f"  {name:10} {keys:10}  plain {speeds[0]}   pushed down {speeds[1]} ({pushed / plain:.2f} times as long)"
            f"   get + put {speeds[2]} ({put / plain:.2f} of plain, {put / pushed:.2f} of pushed down)"
            f"   one key at a time {speeds[3]} ({single / pushed:.1f} of pushed down)"
        )


def small_commits(name: str, state: FencedState) -> None:
    """Print what a commit of a few rows costs this process, after those that made the table."""
    commit, seconds, waited = guarded(state), [], []
    rows: Rows = [{"key": f"key{number}", "n": 1, "total": number} for number in range(SMALL)]
    for txid in range(1, COMMITS + 1):
        began, begun = time.perf_counter(), time.process_time()
        commit(txid, rows)
        seconds.append(time.process_time() - begun)
        waited.append(time.perf_counter() - began)
    processor, wall = (statistics.median(each[10:]) * 1000 for each in (seconds, waited))
    print(f"  {name:10} commit of {SMALL} rows: {processor:.2f} ms of processor time, {wall:.1f} ms", flush=True)


def main() -> None:
    """Measure and print."""
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres
    from tests.servers.redis import LocalRedis

    if sys.argv[1:2] == ["spark"]:
        from benchmarks import state_spark

        return state_spark.main(*map(int, sys.argv[2:]))
    if sys.argv[1:2] == ["flat"]:
        from benchmarks import state_flat

        return state_flat.main(guarded, *map(int, sys.argv[2:]))
    if sys.argv[1:2] == ["together"]:
        from benchmarks import state_together

        return state_together.main(*sys.argv[2:])
    count = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    rows: Rows = [{"key": f"key{number:08}", "n": 1, "total": number} for number in range(count)]
    print(f"One commit of {count:,} keys, median of {REPEATS}; {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        compare(
            "SQLite",
            [
                ("plain", lambda table: plain_sqlite(path, table)),
                ("pushed", lambda table: pushed_down(f"sqlite:///{path}", table)),
                ("put", lambda table: got_and_put(f"sqlite:///{path}", table)),
                (
                    "single",
                    lambda table: one_by_one(
                        lambda: sqlite3.connect(path), table, key="TEXT", upsert=ON_CONFLICT, mark="?"
                    ),
                ),
            ],
            rows,
        )
        small_commits("SQLite", topology.state(f"sqlite:///{path}", "small"))
    with LocalPostgres(fsync=True) as postgres:
        url = postgres.url(postgres.new_database())
        compare(
            "PostgreSQL",
            [
                ("plain", lambda table: plain_postgres(url, table)),
                ("pushed", lambda table: pushed_down(url, table)),
                ("put", lambda table: got_and_put(url, table)),
                (
                    "single",
                    lambda table: one_by_one(lambda: connected_postgres(url), table, key="TEXT", upsert=ON_CONFLICT),
                ),
            ],
            rows,
        )
        small_commits("PostgreSQL", topology.state(url, "small"))
    with LocalMariaDB(fsync=True) as mariadb:
        other = mariadb.url(mariadb.new_database())
        compare(
            "MariaDB",
            [
                ("plain", lambda table: plain_mariadb(other, table)),
                ("pushed", lambda table: pushed_down(other, table)),
                ("put", lambda table: got_and_put(other, table)),
                (
                    "single",
                    lambda table: one_by_one(
                        lambda: connected_mariadb(other), table, key="VARCHAR(255)", upsert=ON_DUPLICATE
                    ),
                ),
            ],
            rows,
        )
        small_commits("MariaDB", topology.state(other, "small"))
    with LocalRedis() as redis:
        values: dict[str, Any] = {"n": Count(), "total": Sum()}
        small_commits("Redis", RedisState.from_url(redis.url(), prefix="small", keys=["key"], values=values))


if __name__ == "__main__":
    main()
