"""Orders and their amount, per product."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, sum


def sum_up(orders):
    return orders.groupBy("product").agg(count("*").alias("orders"), sum("amount").alias("amount"))


def main(spark, orders, sums):
    sum_up(spark.read.parquet(orders)).write.mode("overwrite").parquet(sums)


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), *sys.argv[1:])
