"""Count the orders of each product in the batch, and add up their amounts."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    orders = batch.read()
    counts = orders.groupBy("product").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    batch.emit("counts", counts)
