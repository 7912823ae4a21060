"""How long `airflow tx diff` takes, and how much memory. Usage: script/bench diff [keys] [sqlite | postgres | both]"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_tx.state import SqlState, Sum
from airflow_tx.state.comparison import compared
from airflow_tx.testing.suites.state_tools import Grants, batch_of
from benchmarks.figures import machine, quiet

KEYS = 1_000_000
CHANGED = 100_003
"""Of so many keys the value of one differs."""
CHUNK = 500_000


def state(url: str, table: str) -> SqlState:
    """A table of one key and two value columns."""
    return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum(), "x": Sum("double")})


def fill(url: str, table: str, keys: int, *, changed: bool) -> None:
    """Commit the keys as one transaction, in chunks."""

    def rows(first: int) -> Iterator[dict[str, Any]]:
        for number in range(first, min(first + CHUNK, keys)):
            yield {"key": f"key {number}", "n": number + (changed and number % CHANGED == 0), "x": number / 7}

    filled = state(url, table)
    grant = replace(Grants()(1), batch=batch_of(position={"offset": keys}))
    filled.raise_fence(grant)
    for chunk, first in enumerate(range(0, keys, CHUNK)):
        filled.write(grant, rows(first), chunk=chunk, complete=False)
    filled.write(replace(grant, portions=-(-keys // CHUNK)), ())


def peak() -> float:
    """The most memory that this process has had, in MB; `getrusage` would count that of its parent."""
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def measure(url: str, keys: int, answer: Any) -> None:
    """Compare both tables in a process of its own, whose peak of memory is that of the comparison."""
    before = peak()
    begun = time.perf_counter()
    found = compared(state(url, "old"), state(url, "new"), tolerance=1e-9)
    seconds = time.perf_counter() - begun
    assert found.different.count == -(-keys // CHANGED), found.different.count
    assert found.equal == keys - found.different.count
    answer.put((seconds, before, peak()))


def compare(name: str, url: str, keys: int) -> None:
    """Fill two tables, compare them, and print."""
    for table in ("old", "new"):
        fill(url, table, keys, changed=table == "new")
    spawned = multiprocessing.get_context("spawn")
    answer = spawned.Queue()
    process = spawned.Process(target=measure, args=(url, keys, answer))
    process.start()
    seconds, before, most = answer.get()
    process.join()
    print(f"  {name:10} {keys:,} keys: {seconds:6.1f} s, peak {most:.0f} MB ({before:.0f} MB before)  {machine()}")


def main(keys: int = KEYS, stores: str = "both") -> None:
    """Measure and print."""
    quiet()
    print(f"Two tables compared; {machine()}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if stores != "postgres":
            compare("SQLite", f"sqlite:///{Path(folder, 'state.db')}", keys)
        if stores != "sqlite":
            from tests.servers.postgres import LocalPostgres

            compare("PostgreSQL", stack.enter_context(LocalPostgres()).url(), keys)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else KEYS, *sys.argv[2:3])
