"""The Spark application of the DAG `unfit`, which may raise an error with half a surrogate pair."""

from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    if batch.args[0] == "spark":
        raise ValueError("file gr\udcf6sse.csv")
    batch.emit("none", spark.range(0))
