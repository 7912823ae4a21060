"""What the checks of a commit cost. Usage: script/bench checks [how many rows]

35 keys are what a task returns; 10,000,000 rows lie in ten Parquet files that a task has staged. Two checks pass, then
one of them fails: that reads the rows again, for samples and for the digest.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from airflow_tx import check
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import Output, StagingArea, write_manifest, write_rows
from airflow_tx.transaction.commit.check import Check, CheckedCommit, find_all, output_rows
from benchmarks.figures import machine

FEW = 35
MANY = 10_000_000
FILES = 10
ROUNDS = 5
ATTEMPT = TransactionAttempt(1, 1)
OUTPUT: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="counts")
PASSING = (check("no negative sums", OUTPUT, rows="amount >= 0"), check("some rows", OUTPUT, value="count(*) > 0"))
FAILING = (check("no large sums", OUTPUT, rows="amount < 10"), PASSING[1])


def staged(area: StagingArea, count: int) -> dict[str, Any]:
    """Stage so many rows as a task does."""
    where = area.try_dir("flights", ATTEMPT, TaskTry("count", -1, "a"))
    files = list[Any]()
    for number in range(FILES):
        numbers = range(number * count // FILES, (number + 1) * count // FILES)
        columns = {"carrier": [f"C{n % 16}" for n in numbers], "amount": list(numbers), "share": [0.5] * len(numbers)}
        written = write_rows(where, "counts", pa.table(columns), file=f"part-{number}.parquet")
        files += written.files
    return write_manifest(where, {"counts": Output(tuple(files), written.columns)})["counts"].to_json()


def seconds(area: StagingArea, values: Sequence[Any], checks: Sequence[Check], failed: int) -> float:
    """Measure one commit's checks, the median of some rounds."""
    commit: Any = CheckedCommit(None, lambda output: output_rows(values, area, ATTEMPT))  # type: ignore[arg-type]
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert len(list(find_all(checks, commit))) == failed
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        area = StagingArea(folder)
        few = [{"carrier": f"C{n}", "amount": n, "share": 0.5} for n in range(FEW)]
        began = time.perf_counter()
        list(find_all(PASSING, CheckedCommit(None, lambda output: output_rows([few], area, ATTEMPT))))  # type: ignore[arg-type]
        print(f"the first commit of a process, DuckDB included: {1e3 * (time.perf_counter() - began):.0f} ms")
        for name, values, rows in (("returned", [few], FEW), ("staged", [staged(area, count)], count)):
            passing = 1e3 * seconds(area, values, PASSING, 0)
            failing = 1e3 * seconds(area, values, FAILING, 1)
            print(f"{rows:,} rows, {name}: pass {passing:.1f} ms, fail {failing:.1f} ms")


if __name__ == "__main__":
    main()
