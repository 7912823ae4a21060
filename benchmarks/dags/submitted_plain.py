"""The same through SparkSubmitOperator, without any guarantee: its application leaves JSON lines for the last task."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, BaseHook, get_current_context, task
from processor_time import note_processor_time

UPSERT = (
    "INSERT INTO submitted_plain VALUES (:key, :n, :total) "
    "ON CONFLICT (key) DO UPDATE SET n = n + excluded.n, total = total + excluded.total"
)
SUMS = Path(os.environ["AIRFLOW_TX_DATA"], "plain_sums")
APPLICATION = Path(__file__).with_name("submitted_plain_app.py")


@task
def choose() -> str:
    """The file of this run."""
    files = sorted(Path(os.environ["AIRFLOW_TX_DATA"], "files").glob("*.csv"))
    conf = get_current_context()["dag_run"].conf or {}
    return str(files[conf["number"]])


@task
def upsert() -> None:
    """Add the sums to the table."""
    rows = [json.loads(line) for file in sorted(SUMS.glob("*.json")) for line in file.read_text().splitlines()]
    connection = sqlite3.connect(BaseHook.get_connection("tx_state").host or "")
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS submitted_plain (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")
        connection.executemany(UPSERT, rows)
    connection.close()


with DAG("submitted_plain", schedule=None, default_args={"on_success_callback": note_processor_time}):
    file = choose()
    summed = SparkSubmitOperator(
        task_id="sum_up", application=str(APPLICATION), application_args=["{{ ti.xcom_pull('choose') }}", str(SUMS)]
    )
    file >> summed >> upsert()
