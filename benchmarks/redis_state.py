"""Keys per second of one large commit to a `RedisState`, against pipelined HINCRBYs that guarantee nothing.

A Redis of its own, that writes to no disk. New keys, then the same keys again.
Usage: .venv/bin/python -m benchmarks.redis_state [keys]
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from airflow_tx.ledger.attempt import Token
from airflow_tx.state import Grant, Sum
from airflow_tx.state.redis.state import RedisState
from benchmarks.figures import machine
from tests.servers.redis import LocalRedis

KEYS = 100_000
REPEATS = 5
AT_ONCE = 10_000

Rows = list[dict[str, Any]]
Commit = Callable[[int, Rows], None]


def guarded(server: LocalRedis, prefix: str) -> Commit:
    """A commit of a `RedisState`: fence, values before, scripts."""
    state = RedisState.from_url(server.url(), prefix=prefix, keys=["key"], values={"n": Sum()})
    incarnation = uuid.uuid4().hex
    last: dict[str, int] = {}

    def commit(txid: int, rows: Rows) -> None:
        token = Token(1, txid, 1, txid, uuid.uuid4().hex)
        assert state.raise_and_write(Grant("benchmark", incarnation, token, dict(last)), rows) == len(rows)
        last[state.name] = txid

    return commit


def plain(server: LocalRedis, prefix: str) -> Commit:
    """As the book's committer does: HINCRBY for each key, pipelined."""
    client = server.client()

    def commit(txid: int, rows: Rows) -> None:
        for start in range(0, len(rows), AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for row in rows[start : start + AT_ONCE]:
                pipeline.hincrby(prefix, row["key"], row["n"])
            pipeline.execute()

    return commit


def measured(makers: dict[str, Callable[[LocalRedis, str], Commit]], server: LocalRedis, keys: int) -> None:
    """Time each in turn, so that what else the machine does falls on both."""
    rows = [{"key": f"key {number}", "n": number} for number in range(keys)]
    seconds: dict[tuple[str, str], list[float]] = {}
    for repeat in range(REPEATS):
        for name, make in makers.items():
            commit = make(server, f"{name}{repeat}")
            for txid, what in enumerate(("new", "again"), 1):
                start = time.perf_counter()
                commit(txid, rows)
                seconds.setdefault((name, what), []).append(time.perf_counter() - start)
        server.client().flushall()
    rates = {which: keys / statistics.median(found) for which, found in seconds.items()}
    for what in ("new", "again"):
        guarded_rate, plain_rate = rates["guarded", what], rates["plain", what]
        print(
            f"{what:>6} keys: RedisState {guarded_rate:,.0f} keys/s, pipelined HINCRBY {plain_rate:,.0f} keys/s, "
            f"ratio {guarded_rate / plain_rate:.2f}"
        )


def main() -> None:
    """Measure and print."""
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    print(f"{machine()}; {keys:,} keys, median of {REPEATS}")
    with LocalRedis() as server:
        measured({"guarded": guarded, "plain": plain}, server, keys)


if __name__ == "__main__":
    main()
