"""An Airflow DAG whose tasks raise an error with half a surrogate pair, as the name of a file that is not UTF-8 has."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, BaseOperator, get_current_context, task
from counting import Numbers, state

from airflow_tx import CommitOperator, SparkBatchOperator, Transaction, current_batch, persistent_aggregate

HALF = "file gr\udcf6sse.csv"


class WritesFile(BaseOperator):
    """An operator of another author, whose code nothing of ours calls."""

    def execute(self, context: Any) -> None:
        if context["dag_run"].conf["fails"] == self.task_id:
            raise ValueError(HALF)


@task
def count() -> list[dict[str, Any]]:
    """Count the rows, or return one that names such a file, which no database takes."""
    fails = get_current_context()["dag_run"].conf["fails"]
    if fails == "count":
        raise ValueError(HALF)
    return [{"parity": HALF if fails == "row" else "even", "numbers": len(list(current_batch().read())), "total": 0}]


with DAG("unfit", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=8):
        update = persistent_aggregate(count(), state=state("unfit"))
        app = SparkBatchOperator(
            task_id="spark",
            application="unfit_app.py",
            application_args=["{{ dag_run.conf['fails'] }}"],
            reliable=False,
            retries=0,
        )
        [WritesFile(task_id="writes"), app] >> CommitOperator(task_id="commit", updates=[update])
