"""How many flights left, and how late, per carrier and airport of the batch; and how many in all."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    flights = batch.read("carrier", "origin", "dep_delay")
    # A cancelled flight has NA for its delay, and a group may have no other.
    delay = F.coalesce(F.sum(F.expr("try_cast(dep_delay AS BIGINT)")), F.lit(0))
    batch.emit(
        "counts", flights.groupBy("carrier", "origin").agg(F.count("*").alias("flights"), delay.alias("dep_delay"))
    )
    batch.emit("overall", flights.agg(F.count("*").alias("flights")))
