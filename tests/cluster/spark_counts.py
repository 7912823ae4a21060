"""Sums the numbers of the batch; its executors stand still until a file is there, if a folder for it is given."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


def standing_still(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make what a task does with its rows: leave the address of its host, and wait."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (folder / os.environ["SPARK_LOCAL_IP"]).touch()
        while not (folder / "release").exists():
            time.sleep(0.1)
        yield from batches

    return wait


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    words = "explode(array(struct('all' AS word, number AS n), struct('count' AS word, 1L AS n))) AS row"
    totals = batch.read().selectExpr(words).select("row.*").groupBy("word").agg(F.sum("n").alias("n"))
    # A key that only this attempt has, as in tests.cluster.runs.
    rows = totals.union(spark.sql(f"SELECT 'of {batch.attempt}' AS word, 1L AS n"))
    if batch.args:
        rows = rows.mapInArrow(standing_still(Path(batch.args[0])), "word STRING, n BIGINT")
    batch.emit("counts", rows)
