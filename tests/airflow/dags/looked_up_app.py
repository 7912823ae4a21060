"""Numbers times the weight that a state has for their parity."""

from pyspark.sql import functions as F

from airflow_tx.spark import batch_app
from airflow_tx.state import SqlState, Sum

WEIGHTS = SqlState("looked_up_state", table="weights", keys=["parity"], values={"weight": Sum()})


@batch_app
def main(spark, batch):
    number = F.col("number").cast("long")
    parity = F.when(number % 2 == 0, "even").otherwise("odd")
    found = batch.look_up(WEIGHTS, batch.read().select(number.alias("number"), parity.alias("parity")))
    total = F.sum(F.col("number") * F.col("weight")).alias("total")
    batch.emit("weighed", found.groupBy("parity").agg(F.count("*").alias("numbers"), total))
