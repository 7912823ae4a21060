"""Sales of a shop: extract the orders of a day, sum them up on Spark, add the sums to the totals."""

from datetime import datetime
from pathlib import Path

import pandas as pd
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, BaseHook, task
from sqlalchemy import create_engine

DAILY = {"schedule": "@daily", "start_date": datetime(2026, 1, 1)}
SUM_UP = str(Path(__file__).with_name("sum_up.py"))
SUMS = "/data/shop/sums/{{ ds }}"
ORDERS = "SELECT product, amount FROM orders WHERE ordered_at >= %(start)s AND ordered_at < %(end)s"
UPSERT = """
    INSERT INTO sales (product, orders, amount) VALUES (%(product)s, %(orders)s, %(amount)s)
    ON CONFLICT (product) DO UPDATE
    SET orders = sales.orders + EXCLUDED.orders, amount = sales.amount + EXCLUDED.amount
"""


def shop():
    uri = BaseHook.get_connection("shop").get_uri()
    return create_engine(uri.replace("postgres", "postgresql+psycopg2", 1))


@task
def extract(data_interval_start=None, data_interval_end=None):
    day = {"start": data_interval_start, "end": data_interval_end}
    orders = pd.read_sql(ORDERS, shop(), params=day)
    path = f"/data/shop/orders-{data_interval_start:%Y-%m-%d}.parquet"
    orders.to_parquet(path)
    return path


@task
def upsert(sums):
    rows = pd.read_parquet(sums).to_dict("records")
    with shop().begin() as connection:
        connection.exec_driver_sql(UPSERT, rows)


with DAG("daily_sales", **DAILY):
    sum_up = SparkSubmitOperator(task_id="sum_up", application=SUM_UP, application_args=[extract(), SUMS])
    sum_up >> upsert(SUMS)
