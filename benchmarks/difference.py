"""Seconds and memory of the difference of two staged outputs, key by key, before a restatement takes the turn.

Both outputs are Parquet files of a text key, a whole number and a double; every tenth key is in one of them alone.
Memory is the largest of the process, less what it had with both outputs staged.
Usage: script/bench difference [keys]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from dataclasses import replace

import pyarrow as pa  # type: ignore[import-untyped]

from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.journal import Contribution, JournalArea, KeptFiles, StagedFiles
from airflow_tx.outputs.staging.area import JOURNAL, Output, StagedFile, StagingArea, write_manifest, write_rows
from airflow_tx.state import MemoryState, Sum
from airflow_tx.transaction.commit.contributions import StagingPlace, difference_of
from airflow_tx.transaction.commit.write import StagedRows
from benchmarks.figures import machine

KEYS = 1_000_000
ROWS_A_FILE = 100_000
ATTEMPT = TransactionAttempt(2, 1)
STATE = MemoryState("sums", keys=["key"], values={"n": Sum(), "total": Sum("double")})


def kept(area: StagingArea, rows: StagedRows) -> Contribution:
    """Give an output as the journal keeps it."""
    path = rows.where.child("sums")
    named = [(f"{path}/{file.name}", file.rows) for file in rows.output.files]
    files = StagedFiles(named, rows.columns, incarnation="")
    found = JournalArea(area, "life").contribution(STATE.columns, rows, day="2026-01-01", staged=files)
    return replace(found, place=KeptFiles(area.files, f"life/{JOURNAL}", "benchmark"))


def staged(area: StagingArea, name: str, keys: int, first: int, step: int) -> StagedRows:
    """Stage an output of so many keys, from a first one on."""
    where = area.try_dir("benchmark", ATTEMPT, TaskTry(name, -1, "1"))
    files: list[StagedFile] = []
    for start in range(first, first + keys, ROWS_A_FILE):
        numbers = range(start, min(start + ROWS_A_FILE, first + keys))
        table = pa.table(
            {
                "key": [f"key {number}" for number in numbers],
                "n": [number * step for number in numbers],
                "total": [number / 7 for number in numbers],
            }
        )
        files += write_rows(where, "sums", table, file=f"part-{start}.parquet").files
    output = Output(tuple(files), ("key", "n", "total"))
    ref = write_manifest(where, {"sums": output})["sums"].to_json()
    return StagedRows(area, ref, STATE, ATTEMPT)


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(keys: int) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        area = StagingArea(folder)
        old = kept(area, staged(area, "old", keys, 0, 1))
        new = staged(area, "new", keys, keys // 10, 2)
        before = megabytes()
        started = time.monotonic()
        found = difference_of(STATE, old, new, StagingPlace(area, "benchmark", ATTEMPT, "commit"))
        seconds = time.monotonic() - started
        assert isinstance(found.rows, StagedRows)
        print(f"difference of {keys:,} keys and {keys:,} keys: {len(found.rows):,} rows in {seconds:.1f} s")
        print(f"memory: {megabytes() - before:.0f} MB more than the {before:.0f} MB of the process ({machine()})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KEYS)
