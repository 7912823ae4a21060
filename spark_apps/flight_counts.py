"""Count the flights of the batch and their delay per carrier and airport, and count all flights."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    flights = batch.read("carrier", "origin", "dep_delay")
    # The delay of a cancelled flight is NA, and a group may have only cancelled flights.
    delay = F.coalesce(F.sum(F.expr("try_cast(dep_delay AS BIGINT)")), F.lit(0))
    batch.emit(
        "counts", flights.groupBy("carrier", "origin").agg(F.count("*").alias("flights"), delay.alias("dep_delay"))
    )
    batch.emit("overall", flights.agg(F.count("*").alias("flights")))
