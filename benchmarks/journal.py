"""What an entry of the journal costs: bytes, milliseconds to write and to read it. Usage: script/bench journal [rounds]

35 keys lie in the entry. 1,000,000 keys lie in Parquet files that a task has staged, or in files of JSON.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.journal import Entry, JournalArea, StagedFiles
from airflow_tx.outputs.staging.area import StagingArea, write_rows
from airflow_tx.state.aggregators import Columns, Count, Sum
from benchmarks.figures import machine

FEW = 35
MANY = 1_000_000
ROUNDS = 5
COLUMNS = Columns("flights", ("carrier", "day"), {"n": Count(), "miles": Sum()}, {})


def rows(count: int) -> list[dict[str, Any]]:
    """Rows of two keys and two values."""
    return [{"carrier": f"C{n % 16}", "day": n // 16, "n": n % 7, "miles": n * 31} for n in range(count)]


def staged(area: StagingArea, found: list[dict[str, Any]]) -> StagedFiles:
    """What a task has staged, as one file."""
    where = area.try_dir("flights", TransactionAttempt(1, 1), TaskTry("count", -1, "a"))
    output = write_rows(where, "counts", found)
    files = [(where.child(f"counts/{file.name}"), file.rows) for file in output.files]
    return StagedFiles(files, output.columns, incarnation="")


def timed(work: Callable[[], Any]) -> float:
    """Give the seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(
    what: str, given: Iterable[Mapping[str, Any]], folder: Path, rounds: int, files: StagedFiles | None = None
) -> None:
    """Write an entry some times, read it with its rows, and print the medians."""
    journal = JournalArea(StagingArea(str(folder)), "life")
    names: list[str] = []
    sizes: list[int] = []

    def write() -> None:
        written = datetime.now(timezone.utc).isoformat()
        contribution = journal.contribution(COLUMNS, given, day=written[:10], staged=files)
        entry = Entry(
            "flights",
            "life",
            1,
            attempt=1,
            birth="b",
            key="run",
            run_id="run",
            began=written,
            written=written,
            metadata={"files": ["a.csv"]},
            source=("a.Source", {}),
            contributions={"flights": contribution},
        )
        names.append(journal.write(entry))
        sizes.append(len(entry.content) + sum(file.size for file in contribution.files))

    def read() -> None:
        for _ in journal.read(names[-1]).contributions["flights"].rows():
            pass

    wrote = statistics.median(timed(write) for _ in range(rounds))
    took = statistics.median(timed(read) for _ in range(rounds))
    print(f"  {what:<44} {sizes[-1]:>12,} bytes, written in {wrote * 1000:8.1f} ms, read in {took * 1000:8.1f} ms")


def main(rounds: int = ROUNDS) -> None:
    """Measure and print."""
    print(f"Entries of the journal on a disk; {machine()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(f"{FEW} keys, in the entry", rows(FEW), folder, rounds * 20)
        many = rows(MANY)
        files = staged(StagingArea(name), many)
        measure(f"{MANY:,} keys, copied from a staged file", many, folder, rounds, files)
        measure(f"{MANY:,} keys, returned or combined", many, folder, rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
