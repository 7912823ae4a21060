"""Count the events of every user in the batch, and add up their amounts."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    events = batch.read().select("value.*")
    batch.emit("counts", events.groupBy("user").agg(F.count("*").alias("events"), F.sum("amount").alias("amount")))
