"""Airflow DAGs of other shapes: mapped tasks, a Spark application, a Spark connection that does not exist."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task
from counting import Numbers, counted, misbehave, state

from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, current_batch, persistent_aggregate


@task
def beside(ref: dict[str, Any]) -> int:
    """A side branch: how many numbers the staged output tells of."""
    misbehave()
    return sum(row["numbers"] for row in current_batch().read_output(ref))


with DAG("mapped", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(size=12), max_pending=4) as tx:

        @task
        def split(batch: dict[str, Any]) -> list[list[int]]:
            first, end = batch["rows"]
            return [[n for n in range(first, end) if n % 2 == rest] for rest in (0, 1)]

        @task
        def count_part(part: list[int]) -> list[dict[str, Any]]:
            if part[0] % 2:  # the second instance only
                misbehave()
            return [row for number in part for row in counted(range(number, number + 1))]

        @task
        def gather(parts: Any) -> list[dict[str, Any]]:
            total: dict[str, dict[str, Any]] = {}
            for row in (row for part in parts for row in part):
                kept = total.setdefault(row["parity"], {"parity": row["parity"], "numbers": 0, "total": 0})
                kept["numbers"] += row["numbers"]
                kept["total"] += row["total"]
            return list(total.values())

        parts = count_part.expand(part=split(tx.batch))
        CommitOperator(task_id="commit", updates=[persistent_aggregate(gather(parts), state=state("mapped"))])

for dag_id, conn_id in (("sparked", "spark_default"), ("spark_missing", "spark_that_nobody_made")):
    with DAG(dag_id, schedule=None, max_active_runs=16):
        with Transaction(source=FileSource("numbers/*.csv"), max_pending=4):
            counts = SparkBatchOperator(task_id="count", application="spark_app.py", conn_id=conn_id)
            beside(counts.output["counts"])
            updates = [persistent_aggregate(counts.output["counts"], state=state(dag_id))]
            CommitOperator(task_id="commit", updates=updates)
