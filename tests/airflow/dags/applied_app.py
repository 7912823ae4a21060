"""The application of `applied`: how many even and odd numbers, by way of a view that has one name in all batches."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow_tx import FailedBatch
from airflow_tx.spark import batch_app

MARKS = Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere")) / "applied_marks"


@batch_app
def main(spark, batch):
    name = batch.metadata["files"][0]["name"]
    while (MARKS / f"{name}.hold").exists():
        time.sleep(0.1)
    if (MARKS / f"{name}.fail-once").exists():
        (MARKS / f"{name}.fail-once").unlink()
        raise FailedBatch(f"{name} is not wanted")
    batch.read().createOrReplaceTempView("numbers")
    parity = "IF(number % 2 = 0, 'even', 'odd')"
    batch.emit(
        "parity",
        spark.sql(f"SELECT {parity} AS parity, count(*) AS numbers, sum(number) AS total FROM numbers GROUP BY 1"),
    )
