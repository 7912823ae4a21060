"""DAGs whose coordinators take the days of 2013 in their lanes: with Python, and twice with a Spark application."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_tx import (
    CommitOperator,
    DataIntervalSource,
    SparkConnectBatchOperator,
    Transaction,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)
from airflow_tx.state import Count, SqlState, Sum

FIRST, LAST = (datetime(2013, month, day, tzinfo=timezone.utc) for month, day in ((1, 1), (12, 31)))


@task
def count() -> list[dict[str, Any]]:
    """How many flights left, and how late, per carrier and airport of the day."""
    flights, delays = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in current_batch().read():
        key = row["carrier"], row["origin"]
        flights[key] += 1
        delays[key] += 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
    return [
        {"carrier": carrier, "origin": origin, "flights": number, "dep_delay": delays[carrier, origin]}
        for (carrier, origin), number in flights.items()
    ]


days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
for dag_id in ("year_python", "year_spark", "year_warm"):
    with DAG(dag_id, schedule=days, start_date=FIRST, end_date=LAST, catchup=False, max_active_runs=16):
        source = DataIntervalSource("benchmarks.laned.flights_of_day.flights_of_day", in_order=True)
        with Transaction(source=source, max_pending=4):
            if dag_id == "year_python":
                counts: Any = count()
            else:
                application = SparkConnectBatchOperator(task_id="count", application="../lane_spark_app.py")
                counts = application.output["counts"]
            values: Any = {"flights": Count(), "dep_delay": Sum()}
            state = SqlState("tx_state", table=dag_id, keys=["carrier", "origin"], values=values)
            CommitOperator(task_id="commit", updates=[persistent_aggregate(counts, state=state)])
    coordinator_dag(dag_id, lane=True)
