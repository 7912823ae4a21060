"""Write the flights that left New York in 2013 to a Delta table, and their totals per carrier to a database.

Spark writes the rows of several months at the same time to the folder of the table. Each commit publishes one month, in
one transaction with the totals.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_tx import (
    CommitOperator,
    FileSource,
    SparkBatchOperator,
    Transaction,
    append,
    persistent_aggregate,
)
from airflow_tx.state import Count, DeltaTable, SqlState, Sum

# Where the tables are stored: a folder, or a bucket such as s3://lake.
lake = os.environ.get("AIRFLOW_TX_LAKE") or Path(os.environ.get("AIRFLOW_TX_DATA", "/tmp"), "lake")
flights = DeltaTable(f"{lake}/flights", partition_by=["month"])
totals = SqlState(
    "tx_state",
    table="lake_totals",
    keys=["carrier"],
    values={"flights": Count(), "delayed": Sum()},
)

with DAG("lake", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("months/*.csv", files_per_batch=1), max_pending=4):
        # The number of minutes beyond which a flight is late: an Airflow Variable, which an analyst
        # may change. A replay reads the current value on purpose, since the totals are opaque.
        # Restate a month to apply a new value.
        late_after = "{{ var.value.get('late_after', '15') }}"  # noqa: TX106
        enrich = SparkBatchOperator(task_id="enrich", application="spark_apps/enrich.py", application_args=[late_after])
        CommitOperator(
            task_id="commit",
            updates=[
                append(enrich.output["flights"], state=flights),
                persistent_aggregate(enrich.output["totals"], state=totals),
            ],
        )
