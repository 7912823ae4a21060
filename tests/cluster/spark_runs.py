"""A worker's process as that of `tests.cluster.runs`, whose task `count` is a Spark application on a cluster.

FIRE_SETTINGS is what the application is submitted with, FIRE_TRIES a folder that knows, as Airflow does, which try of a
task is the current one.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cluster.runs import Runs, serve

_APPLICATION = Path(__file__).with_name("spark_counts.py")


class SparkRuns(Runs):
    """Runs of one topology, whose rows are counted on a standalone Spark."""

    output = "counts"

    def work(self, argument: str) -> None:
        """Count the rows of a run; executors stand still in the folder that follows its name, if one does."""
        run, *folder = argument.split()
        self._submit(run, application_args=folder)

    def work_in_cluster_mode(self, run: str) -> None:
        self._submit(run, deploy_mode="cluster")

    def _submit(self, run: str, **options: Any) -> None:
        from airflow_tx.ledger.attempt import TaskTry
        from airflow_tx.operators.spark import SparkBatchOperator
        from airflow_tx.transaction.processing.task import _KEY, Processing
        from tests.integration.spark_runs import PushingTi

        settings = json.loads(os.environ["FIRE_SETTINGS"])
        operator = SparkBatchOperator(task_id="count", application=str(_APPLICATION), conf=settings, **options)
        ti = PushingTi("count", run, id=uuid.uuid4())
        _replace_try(f"{self.spec.topology}.{run}", str(ti.id))
        ti.xcoms[self.spec.begin, "return_value", -1] = self.begun[run].to_json()
        processing = Processing(self.spec, self.begun[run], TaskTry("count", -1, str(ti.id)), anchored=True)
        processing._ti = ti
        context: Any = {"ti": ti, "dag": SimpleNamespace(fileloc=str(_APPLICATION)), _KEY: processing}
        operator.execute(context)
        self.rows[run] = ti.pushed[self.output]


def _replace_try(of: str, new: str) -> None:
    """Note the current try of a run's task, and that the one before it is not."""
    folder = Path(os.environ["FIRE_TRIES"])
    last = folder / of
    if last.exists():
        (folder / last.read_text()).touch()
    last.write_text(new)


def _is_current_try(task_try: str) -> bool:
    return not Path(os.environ["FIRE_TRIES"], task_try.partition(".")[0]).exists()


if __name__ == "__main__":
    serve(SparkRuns, _is_current_try)
