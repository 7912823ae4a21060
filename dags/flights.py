"""Count the flights that left New York in 2013, and their delay, per carrier and airport.

Each transaction has one month.

You can clear, retry, kill or backfill the runs, and every flight is still counted once.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

totals = SqlState(
    "tx_state",
    table="flight_totals",
    keys=["carrier", "origin"],
    values={"flights": Count(), "dep_delay": Sum()},
    kind="opaque",
)
overall = SqlState("tx_state", table="flights_overall", keys=[], values={"flights": Count()}, kind="opaque")

with DAG("flights", schedule=None, max_active_runs=16, tags=["transactions", "example"]):
    with Transaction(source=FileSource("flights/*.csv", files_per_batch=1), max_pending=4):
        counts = SparkBatchOperator(task_id="flight_counts", application="spark_apps/flight_counts.py")
        CommitOperator(
            task_id="commit",
            updates=[
                persistent_aggregate(counts.output["counts"], state=totals),
                persistent_aggregate(counts.output["overall"], state=overall),
            ],
        )
