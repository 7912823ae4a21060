"""Sales of a shop: extract the orders of a day, sum them up on Spark, add the sums to the totals."""

from datetime import datetime
from pathlib import Path

import pandas as pd
from airflow.sdk import DAG, BaseHook, task
from sqlalchemy import create_engine

import airflow_tx as tx
from airflow_tx.state import Count, SqlState, Sum

DAILY = {"schedule": "@daily", "start_date": datetime(2026, 1, 1)}
SUM_UP = str(Path(__file__).with_name("sum_up.py"))
ORDERS = "SELECT product, amount FROM orders WHERE ordered_at >= %(start)s AND ordered_at < %(end)s"
totals = SqlState("shop", table="sales_totals", keys=["product"], values={"orders": Count(), "amount": Sum()})


def shop():
    uri = BaseHook.get_connection("shop").get_uri()
    return create_engine(uri.replace("postgres", "postgresql+psycopg2", 1))


@task
def extract(data_interval_start=None, data_interval_end=None):
    day = {"start": data_interval_start, "end": data_interval_end}
    orders = pd.read_sql(ORDERS, shop(), params=day)
    return tx.current_batch().stage(orders)


with DAG("daily_sales", **DAILY), tx.Transaction(source=tx.DataIntervalSource(kind="opaque")):
    sum_up = tx.SparkBatchOperator(task_id="sum_up", application=SUM_UP, inputs={"orders": extract()})
    tx.CommitOperator(task_id="upsert", updates=[tx.persistent_aggregate(sum_up.output["sums"], state=totals)])
