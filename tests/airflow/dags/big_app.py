"""The application of `big_counts`: that of `sparked`, and every number with how often it came."""

import spark_app
from pyspark.sql import functions as F

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    numbers = batch.read().select(F.col("number").cast("long"))
    batch.emit("each", numbers.groupBy("number").agg(F.count("*").alias("times")))
    spark_app.main(spark, batch)
