"""The Spark application of the DAG `rows_read`: looks at its rows before it counts them, and may read a part only."""

from pathlib import Path

from pyspark.sql import functions as F

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    numbers = batch.read().withColumn("number", F.col("number").cast("long"))
    assert not numbers.isEmpty()
    numbers.show(1)
    if Path(batch.args[0]).exists():
        numbers = numbers.limit(30)
    numbers = numbers.filter("number >= 0").orderBy("number")
    parity = F.when(F.col("number") % 2 == 0, "even").otherwise("odd").alias("parity")
    batch.emit("counts", numbers.groupBy(parity).agg(F.count("*").alias("numbers"), F.sum("number").alias("total")))
    batch.emit("examples", numbers.limit(3), reliable=False)
