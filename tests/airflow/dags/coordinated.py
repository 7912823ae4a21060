"""An Airflow DAG whose runs nobody starts: two coordinators do, at once. Both are paused until a test needs them.

A file `<name of a batch's file>.<what>` in the folder of marks makes the task misbehave: `fail` as long as it exists,
`fail-once`, `kill` (the task's process, once), `hold` as long as it exists, `hang` (once, until it is ended).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task
from counting import counted, state

from airflow_tx import (
    CommitOperator,
    FailedBatch,
    FileSource,
    Transaction,
    coordinator_dag,
    current_batch,
    persistent_aggregate,
)

FOLDER = Path(os.environ.get("AIRFLOW_TX_DATA", "/nowhere"))


MARKS = {"timed": "timed_marks", "timed_lane": "timed_lane_marks"}


@task(retries=0)
def count(topology: str = "coordinated") -> list[dict[str, Any]]:
    batch = current_batch()
    name = batch.metadata["files"][0]["name"]
    marks = FOLDER / MARKS.get(topology, "marks")
    while (marks / f"{name}.hold").exists():
        time.sleep(0.1)
    if _take(marks / f"{name}.hang"):
        time.sleep(3600)
    if _take(marks / f"{name}.kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if (marks / f"{name}.fail").exists() or _take(marks / f"{name}.fail-once"):
        raise FailedBatch(f"{name} is not wanted")
    numbers = [int(row["number"]) for row in batch.read()]
    return counted(range(numbers[0], numbers[-1] + 1))


def _take(mark: Path) -> bool:
    if not mark.exists():
        return False
    mark.unlink()
    return True


def call(context: dict[str, Any]) -> None:
    """What is called when it is blocked: a line for each time."""
    with (FOLDER / "called").open("a") as file:
        file.write(f"{context['alarm'].text}\n")


with DAG("coordinated", schedule=None, max_active_runs=8):
    with Transaction(source=FileSource("coordinated/*.csv"), max_pending=4, on_blocked=call) as tx:
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(), state=state("coordinated"))])

OPTIONS: dict[str, Any] = {"max_replays": 2, "replay_backoff": 2, "linger": 5, "is_paused_upon_creation": True}
coordinator_dag("coordinated", **OPTIONS)
coordinator_dag(tx, dag_id="coordinated_twin", **OPTIONS)

# Its coordinator waits in runs, that of the other one in its lane.
for dag_id, lane in (("timed", False), ("timed_lane", True)):
    with DAG(dag_id, schedule=None, max_active_runs=8):
        with Transaction(source=FileSource(f"{dag_id}/*.csv"), max_pending=4, processing_timeout=45) as timed:
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count(dag_id), state=state(dag_id))])
    coordinator_dag(timed, lane=lane, **{**OPTIONS, "max_replays": 10})
