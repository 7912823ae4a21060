"""Structured Streaming: `foreachBatch` with an upsert and a checkpoint on the disk, in a process of its own.

As a program: URL of the database, folder of the batches, files of a batch, batches, table.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.flight_sums import SCHEMA, flight_sums
from benchmarks.peers.jobs import BEGUN, NUMBERS, Job
from benchmarks.peers.place import Peer, Place, running, upsert

CONF: dict[str, Any] = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Streaming:
    """Structured Streaming."""

    key = "streaming"
    title = "Structured Streaming, `foreachBatch` with an upsert"
    counts: Mapping[str, int] = {"small": 100, "days": 100, "big": 36}

    def __init__(self, place: Place) -> None:
        self._place = place

    @contextmanager
    def opened(self, job: Job, table: str) -> Iterator[Callable[[], bool]]:
        count, folder = self.counts[job.name], self._place.folder / table
        self._place.make_table(table)
        self._place.data.appear(job, folder, count)
        command = [sys.executable, "-m", "benchmarks.peers.streaming", self._place.url, str(folder)]
        command += [str(job.files), str(count), table]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with running(command, folder, env) as has_begun:
            yield has_begun


@contextmanager
def started(place: Place) -> Iterator[list[Peer]]:
    """Each job has a process of its own."""
    yield [Streaming(place)]


def main(url: str, folder: str, files: str, count: str, table: str) -> None:
    """Commit the batches, and wait until the input is closed."""
    import psycopg2  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master("local[2]").config(map=CONF)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    connection = psycopg2.connect(url)

    def commit(rows: Any, batch: int) -> None:
        if batch < int(count):  # numbers have no end
            upsert(connection, table, _flights(rows) if int(files) else _numbers(rows))

    stream = _rows(spark, folder, int(files)).writeStream.foreachBatch(commit)
    Path(folder, BEGUN).touch()
    query = stream.option("checkpointLocation", f"{folder}.checkpoint").start()
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        if (error := query.exception()) is not None:
            raise error
    query.stop()
    spark.stop()


def _rows(spark: Any, folder: str, files: int) -> Any:
    if files == 0:
        return spark.readStream.format("rate-micro-batch").options(rowsPerBatch=NUMBERS, numPartitions=1).load()
    return spark.readStream.schema(SCHEMA).options(header=True, maxFilesPerTrigger=files).csv(f"{folder}/*.csv")


def _numbers(rows: Any) -> list[tuple[str, int, int]]:
    return [(str(row.value % NUMBERS), 1, row.value) for row in rows.collect()]


def _flights(rows: Any) -> list[tuple[str, int, int]]:
    return [tuple(row) for row in flight_sums(rows).collect()]


if __name__ == "__main__":
    main(*sys.argv[1:])
