"""Add the columns `route` and `late` to the flights of the batch, and count flights and late flights per carrier.

The argument is the number of minutes beyond which a flight is late.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    late_after = int(batch.args[0])
    enriched = batch.read().select(
        F.col("month").cast("int"),
        F.col("day").cast("int"),
        "carrier",
        "flight",
        F.concat_ws("-", "origin", "dest").alias("route"),
        # The delay of a cancelled flight is NA.
        F.expr(f"coalesce(try_cast(dep_delay AS INT) > {late_after}, false)").alias("late"),
    )
    batch.emit("flights", enriched)
    late = F.sum(F.col("late").cast("bigint"))
    batch.emit("totals", enriched.groupBy("carrier").agg(F.count("*").alias("flights"), late.alias("delayed")))
