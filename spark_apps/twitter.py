"""Count the tweets of the batch that name each user, each hashtag, and each pair of a user and a hashtag."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_tx.spark import Batch, batch_app

TWEET = ["partition", "number"]  # Each database has its own numbers.


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    words = batch.read().select(*TWEET, F.explode(F.array_distinct(F.split("message", " "))).alias("word"))
    users = words.where(F.col("word").startswith("@"))
    hashtags = words.where(F.col("word").startswith("#"))
    both = users.join(hashtags.withColumnRenamed("word", "hashtag"), TWEET)
    pairs = both.select(F.concat_ws(":", "word", "hashtag").alias("word"))
    counted = count("users", users).union(count("hashtags", hashtags)).union(count("users_hashtags", pairs))
    batch.emit("counts", counted)


def count(name: str, words: DataFrame) -> DataFrame:
    """Return the count of each word, as fields of the hash `name`."""
    counted = words.groupBy(F.col("word").alias("field")).agg(F.count("*").alias("n"))
    return counted.select(F.lit(name).alias("hash"), "field", "n")
