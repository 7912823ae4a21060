"""Counts the rows of each key of the batch."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    batch.emit("counts", batch.read().groupBy("key").agg(F.count("*").alias("rows")))
