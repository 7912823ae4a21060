"""How many flights left, and how late, per carrier and airport of the batch."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    flights = batch.read("carrier", "origin", "dep_delay")
    delay = F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("dep_delay")
    batch.emit("counts", flights.groupBy("carrier", "origin").agg(F.count("*").alias("flights"), delay))
