"""Orders and their amount, per product."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, sum


def main(spark, orders, sums):
    found = spark.read.parquet(orders)
    summed = found.groupBy("product").agg(count("*").alias("orders"), sum("amount").alias("amount"))
    summed.write.mode("overwrite").parquet(sums)


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), *sys.argv[1:])
