"""What a commit of files to a Delta table costs, beside what it publishes; and races of killed committers.

commits: 100 commits of one file each, after the table has had 100, 1,000 and 10,000 commits. A transaction is two
commits of the table: the raise of its fence, and its files. Seconds and processor time are those of a transaction, in a
process of their own, whose peak memory is shown as well. files: the same of transactions of 1, 100 and 10,000 files.
rows: one transaction through spark-submit, in turns with Structured Streaming's Delta sink and with
`df.write.format("delta")` and its options txnAppId and txnVersion. All read the same Parquet files and have the same
Spark. race: two committers, of which one is killed every 40 to 290 ms, with the fence and without.
Usage: script/bench lake [commits | files | rows | race] [how many]
"""

from __future__ import annotations

import json
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from airflow_tx.state import DeltaTable
from airflow_tx.state.api import Grant
from airflow_tx.state.lake.delta import Folder
from airflow_tx.testing.suites.state_tools import Grants
from benchmarks.figures import machine, percentile, quiet
from tests.lake import staged

COMMITS = 10_000
FILES = 10_000
ROWS = 10_000_000
KILLS = 200
MEASURED = 50
"""Transactions that are measured: 100 commits of the table."""
LARGE = 10
"""Transactions of many files that are measured."""
_MARKS = (100, 1_000, 10_000)
_FEW = 100


# --- processes of their own ---------------------------------------------------------------------------------------


def of_own(what: str, *arguments: str) -> str:
    """Do one part in a process of its own, and return the last line that it prints."""
    command = [sys.executable, "-m", "benchmarks.lake", what, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    return done.stdout.splitlines()[-1]


def own_grants(uri: str) -> Grants:
    """Continue with the grants of a table."""
    kept = Path(f"{uri}.grants")
    return pickle.loads(kept.read_bytes()) if kept.exists() else Grants()


def transactions(uri: str, count: int, files: int) -> Iterator[tuple[float, float]]:
    """Commit transactions of so many files; the seconds of each, by the clock and of the processor."""
    table = DeltaTable(uri)
    grants = own_grants(uri)
    first = grants.last.get(table.name, 0) + 1
    for txid in range(first, first + count):
        grant = grants(txid)
        entries = manifest(table, grant, files)
        begun = time.perf_counter(), time.process_time()
        table.raise_and_write(grant, entries)
        yield time.perf_counter() - begun[0], time.process_time() - begun[1]
        grants.final(grant, table)
    Path(f"{uri}.grants").write_bytes(pickle.dumps(grants))


def manifest(table: DeltaTable, grant: Grant, files: int) -> list[dict[str, Any]]:
    """Stage so many files of ten rows, each with the bytes of the first one."""
    (entry,) = staged(table, grant.attempt, pa.table({"n": pa.array(range(10), pa.int64())}))
    folder = Folder(table.uri, {})
    content = Path(table.uri, entry["path"]).read_bytes()
    found = [entry]
    for _ in range(files - 1):
        path = f"{entry['path'].rpartition('/')[0]}/{uuid.uuid4().hex}.parquet"
        with folder.writing(path) as out:
            out.write(content)
        found.append({**entry, "path": path})
    return found


def told(uri: str, count: int, files: int) -> str:
    """Measure transactions, and tell what they took as JSON."""
    both = list(transactions(uri, count, files))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return json.dumps({"wall": [each[0] for each in both], "processor": [each[1] for each in both], "memory": memory})


def shown(told: str) -> str:
    """Show it in one line; the first transaction of a process is apart."""
    found = json.loads(told)
    wall = [1000 * each for each in found["wall"]]
    first, rest = wall[0], wall[1:]
    processor = 1000 * statistics.median(found["processor"][1:])
    spread = f"p50 {statistics.median(rest):8.1f} ms   p99 {percentile(rest, 0.99):8.1f} ms   first {first:8.1f} ms"
    return f"{spread}   processor {processor:8.1f} ms   memory {found['memory']:5.0f} MB"


# --- commits and files --------------------------------------------------------------------------------------------


def commits(most: int = COMMITS) -> None:
    """Let a table grow, and measure at each mark."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"{folder}/grown"
        have = 0
        for mark in (each for each in _MARKS if each <= most):
            begun = time.perf_counter()
            of_own("_grow", uri, str((mark - have) // 2))
            took = time.perf_counter() - begun
            found = shown(of_own("_measure", uri, str(MEASURED), "1"))
            print(f"  after {mark:6,} commits: {found}   (grown in {took:.0f} s)", flush=True)
            have = mark + 2 * MEASURED


def files(most: int = FILES) -> None:
    """Measure transactions of few and of many files."""
    for number in (each for each in (1, 100, 10_000) if each <= most):
        with tempfile.TemporaryDirectory() as folder:
            count = MEASURED if number <= _FEW else LARGE
            found = shown(of_own("_measure", f"{folder}/wide", str(1 + count), str(number)))
        print(f"  of {number:6,} files: {found}", flush=True)


# --- rows ---------------------------------------------------------------------------------------------------------


def rows(count: int = ROWS, rounds: int = 2) -> None:
    """Measure each way to write the same rows, in turns."""
    from benchmarks import lake_rows

    with tempfile.TemporaryDirectory() as folder:
        for line in lake_rows.compared(Path(folder), count, rounds):
            print(f"  {line}", flush=True)


# --- races --------------------------------------------------------------------------------------------------------


def race(kills: int = KILLS) -> None:
    """Count violations with the fence, and without."""
    for how in ((), ("control",)):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.integration.table_fights", folder, str(kills), *how]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"  {'without' if how else 'with'} the fence: {done.stdout.strip()}", flush=True)


_PARTS: dict[str, Callable[..., None]] = {"commits": commits, "files": files, "rows": rows, "race": race}


def main(arguments: Sequence[str]) -> None:
    """Measure all parts, or one, and print."""
    if arguments and arguments[0].startswith("_"):
        what, uri, count, *more = arguments
        if what == "_grow":
            print(len(list(transactions(uri, int(count), 1))))
        else:
            print(told(uri, int(count), int(more[0])))
        return
    quiet()
    print(f"A table of a lake; {machine()}")
    names = arguments[:1] or list(_PARTS)
    for name in names:
        print(f"{name}:", flush=True)
        _PARTS[name](*map(int, arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
