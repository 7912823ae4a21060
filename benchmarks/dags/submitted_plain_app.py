"""The application of `submitted_plain`."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.read.options(header=True, enforceSchema=False, mode="FAILFAST").csv(sys.argv[1])
sums = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum(F.col("value").cast("long")).alias("total"))
sums.write.mode("overwrite").json(sys.argv[2])
spark.stop()
