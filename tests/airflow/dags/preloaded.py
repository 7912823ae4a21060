"""A plain task that says what was imported before it began, though its DAG imports nothing of ours."""

import sys

from airflow.sdk import DAG, task

NAMES = {
    "airflow_tx.transaction.commit.committer",
    "airflow_tx.ledger.store.zookeeper",
    "colorsys",
    "pyspark.sql.connect.session",
}

with DAG("preloaded", schedule=None):

    @task
    def imported() -> list[str]:
        return sorted(NAMES & {*sys.modules})

    imported()
