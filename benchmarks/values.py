"""What it costs to take values exactly, in processor time of all processes. Usage: script/bench values [how many rows]

Spark sums up csv and JSON files by its own reader, which rounds and guesses, and by a file source. Python reads a csv
file as texts and with types.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.files.source import FileSource
from benchmarks.figures import machine, spark_session

ROWS = 3_367_760
"""Ten times the flights of the examples."""
PYTHON_ROWS = 500_000
ROUNDS = 3
COLUMNS = {
    "carrier": ("STRING", "concat('C', id % 16)"),
    "origin": ("STRING", "concat('O', id % 3)"),
    "dest": ("STRING", "concat('D', id % 105)"),
    "tailnum": ("STRING", "concat('N', id % 4043)"),
    "distance": ("INT", "id % 4983"),
    "dep_delay": ("DOUBLE", "id % 180 - 20"),
    "day": ("DATE", "date_add(date'2013-01-01', cast(id % 365 as int))"),
}
SCHEMA = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())


def main() -> None:
    """Measure and print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        _spark(Path(folder), rows)
        _python(Path(folder))


def _spark(folder: Path, rows: int) -> None:
    from pyspark.sql import functions as F

    spark, processor = spark_session()
    made = spark.range(rows).select(*(F.expr(expression).alias(name) for name, (_, expression) in COLUMNS.items()))
    for form in ("csv", "json"):
        made.repartition(12).write.format(form).option("header", True).save(f"{folder}/{form}")
        print(f"Spark, {rows:,} rows of {form}: processor time of a job that sums up by carrier")
        readers = {"Spark's own reader": _own(spark, folder, form), "a file source": _exact(spark, folder, form)}
        found = {name: [_seconds(processor, read) for _ in range(ROUNDS + 1)][1:] for name, read in readers.items()}
        base = min(found["Spark's own reader"])
        for name, seconds in found.items():
            print(f"  {name:20} {min(seconds):6.2f} s  {min(seconds) / base:4.2f}")


def _own(spark: Any, folder: Path, form: str) -> Callable[[], Any]:
    reader = spark.read.schema(SCHEMA).option("header", True).option("mode", "FAILFAST").format(form)
    return lambda: _summed(reader.load(f"{folder}/{form}"))


def _exact(spark: Any, folder: Path, form: str) -> Callable[[], Any]:
    source = FileSource(f"{folder}/{form}/*.{form}", 100, format=form, schema=SCHEMA)
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    return lambda: _summed(source.emit_batch(TransactionAttempt(1, 1), batch.metadata, spark))


def _summed(rows: Any) -> Any:
    return rows.groupBy("carrier").agg({"dep_delay": "sum", "distance": "sum"}).collect()


def _seconds(clock: Callable[[], float], work: Callable[[], Any]) -> float:
    began = clock()
    work()
    return clock() - began


def _python(folder: Path) -> None:
    from airflow_tx.sources.files.objects import read_rows

    path = folder / "rows.csv"
    with path.open("w") as file:
        file.write(",".join(COLUMNS) + "\n")
        file.writelines(
            f"C{n % 16},O{n % 3},D{n % 105},N{n % 4043},{n % 4983},{n % 180},2013-01-{n % 28 + 1:02}\n"
            for n in range(PYTHON_ROWS)
        )
    print(f"Python, {PYTHON_ROWS:,} rows of csv")
    for name, schema in (("texts", None), ("types", SCHEMA)):

        def read(schema: str | None = schema) -> int:
            return sum(1 for _ in read_rows(path, "csv", {"header": "true"}, schema, by_name=False))

        seconds = min(_seconds(time.process_time, read) for _ in range(ROUNDS))
        print(f"  {name:20} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
