"""Orders and their amount, per product."""

from pyspark.sql.functions import count, sum

from airflow_tx.spark import batch_app


def sum_up(orders):
    return orders.groupBy("product").agg(count("*").alias("orders"), sum("amount").alias("amount"))


@batch_app
def main(spark, batch):
    batch.emit("sums", sum_up(batch.read_input("orders")))
