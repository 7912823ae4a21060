"""An Airflow DAG whose tasks may read a part of what they should: its conf names files that make them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task
from counting import state

from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, current_batch, persistent_aggregate


def _cut(rows: Any, name: str) -> list[Any]:
    """Take all rows, or the first one if the run's conf names a file that exists."""
    path = (get_current_context()["dag_run"].conf or {}).get(name)
    return list(islice(rows, 1)) if path and Path(path).exists() else list(rows)


@task
def audit() -> int:
    """Count the rows of the batch."""
    return len(list(current_batch().read()))


@task
def sample() -> Any:
    """Look at one row, which is enough for it."""
    return next(current_batch(reliable=False).read())


@task
def check(ref: dict[str, Any], examples: dict[str, Any]) -> int:
    """Add up what was counted, and look at one example."""
    next(current_batch().read_output(examples))
    return sum(row["numbers"] for row in _cut(current_batch().read_output(ref), "cut_output"))


with DAG("rows_read", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("numbers/*.csv"), max_pending=4):
        arguments = ["{{ dag_run.conf['cut_batch'] }}"]
        counts = SparkBatchOperator(task_id="count", application="rows_app.py", application_args=arguments)
        [audit(), sample(), check(counts.output["counts"], counts.output["examples"])] >> CommitOperator(
            task_id="commit", updates=[persistent_aggregate(counts.output["counts"], state=state("rows_read"))]
        )
