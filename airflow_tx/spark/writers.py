"""Write an update with Spark executors. Staged Parquet is repartitioned by key, and each partition is one chunk.

The partition of each row depends only on its key, and the files never change. So a retried or speculative task computes
the same chunk with the same keys. A state that writes this chunk twice has the same values as after one write. Two
chunks contain the same key only if the output has this key twice, and the state refuses such an output. The fence
refuses an outranked writer at each chunk.

The grant, and the state with its address and password, are one pickle (`seal`). This pickle is never in a command line,
a file, a setting or a log. A driver of spark-submit receives it through a named pipe. Tasks receive it within their
code. It is masked with a key, since a server may log plans. The key is a session property. Spark redacts its value
because of its name.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_tx.base import errors
from airflow_tx.base.errors import FenceOutranked, StateError, TxError
from airflow_tx.base.rows import held_settings, spark_reader
from airflow_tx.ledger import NOTHING_WRITTEN, Grant, RowsDigest, Written
from airflow_tx.outputs import Output, StagedFile
from airflow_tx.spark.new_values import KEY, OutputFolder, pickled, veiled, write_chunk
from airflow_tx.spark.observed import observed_once
from airflow_tx.state import FencedState

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession


WRITERS_PROGRAM = __file__
"""The path of the file that spark-submit runs."""

# The capacity of the pipe in bytes. It is the maximum for an unprivileged user on Linux.
_PIPE = 2**20
# Columns with the position of a row, for writers that need an order.
_FILE = "airflow_tx_file"
_INDEX = "airflow_tx_index"
_SETTINGS = {
    # Without adaptive execution, the partition of a key depends only on the key and the number of partitions.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.caseSensitive": "true",
    # Spark then reads the same values as pyarrow.
    "spark.sql.session.timeZone": "UTC",
}
_NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"


class WritersFailed(TxError):
    """A Spark job of writers has ended without a response from every writer."""

    template = (
        "The Spark writers of state {state!r} in transaction {txid} failed: {reason}.",
        "After a retry of the commit, their rows count once. Executors need airflow_tx and the driver of the database.",
    )


@dataclass(frozen=True)
class WriteJob:
    """The instructions for a driver, without secrets.

    :param name: the name of the Spark application.
    :param files: the staged Parquet files, with URIs for Spark's readers.
    :param rows: the number of rows in the files.
    :param columns: the columns to read, including the keys.
    :param keys: the names of the key columns.
    :param partitions: the number of chunks.
    :param ordered: whether a key may have several rows. A writer must process them in file order.
    """

    name: str
    files: Sequence[str]
    rows: int
    columns: Sequence[str]
    keys: Sequence[str]
    partitions: int
    ordered: bool = False


def seal(
    state: FencedState, grant: Grant, schema: pa.Schema, place: OutputFolder | None = None
) -> bytes:
    """Return the data that a writer needs, as bytes. It contains classes of the DAG file, which executors do not have.

    :param state: a state that works without Airflow.
    :param grant: the grant.
    :param schema: the schema of the rows in pyarrow.
    :param place: the place for new values of the keys, or None if the update outputs no new values.
    """
    # A writer compares only the token, and the fence already has the batch. So the other fields of
    # the grant are omitted.
    return pickled(
        (
            state,
            replace(grant, last_txids={}, batch=None, claim=None),
            schema.serialize().to_pybytes(),
            place,
        )
    )


# --- in the driver, or the client ---------------------------------------------------------------------------------


def run_writers(spark: SparkSession, job: WriteJob, sealed: bytes) -> list[dict[str, Any]]:
    """Write an update through executors. Return the report of each chunk: `keys`, or `error` and its `fields`."""
    from pyspark.sql import functions as F

    key = os.urandom(32)
    for name, value in {**held_settings("parquet"), **_SETTINGS, KEY: key.hex()}.items():
        spark.conf.set(name, value)
    hidden = veiled(sealed, key)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield write_chunk(hidden, batches)

    columns = {name: F.col("`" + name.replace("`", "``") + "`") for name in job.columns}
    place = [F.col("_metadata.file_name").alias(_FILE), F.col("_metadata.row_index").alias(_INDEX)]
    reader = spark_reader(spark, "parquet")
    # These are the same integers as in pyarrow, see `write_chunk`.
    spark.conf.set(_NANOSECONDS, "true")
    scanned = reader.load(list(job.files)).select(
        *columns.values(), *(place if job.ordered else ())
    )
    rows, read = observed_once(scanned, job.columns, job.rows)
    parts = rows.repartition(job.partitions, *[columns[name] for name in job.keys])
    if job.ordered:
        sorted_ = parts.sortWithinPartitions(*[columns[name] for name in job.keys], _FILE, _INDEX)
        parts = sorted_.select(*columns.values())
    told = [json.loads(row["told"]) for row in parts.mapInArrow(write, "told string").collect()]
    found = read()
    return told if found is None else [*told, {"keys": 0, "rows": 0, "read": found.to_json()}]


def read_by(told: Iterable[Mapping[str, Any]]) -> RowsDigest | None:
    """Return the number and the digest of the rows that Spark has read for the chunks, or None if they are unknown."""
    return next((RowsDigest.from_json(each["read"]) for each in told if "read" in each), None)


def staged_parts(told: Iterable[Mapping[str, Any]]) -> list[Output]:
    """Return the parts of new values that the chunks staged."""
    found = [chunk["part"] for chunk in told if chunk.get("part")]
    return [
        Output(tuple(StagedFile(**file) for file in part["files"]), tuple(part["columns"]))
        for part in found
    ]


def total(told: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the number of keys that all chunks wrote, and the number of rows for these keys.

    :raises TxError: the error of a refused chunk. The refusal of a fence precedes other errors.
    """
    found = list(told)
    refused = [
        rebuilt_error(chunk["error"], chunk["fields"]) for chunk in found if "error" in chunk
    ]
    for error in sorted(refused, key=lambda error: not isinstance(error, FenceOutranked)):
        raise error
    return sum(chunk["keys"] for chunk in found), sum(chunk["rows"] for chunk in found)


