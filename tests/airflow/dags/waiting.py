"""Airflow DAGs that wait for the commits of another one: by a sensor, and by an asset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import FileSource, TransactionCommittedSensor, committed_asset

FOLDER = Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere"))
SOURCE = FileSource("coordinated/*.csv")
COMMITTED = committed_asset("coordinated")

with DAG("waiting", schedule=None, is_paused_upon_creation=False):
    txid: Any = "{{ dag_run.conf['txid'] }}"
    TransactionCommittedSensor(task_id="transaction", topology="coordinated", txid=txid)
    TransactionCommittedSensor(
        task_id="file", topology="coordinated", up_to="{{ dag_run.conf['file'] }}", source=SOURCE
    )

with DAG("reporting", schedule=COMMITTED, is_paused_upon_creation=False, max_active_runs=1):

    @task
    def report(triggering_asset_events: Any = None) -> None:
        with (FOLDER / "reported").open("a") as file:
            found = [event.extra["payload"] for event in triggering_asset_events[COMMITTED]]
            # Airflow has no order for the events of one run.
            for payload in sorted(found, key=lambda payload: payload["first"]):
                file.writelines(f"{txid}\n" for txid in _txids(payload))

    report()


def _txids(payload: dict[str, Any]) -> range:
    return range(payload["first"], payload["last"] + 1)
