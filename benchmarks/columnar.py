"""The rows of a batch in any engine: rows a second, and the peak of memory. Usage: script/bench columnar [how many]

The flights of New York so many times (10), as csv files and as Parquet files. Each way reads one batch with all of
them, and counts flights and delays by carrier and airport: dicts of `read()`, record batches of `arrow()`, these in
polars, DuckDB and pandas, and Spark. Each runs in a process of its own; the peak is that of this process, without the
JVM. All of them have to find the same totals.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_tx import FileSource
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.transaction.processing.consumed_rows import ArrowReading, RowsReading
from benchmarks.figures import machine, spark_session
from examples.flights import FLIGHTS, OPTIONS, SCHEMA, write_months

TIMES = 10
ATTEMPT = TransactionAttempt(1, 1)
KEYS = ("carrier", "origin")
SUM_UP = "SELECT carrier, origin, count(*) AS n, sum(dep_delay) AS late FROM flights GROUP BY carrier, origin"
Totals = list[tuple[str, str, int, int]]


def main() -> None:
    """Measure and print."""
    if len(sys.argv) > 2:
        print(json.dumps(measured(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
        return
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    print(f"{FLIGHTS * times:,} flights, {machine()}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, times)
        for kind in ("csv", "parquet"):
            totals = set[str]()
            for name in WAYS:
                command = [sys.executable, "-m", "benchmarks.columnar", name, kind, made]
                told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                totals.add(json.dumps(told["totals"]))
                rate = FLIGHTS * times / told["seconds"]
                print(f"  {kind:8}{name:22}{rate:12,.0f} rows a second {told['peak']:6,} MB")
            assert len(totals) == 1, f"the totals of {kind} differ"


def write(folder: Path, times: int) -> None:
    """Write the flights so many times: a csv file a month, and the same rows as Parquet."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    for path in write_months(folder / "csv"):
        header, _, rows = path.read_text().partition("\n")
        path.write_text(f"{header}\n{rows * times}")
    reader = reader_of(source_of("csv", folder))
    (folder / "parquet").mkdir()
    with pq.ParquetWriter(folder / "parquet/flights.parquet", reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def source_of(kind: str, folder: Path) -> FileSource:
    """Make the source whose only batch has all files."""
    how: dict[str, Any] = {"schema": SCHEMA, "options": OPTIONS} if kind == "csv" else {}
    return FileSource(f"{folder}/{kind}/*.{kind}", 100, format=kind, **how)


def metadata_of(source: FileSource) -> Any:
    """Decide the batch."""
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return batch.metadata


def reader_of(source: FileSource) -> Any:
    """Read the batch as `arrow()` does, without the counts."""
    return source.emit_arrow(ATTEMPT, metadata_of(source))


def flights_of(source: FileSource) -> Any:
    """Read the batch as `arrow()` does, counted and digested."""
    import pyarrow as pa

    reader = reader_of(source)
    return pa.RecordBatchReader.from_batches(reader.schema, ArrowReading([]).passing(reader))


# --- ways ---------------------------------------------------------------------------------------------------------


def by_dicts(source: FileSource) -> Totals:
    flights, late = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in RowsReading().passing(source.emit_batch(ATTEMPT, metadata_of(source))):  # type: ignore[arg-type]
        key = row["carrier"], row["origin"]
        flights[key] += 1
        late[key] += row["dep_delay"] or 0
    return [(*key, number, late[key]) for key, number in flights.items()]


def by_batches(source: FileSource) -> Totals:
    import pyarrow as pa

    flights, late = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for batch in flights_of(source):
        found = pa.Table.from_batches([batch]).group_by(list(KEYS)).aggregate([([], "count_all"), ("dep_delay", "sum")])
        for row in found.to_pylist():
            key = row["carrier"], row["origin"]
            flights[key] += row["count_all"]
            late[key] += row["dep_delay_sum"] or 0
    return [(*key, number, late[key]) for key, number in flights.items()]


def by_duckdb(source: FileSource) -> Totals:
    import duckdb

    flights = flights_of(source)  # noqa: F841 - the query names it
    asked: Any = duckdb.sql
    return [(*row[:3], int(row[3])) for row in asked(SUM_UP).fetchall()]


def by_polars(source: FileSource) -> Totals:
    import polars as pl

    frame = pl.DataFrame(flights_of(source))
    return frame.group_by(*KEYS).agg(pl.len(), pl.col("dep_delay").sum()).rows()


def by_pandas(source: FileSource) -> Totals:
    frame = flights_of(source).read_pandas()
    found = frame.groupby(list(KEYS)).agg(n=("flight", "size"), late=("dep_delay", "sum")).reset_index()
    return [(row.carrier, row.origin, int(row.n), int(row.late)) for row in found.itertuples()]


def by_spark(source: FileSource) -> Totals:
    spark = spark_session()
    frame: Any = source.emit_batch(ATTEMPT, metadata_of(source), spark)
    frame.createOrReplaceTempView("flights")
    return [tuple(row) for row in spark.sql(SUM_UP).collect()]


WAYS: dict[str, Callable[[FileSource], Totals]] = {
    "read()": by_dicts,
    "arrow()": by_batches,
    "arrow() in polars": by_polars,
    "arrow() in DuckDB": by_duckdb,
    "arrow() in pandas": by_pandas,
    "Spark, with its start": by_spark,
}


def measured(name: str, kind: str, folder: Path) -> dict[str, Any]:
    """Read the batch in one way; the seconds, the peak of memory and the totals."""
    began = time.perf_counter()
    totals = WAYS[name](source_of(kind, folder))
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": took, "peak": peak, "totals": sorted(totals)}


if __name__ == "__main__":
    main()
