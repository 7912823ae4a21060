"""The application of `connected`, which notes how long its Spark job takes."""

import json
import os
import time
from pathlib import Path

from pyspark.sql import functions as F

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    began = time.monotonic()
    value = F.col("value").cast("long")
    batch.emit("sums", batch.read().groupBy("key").agg(F.count("*").alias("n"), F.sum(value).alias("total")))
    with Path(os.environ["AIRFLOW_TX_DATA"], "spark_job").open("a") as file:
        file.write(json.dumps(time.monotonic() - began) + "\n")
