"""The application of `example_spark_counts`: add up the sales of each product in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.spark import Batch, batch_app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@batch_app
def main(spark: SparkSession, batch: Batch) -> None:
    """Add up the amounts. A row whose amount is not a number fails the batch."""
    sales = batch.read().selectExpr("product", "bigint(amount) amount")
    batch.emit("sold", sales.groupBy("product").agg({"amount": "sum"}).toDF("product", "amount"))
