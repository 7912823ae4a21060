"""Counts the rows of each key of the batch in executors that stand still until a file is there."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app

_REACHED = Path("/shared/data/executor.reached")
_RELEASED = Path("/shared/data/executor.release")


def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _REACHED.touch()
    while not _RELEASED.exists():
        time.sleep(0.2)
    yield from batches


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    rows = batch.read().mapInArrow(wait, "key STRING")
    batch.emit("counts", rows.groupBy("key").agg(F.count("*").alias("rows")))
