"""Sums up the flights of a batch."""

from pyspark.sql import SparkSession

from airflow_tx.spark import Batch, batch_app
from benchmarks.peers.flight_sums import USED, flight_sums


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    batch.emit("sums", flight_sums(batch.read(*USED)))
