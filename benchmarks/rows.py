"""What counting and digesting rows costs, in processor time of all processes. Usage: script/bench rows [how many]

Spark: a job that sums up 10 million rows of CSV files, with and without; of the job alone, and of an application with
the start of its session. Python: a task that reads rows of a CSV file. Arrow: what a committer reads.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, processor_seconds, spark_session

ROWS = 10_000_000
PYTHON_ROWS = 500_000
ROUNDS = 3
COLUMNS = {
    "carrier": "concat('C', id % 16)",
    "origin": "concat('O', id % 3)",
    "dest": "concat('D', id % 105)",
    "tailnum": "concat('N', id % 4043)",
    "distance": "id % 4983",
    "dep_delay": "id % 180 - 20",
}


def main() -> None:
    """Measure and print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        _python(Path(folder))
        _spark(Path(folder), rows)


# --- Spark --------------------------------------------------------------------------------------------------------


def _spark(folder: Path, rows: int) -> None:
    from pyspark.sql import functions as F

    from airflow_tx.spark.observed import RowsObserver

    before = processor_seconds()
    spark = spark_session()
    start = processor_seconds() - before
    files, out = f"file://{folder}/in", f"file://{folder}/out"
    made = spark.range(0, rows, 1, 8).select(*(F.expr(how).alias(name) for name, how in COLUMNS.items()))
    made.write.csv(files)
    schema = ", ".join(f"{name} STRING" for name in COLUMNS)
    used = ("carrier", "origin", "dep_delay")

    def flights(*columns: str) -> Any:
        read = spark.read.schema(schema).csv(files)
        return read.select(*columns) if columns else read

    def counts(df: Any) -> Any:
        return df.groupBy("carrier", "origin").agg(F.count("*").alias("n"), F.expr("sum(try_cast(dep_delay AS INT))"))

    def plain() -> None:
        counts(flights()).write.mode("overwrite").parquet(out)

    def observed(columns: tuple[str, ...], hashed: tuple[str, ...] | None) -> None:
        observer = RowsObserver()
        observer.write(counts(observer.reading(flights(*columns), columns=hashed)), out)
        assert [each.found.rows for each in observer.read()] == [rows]
        observer.close()

    jobs: dict[str, Callable[[], None]] = {
        "neither": plain,
        "counted: batch.read()": lambda: observed((), ()),
        "counted and digested: batch.read(three columns)": lambda: observed(used, None),
    }
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(ROUNDS + 1):
        for name, job in jobs.items():
            began = processor_seconds()
            job()
            if number:  # the first of each warms up
                found[name].append(processor_seconds() - began)
    spark.stop()
    base = min(found["neither"])
    print(f"Spark, {rows:,} rows, start of the session {start:.1f} s")
    for name, seconds in found.items():
        more = min(seconds) - base
        shares = f"{100 * more / base:+5.1f} % of the job {100 * more / (start + base):+5.1f} % of the application"
        print(f"  {name:50} {min(seconds):6.2f} s {shares}")


# --- Python -------------------------------------------------------------------------------------------------------


def _python(folder: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.ledger.attempt import TransactionAttempt
    from airflow_tx.outputs.staging.row_hash import digest_of_batch
    from airflow_tx.sources.files.source import FileSource
    from airflow_tx.transaction.processing.consumed_rows import RowsReading

    path = folder / "rows.csv"
    with path.open("w") as file:
        file.write(",".join(COLUMNS) + "\n")
        file.writelines(f"C{n % 16},O{n % 3},D{n % 105},N{n % 4043},{n % 4983},{n % 180}\n" for n in range(PYTHON_ROWS))

    source = FileSource(str(path))
    batch = source.initialize_transaction(1, None)
    assert batch is not None

    def rows() -> Any:
        return source.emit_batch(TransactionAttempt(1, 1), batch.metadata)

    def seconds(read: Callable[[], Any]) -> float:
        found = []
        for _ in range(ROUNDS):
            began = time.process_time()
            read()
            found.append(time.process_time() - began)
        return min(found)

    plain = seconds(lambda: sum(1 for _ in rows()))
    counted = seconds(lambda: sum(1 for _ in RowsReading().passing(rows())))
    print(f"Python, {PYTHON_ROWS:,} rows of a CSV file")
    each = 1e9 * (counted - plain) / PYTHON_ROWS
    print(f"  neither {plain:6.2f} s, counted and digested {counted:6.2f} s: {each:.0f} ns a row")
    columns = {"key": [f"key {n}" for n in range(PYTHON_ROWS)], "n": list(range(PYTHON_ROWS)), "x": [0.5] * PYTHON_ROWS}
    batches = pa.table(columns).to_batches(10_000)
    arrow = seconds(lambda: [digest_of_batch(batch) for batch in batches])
    print(f"Arrow, {PYTHON_ROWS:,} rows of a text, a long and a double: {1e9 * arrow / PYTHON_ROWS:.0f} ns a row")


if __name__ == "__main__":
    main()
