"""Orders and their amount, per product."""

from pyspark.sql.functions import count, sum

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    found = batch.read_input("orders")
    summed = found.groupBy("product").agg(count("*").alias("orders"), sum("amount").alias("amount"))
    batch.emit("sums", summed)
