"""What it costs to take values exactly, in processor time of all processes.

Usage: script/bench values [how many] [form ...]

The flights of New York so many times (2), as csv files, JSON lines and Parquet files, a file a month. `read()`,
`arrow()` and `batch.read()` in Spark and in Spark Connect, each with the digest of the files that `begin` takes, beside
the readers of pyarrow, polars, DuckDB and Spark. Python makes all 19 columns; Spark has a job that needs all of them,
and one that sums up one by two.

Each way has a process of its own, which reads once before it is measured. The best round counts: the time of that
process and of all that it has started, such as the JVM. All of them have to find the same totals.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil  # type: ignore[import-untyped]

from airflow_tx.base.rows import arrow_types_of, columns_of
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.sources.files.source import FileSource
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.processing.task import Processing
from airflow_tx.transaction.spec import TransactionSpec
from benchmarks.figures import machine, processor_seconds, spark_session
from examples.flights import FLIGHTS, OPTIONS, SCHEMA, write_months

TIMES = 2
ROUNDS = 8
AT_LEAST = 0.5
"""Processor seconds of a round, which may read several times: those of a child are known to 10 ms."""
AT_MOST = 6.0
"""Processor seconds of all rounds, after which no further one begins."""
FORMS = ("csv", "json", "parquet")
SUMMED_UP = ("carrier", "origin", "dep_delay")
ATTEMPT = TransactionAttempt(1, 1)
KINDS = {name: kind for name, _, kind in (each.partition(" ") for each in SCHEMA.split(", "))}
Totals = Mapping[str, int]
"""What the rows add up to."""
Job = tuple[Callable[[], Any], Callable[[], Totals]]
"""What is measured, and the same with its totals."""


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--of"]:
        way, form, of = sys.argv[2:]
        print(json.dumps(measured(way, form, Path(of))))
        return
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    rows = FLIGHTS * times
    print(f"{rows:,} flights, {machine()}, processor time of all processes in microseconds a row", flush=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, times)
        totals = {"rows": rows}
        for form in sys.argv[2:] or FORMS:
            _compare(form, folder, totals)
    print(machine())


def _compare(form: str, folder: Path, totals: dict[str, int]) -> None:
    found: dict[tuple[str, str], float] = {}
    for way, peer in WAYS.items():
        for job, told in _in_a_process(way, form, folder).items():
            for name, total in told["totals"].items():
                assert totals.setdefault(name, total) == total, f"{way}, {form}{job}: {name} {total}, not {totals}"
            found[way, job] = cost = told["seconds"] / totals["rows"] * 1e6
            beside = f"{cost / found[peer, job]:8.2f} of {peer}" if peer else ""
            print(f"  {form:8} {way + job:30} {cost:8.3f}{beside}", flush=True)


def _in_a_process(way: str, form: str, folder: Path) -> Any:
    command = [sys.executable, "-m", "benchmarks.values", "--of", way, form, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{way}, {form}: {done.stderr}"
    # Besides, py4j says there that it ends.
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def write(folder: Path, times: int) -> None:
    """Write the flights so many times: a csv file a month, and the same rows as JSON lines and as Parquet."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    for form in FORMS:
        (folder / form).mkdir()
    for path in write_months(folder / "csv"):
        header, _, rows = path.read_text().partition("\n")
        path.write_text(f"{header}\n{rows * times}")
        lines = (_line(row) for row in csv.DictReader([header, *rows.splitlines()]))
        (folder / "json" / f"{path.stem}.json").write_text("".join(lines) * times)
        pq.write_table(_read_csv(path), folder / "parquet" / f"{path.stem}.parquet")


def _line(row: Mapping[str, str]) -> str:
    values = {name: None if text in ("", "NA") else text for name, text in row.items()}
    typed = {name: int(text) if text and KINDS[name] == "INT" else text for name, text in values.items()}
    return json.dumps(typed, separators=(",", ":")) + "\n"


# --- in Python ----------------------------------------------------------------------------------------------------


def source_of(form: str, folder: Path) -> FileSource:
    """Make the source whose only batch has all files."""
    options = OPTIONS if form == "csv" else {}
    return FileSource(f"{folder}/{form}/*.{form}", 100, format=form, schema=SCHEMA, options=options)


def metadata_of(source: FileSource) -> Any:
    """Decide the batch."""
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return batch.metadata


