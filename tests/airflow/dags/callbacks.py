"""A DAG that writes down for whom it calls somebody, with an asset, and with two run slots for two that wait."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, get_current_context, task
from counting import Numbers, counted, misbehave, state

from airflow_tx import CommitOperator, Transaction, persistent_aggregate

# Of this file alone: the test waits for it.
os.environ["AIRFLOW__TX__YIELD_AFTER"] = "10"
CALLS = Path(os.environ["AIRFLOW_TX_DATA"], "calls")


def call(what: str, context: Any) -> None:
    with CALLS.open("a") as file:
        file.write(f"{what} {context['run_id']}\n")


def call_for_task(context: Any) -> None:
    call("task", context)


def call_for_dag(context: Any) -> None:
    call("dag", context)


@task
def count(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Count the numbers of the batch, or die as a process without memory does."""
    path = (get_current_context()["dag_run"].conf or {}).get("die_while")
    if path and Path(path).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    misbehave()
    return counted(range(*batch["rows"]))


with DAG(
    "callbacks",
    schedule=None,
    max_active_runs=2,
    on_failure_callback=call_for_dag,
    default_args={"on_failure_callback": call_for_task},
):
    with Transaction(source=Numbers(), max_pending=1) as tx:
        update = persistent_aggregate(count(tx.batch), state=state("callbacks"))
        CommitOperator(task_id="commit", updates=[update], outlets=[Asset("x-tx://callbacks")])
