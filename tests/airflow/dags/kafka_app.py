"""Events and their sum, per key."""

from pyspark.sql import functions as F

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    rows = batch.read().select(
        F.expr("CAST(key AS STRING)").alias("key"), F.expr("CAST(CAST(value AS STRING) AS BIGINT)").alias("n")
    )
    batch.emit("counts", rows.groupBy("key").agg(F.count("*").alias("events"), F.sum("n").alias("total")))