def by_dicts(form: str, folder: Path) -> Iterator[Any]:
    return _of_a_task(form, folder).read()


def by_batches(form: str, folder: Path) -> Iterator[Any]:
    yield from _of_a_task(form, folder).arrow()


def _of_a_task(form: str, folder: Path) -> CurrentBatch:
    """Make what `current_batch()` returns."""
    source = source_of(form, folder)
    begun = Begun(ATTEMPT, metadata_of(source), None, "", replay=False)
    return CurrentBatch(Processing(TransactionSpec("flights", "flights", source), begun, _new_try(), anchored=True))


def _new_try() -> TaskTry:
    return TaskTry("count", -1, uuid4().hex)


def by_pyarrow(form: str, folder: Path) -> Iterator[Any]:
    import pyarrow.json as pa_json  # type: ignore[import-untyped]
    import pyarrow.parquet as pq

    as_json = pa_json.ParseOptions(explicit_schema=_types())
    readers: dict[str, Callable[[Path], Any]] = {
        "csv": _read_csv,
        "json": lambda path: pa_json.read_json(path, parse_options=as_json),
        "parquet": pq.read_table,
    }
    return map(readers[form], _files(form, folder))


def _read_csv(path: Path) -> Any:
    import pyarrow.csv as pa_csv  # type: ignore[import-untyped]

    how = pa_csv.ConvertOptions(column_types=_types(), null_values=["", "NA"], strings_can_be_null=True)
    return pa_csv.read_csv(path, convert_options=how)


def by_polars(form: str, folder: Path) -> Iterator[Any]:
    import polars as pl

    types = {"INT": pl.Int32, "STRING": pl.String, "TIMESTAMP": pl.String}
    schema: Any = {name: types[kind] for name, kind in KINDS.items()}
    hour = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC", strict=True)
    readers: dict[str, Callable[[Path], Any]] = {
        "csv": lambda path: pl.read_csv(path, schema=schema, null_values=["NA"]).with_columns(hour),
        "json": lambda path: pl.read_ndjson(path, schema=schema).with_columns(hour),
        "parquet": pl.read_parquet,
    }
    return map(readers[form], _files(form, folder))


