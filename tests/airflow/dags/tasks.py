"""Airflow DAGs with plain tasks of every kind; nothing in them knows of transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, get_current_context, task
from counting import Numbers, counted, misbehave, state

from airflow_tx import CommitOperator, FailedBatch, Transaction, current_batch, persistent_aggregate

Rows = list[dict[str, Any]]


@task
def give_up() -> Rows:
    """Fails its batch as long as the file in the run's conf exists, however many retries it has."""
    batch = current_batch()
    path = (get_current_context()["dag_run"].conf or {}).get("fail_while")
    if path and Path(path).exists():
        raise FailedBatch("these numbers are not wanted")
    return counted(range(*batch.metadata))


with DAG("failed_batch", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=4):
        update = persistent_aggregate(give_up.override(retries=5)(), state=state("failed_batch"))
        CommitOperator(task_id="commit", updates=[update])


@task(multiple_outputs=True)
def both(batch: dict[str, Any]) -> dict[str, Rows]:
    rows = counted(range(*batch["rows"]))
    return {"even": rows[:1], "odd": rows[1:]}


@task
def numbers(batch: dict[str, Any]) -> list[int]:
    return list(range(*batch["rows"]))


@task
def one(number: int) -> Rows:
    misbehave()
    return counted(range(number, number + 1))


@task.branch
def choose() -> str:
    return "taken"


@task
def taken() -> Rows:
    return counted(range(*current_batch().metadata))


@task
def left() -> Rows:
    raise AssertionError("this branch is not taken")


@task(trigger_rule="none_failed_min_one_success")
def joined(taken: Rows, left: Rows | None) -> Rows:
    return taken + (left or [])


COMMITTED = Asset("x-tx://shapes")

with DAG("task_shapes", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=4) as tx:
        split = both(tx.batch)
        parts = {"taken": taken(), "left": left()}
        choose() >> [parts["taken"], parts["left"]]
        CommitOperator(
            task_id="commit",
            outlets=[COMMITTED],
            updates=[
                persistent_aggregate(split["even"], state=state("shape_even")),
                persistent_aggregate(split["odd"], state=state("shape_odd")),
                persistent_aggregate(one.expand(number=numbers(tx.batch)), state=state("shape_mapped")),
                persistent_aggregate(joined(**parts), state=state("shape_joined")),
            ],
        )

for name in ("begun_twice", "begun_again"):
    with DAG(name, schedule=None, max_active_runs=16):
        with Transaction(source=Numbers(), max_pending=4) as tx:
            CommitOperator(task_id="commit", updates=[persistent_aggregate(taken(), state=state(name))])
