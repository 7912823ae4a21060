"""Counts the rows of each key of the batch in executors that stand still until a file is there."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    stem = f"/shared/data/{batch.descriptor.topology}"
    reached, released = f"{stem}.{batch.txid}.reached", f"{stem}.release"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(reached).touch()
        while not Path(released).exists():
            time.sleep(0.2)
        yield from batches

    rows = batch.read().mapInArrow(wait, "key STRING")
    batch.emit("counts", rows.groupBy("key").agg(F.count("*").alias("rows")))
