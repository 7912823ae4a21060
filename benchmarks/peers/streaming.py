"""Structured Streaming: `foreachBatch` with an upsert and a checkpoint on the disk, in one Spark session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.peers.flight_sums import SCHEMA, flight_sums
from benchmarks.peers.jobs import NUMBERS, Job, Span
from benchmarks.peers.place import Peer, Place, upsert

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

    def __init__(self, place: Place, spark: Any) -> None:
        self.spans = {"small": Span(20, 100), "days": Span(20, 100), "big": Span(2, 12)}
        self._place = place
        self._spark = spark

    @contextmanager
    def opened(self, job: Job, table: str) -> Iterator[Callable[[], None]]:
        span, folder = self.spans[job.name], self._place.folder / table
        self._place.make_table(table)
        # It goes on without a pause: one batch after the other, so nothing of the rest is done before.
        self._place.data.appear(job, folder, 0, span.all)
        done = {span.warm: threading.Event(), span.all: threading.Event()}
        with closing(self._place.connect()) as connection:

            def commit(rows: Any, batch: int) -> None:
                if batch >= span.all:
                    return  # numbers have no end
                upsert(connection, table, _flights(rows) if job.files else _numbers(rows))
                if batch + 1 in done:
                    done[batch + 1].set()

            stream = self._rows(job, str(folder)).writeStream.foreachBatch(commit)
            query = stream.option("checkpointLocation", f"{folder}.checkpoint").start()

            def wait(event: threading.Event) -> None:
                while not event.wait(0.5):
                    if (error := query.exception()) is not None:
                        raise error

            wait(done[span.warm])
            yield lambda: wait(done[span.all])
            query.stop()

    def _rows(self, job: Job, folder: str) -> Any:
        reader = self._spark.readStream
        if job.files == 0:
            return reader.format("rate-micro-batch").options(rowsPerBatch=NUMBERS, numPartitions=1).load()
        return reader.schema(SCHEMA).options(header=True, maxFilesPerTrigger=job.files).csv(f"{folder}/*.csv")


def _numbers(rows: Any) -> list[tuple[str, int, int]]:
    return [(str(row.value % NUMBERS), 1, row.value) for row in rows.collect()]


def _flights(rows: Any) -> list[tuple[str, int, int]]:
    return [tuple(row) for row in flight_sums(rows).collect()]


@contextmanager
def started(place: Place) -> Iterator[list[Peer]]:
    """Start a session."""
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master("local[2]").config(map=CONF)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield [Streaming(place, spark)]
    finally:
        spark.stop()