def written_by(told: Iterable[Mapping[str, Any]]) -> Written:
    """Return the total of the written counts over all chunks."""
    found = (Written(**chunk["written"]) for chunk in told if chunk["keys"])
    return sum(found, NOTHING_WRITTEN)


def portions_of(told: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of chunks that wrote rows."""
    return sum(1 for chunk in told if chunk["keys"])


def rebuilt_error(name: str, fields: Mapping[str, Any]) -> TxError:
    """Return the error that a chunk has reported."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TxError):
        with suppress(KeyError, TypeError):
            return kind.from_stored(fields)
    return StateError(state=fields.get("state", "?"), problem=f"{name}: {dict(fields)}", remedy="")


# --- between a committer and a driver on its machine --------------------------------------------------------------


@contextmanager
def sealed_pipe(path: str, sealed: bytes) -> Iterator[None]:
    """Write the data `sealed` to a new named pipe until the `with` block ends. The data is never written to disk.

    The driver ends when the pipe is closed, at the end of the block or of this process.
    """
    os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        if sys.platform == "linux":
            with suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        message = len(sealed).to_bytes(8, "big") + sealed
        try:
            written = os.write(pipe, message)
        except BlockingIOError:
            written = 0
        if written < len(message):
            problem = f"the state and its aggregators have {len(message)} bytes, too many for a pipe of this machine"
            raise WritersFailed(
                state="?", txid="?", reason=f'{problem}; use writers="worker" or Spark Connect'
            )
        yield
    finally:
        os.close(pipe)
        os.unlink(path)


def taken_over(path: str, on_end: Callable[[], None]) -> bytes:
    """Read the data that `sealed_pipe` writes to a named pipe.

    :param path: the path of the named pipe.
    :param on_end: called in another thread when the pipe is closed.
    :raises EOFError: the pipe is already closed.
    """
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(pipe, True)
    sealed = _read(pipe, int.from_bytes(_read(pipe, 8), "big"))

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        on_end()

    threading.Thread(target=watch, daemon=True).start()
    return sealed


def _read(pipe: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = os.read(pipe, size - len(found))
        if not part:
            raise EOFError("the commit task has ended")
        found += part
    return found


def write_job(path: str, job: WriteJob) -> None:
    """Write the driver's job to a file."""
    with open(path, "w") as file:
        json.dump(asdict(job), file)


def main(folder: str) -> int:
    """Run the writers of an update in a driver of spark-submit.

    :param folder: the folder of the committer on this machine, with `job` and `pipe`. The driver writes the file `told`
        to it.
    :return: the exit code.
    """
    sealed = taken_over(f"{folder}/pipe", lambda: os._exit(3))
    with open(f"{folder}/job") as file:
        job = WriteJob(**json.load(file))
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(job.name).getOrCreate()
    try:
        told = run_writers(spark, job, sealed)
    finally:
        spark.stop()
    with open(f"{folder}/told.part", "w") as file:
        json.dump(told, file)
    os.replace(f"{folder}/told.part", f"{folder}/told")
    return 0


if __name__ == "__main__":
    # Do not import from this file's folder, whose modules have common names.
    sys.path.pop(0)
    from airflow_tx.spark import writers

    sys.exit(writers.main(sys.argv[1]))
