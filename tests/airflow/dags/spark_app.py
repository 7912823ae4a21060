"""The Spark application of the DAG `sparked`: how many even and odd numbers, and their sums."""

from pyspark.sql import functions as F

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    numbers = batch.read().withColumn("number", F.col("number").cast("long"))
    parity = F.when(F.col("number") % 2 == 0, "even").otherwise("odd").alias("parity")
    batch.emit("counts", numbers.groupBy(parity).agg(F.count("*").alias("numbers"), F.sum("number").alias("total")))