def by_duckdb(form: str, folder: Path) -> Iterator[Any]:
    import duckdb

    types = {"INT": "INTEGER", "STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}
    columns = ", ".join(f"'{name}': '{types[kind]}'" for name, kind in KINDS.items())
    readers = {
        "csv": f"read_csv(?, header=true, columns={{{columns}}}, nullstr=['', 'NA'])",
        "json": f"read_json(?, format='newline_delimited', columns={{{columns}}})",
        "parquet": "read_parquet(?)",
    }
    with duckdb.connect() as own:
        own.execute("SET TimeZone = 'UTC'")
        yield own.execute(f"SELECT * FROM {readers[form]}", [f"{folder}/{form}/*.{form}"]).to_arrow_table()


def _files(form: str, folder: Path) -> list[Path]:
    return sorted((folder / form).iterdir())


def _types() -> Any:
    import pyarrow as pa

    return pa.schema(arrow_types_of(columns_of(SCHEMA)))


IN_PYTHON: Mapping[str, Callable[[str, Path], Iterator[Any]]] = {
    "pyarrow": by_pyarrow,
    "polars": by_polars,
    "DuckDB": by_duckdb,
    "arrow()": by_batches,
    "read()": by_dicts,
}


def in_python(way: str, form: str, folder: Path) -> Job:
    """Make the job of a way in Python."""

    def read() -> Iterator[Any]:
        return IN_PYTHON[way](form, folder)

    def totals() -> Totals:
        import pyarrow as pa

        return _added(_tables_of_dicts(read()) if way == "read()" else map(pa.table, read()))

    return lambda: deque(read(), maxlen=0), totals


def _tables_of_dicts(rows: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    while chunk := list(islice(rows, 10_000)):
        yield pa.Table.from_pylist(chunk, schema=_types())


def _added(tables: Iterator[Any]) -> Totals:
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    found = {"rows": 0, "late": 0, "hours": 0, "named": 0}
    for each in tables:
        seconds = each["time_hour"].cast(pa.timestamp("s", "UTC")).cast("int64")
        found["rows"] += each.num_rows
        found["late"] += pc.sum(each["dep_delay"]).as_py()
        found["hours"] += pc.sum(seconds).as_py()
        found["named"] += pc.count(each["tailnum"]).as_py()
    return found


# --- in Spark -----------------------------------------------------------------------------------------------------


def in_spark(way: str, form: str, folder: Path, spark: Any) -> Mapping[str, Job]:
    """Make the jobs of a way in Spark."""

    def read(*columns: str) -> Any:
        return (_own if "own" in way else _batch)(spark, form, folder, columns)

    def all_columns() -> Totals:
        return _needed(read())

    def summed_up() -> Totals:
        return _summed_up(read(*SUMMED_UP))

    return {"": (all_columns, all_columns), f", {len(SUMMED_UP)} columns": (summed_up, summed_up)}


def _own(spark: Any, form: str, folder: Path, columns: tuple[str, ...]) -> Any:
    options = {**OPTIONS, "header": True} if form == "csv" else {}
    reader = spark.read.schema(SCHEMA).options(**options, mode="FAILFAST").format(form)
    frame = reader.load(str(folder / form))
    return frame.select(*columns) if columns else frame


def _batch(spark: Any, form: str, folder: Path, columns: tuple[str, ...]) -> Any:
    from airflow_tx.outputs.staging.descriptor import Descriptor
    from airflow_tx.spark.batch import Batch

    source = source_of(form, folder)
    root = str(folder / "staging")
    where = Descriptor("flights", ATTEMPT, _new_try(), metadata_of(source), source.serialize(), root)
    return Batch(where, spark).read(*columns)


def _needed(frame: Any) -> Totals:
    """Let Spark make each value of each row."""
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*frame.columns).bitwiseAND(2**31 - 1)
    found = frame.agg(
        F.count("*").alias("rows"),
        F.sum("dep_delay").alias("late"),
        F.sum(F.unix_seconds("time_hour")).alias("hours"),
        F.count("tailnum").alias("named"),
        F.sum(hashed).alias("hashed"),
    )
    return found.first().asDict()  # type: ignore[no-any-return]


def _summed_up(frame: Any) -> Totals:
    from pyspark.sql import functions as F

    found = frame.groupBy("carrier", "origin").agg(F.count("*").alias("rows"), F.sum("dep_delay").alias("late"))
    groups = found.collect()
    rows, late = (sum(each[name] or 0 for each in groups) for name in ("rows", "late"))
    return {"rows": rows, "late": late, "groups": len(groups)}


@contextmanager
def _session(way: str) -> Iterator[Any]:
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect

    if not way.startswith("Connect"):
        yield spark_session()
        return
    from pyspark.sql import SparkSession

    with LocalSparkConnect() as server:
        spark = SparkSession.builder.remote(server.url).getOrCreate()
        yield spark
        # Before the server: its client would wait for it.
        spark.stop()


# --- measured -----------------------------------------------------------------------------------------------------


WAYS = {
    "pyarrow": "",
    "polars": "pyarrow",
    "DuckDB": "pyarrow",
    "arrow()": "pyarrow",
    "read()": "pyarrow",
    "Spark's own": "",
    "Spark": "Spark's own",
    "Connect's own": "",
    "Connect": "Connect's own",
}
"""The ways, each with the one that it is compared with."""


def measured(way: str, form: str, folder: Path) -> dict[str, Any]:
    """Read in one way: of each job the totals, and the processor seconds of the best round, all processes together."""
    if way in IN_PYTHON:
        return {"": _timed(in_python(way, form, folder))}
    with _session(way) as spark:
        assert "java" in {each.name() for each in psutil.Process().children(recursive=True)}, "the JVM is not measured"
        return {name: _timed(job) for name, job in in_spark(way, form, folder, spark).items()}


def _timed(job: Job) -> dict[str, Any]:
    read, totals = job
    told, found, began = totals(), list[float](), processor_seconds()
    while len(found) < ROUNDS and (not found or processor_seconds() < began + AT_MOST):
        found.append(_round(read))
    return {"totals": told, "seconds": min(found)}


def _round(read: Callable[[], Any]) -> float:
    times, took, began = 0, 0.0, processor_seconds()
    while took < AT_LEAST:
        read()
        times += 1
        took = processor_seconds() - began
    return took / times


if __name__ == "__main__":
    main()
