"""Count the words of the batch."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    words = batch.read().select(F.explode(F.split("sentence", " ")).alias("word"))
    batch.emit("counts", words.groupBy("word").agg(F.count("*").alias("count")))
