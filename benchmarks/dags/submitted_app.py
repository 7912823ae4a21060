"""The application of `submitted`."""

from pyspark.sql import functions as F

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    value = F.col("value").cast("long")
    batch.emit("sums", batch.read().groupBy("key").agg(F.count("*").alias("n"), F.sum(value).alias("total")))
