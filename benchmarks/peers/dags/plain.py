"""The jobs as plain Airflow does them: a run a batch, which its conf names, and an upsert in the order of the runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseHook, task

from benchmarks.peers.flight_sums import SCHEMA, USED, flight_sums
from benchmarks.peers.jobs import JOBS, name_of
from benchmarks.peers.plain_tasks import batch, commit, sum_up_numbers


def sum_up_flights(dag_id: str, files: int) -> Callable[[], Any]:
    """Make the task that sums up the files of a batch on a warm Spark Connect server."""

    @task(task_id="sum_up")
    def sum_up() -> list[dict[str, Any]]:
        folder = Path(os.environ["AIRFLOW_TX_DATA"], dag_id)
        of = batch(folder)
        paths = [str(folder / name_of(of, number)) for number in range(files)]
        from pyspark.sql import SparkSession

        server = BaseHook.get_connection("spark_connect_default")
        spark: Any = SparkSession.builder.remote(f"sc://{server.host}:{server.port}").create()
        try:
            flights = spark.read.schema(SCHEMA).csv(paths, header=True).select(*USED)
            return [row.asDict() for row in flight_sums(flights).collect()]
        finally:
            spark.stop()

    return sum_up


for job in JOBS.values():
    dag_id = f"plain_{job.name}"
    with DAG(dag_id, schedule=None, max_active_runs=4):
        rows: Any = sum_up_flights(dag_id, job.files)() if job.files else sum_up_numbers(dag_id)
        commit(dag_id, rows)
