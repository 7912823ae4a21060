"""The rows of a batch as the other tasks under fire make them, by executors and their Python."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app

REMAINDERS = 7


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    rest = F.udf(lambda number: number % REMAINDERS, "bigint")
    numbers = batch.read().select(F.col("number").cast("bigint").alias("number"))
    keys = F.array(F.format_string("r%d", "number"), F.format_string("k%d", rest("number")))
    parts = numbers.select(F.explode(keys).alias("key"), "number").groupBy("key")
    counted = parts.agg(F.count("*").alias("n"), F.sum("number").alias("total"))
    batch.emit("counted", counted.withColumn("txid", F.col("n") * batch.txid))
