"""Airflow DAGs whose second batch fails a check; one of them commits in a phase."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG
from counting import Numbers, count, state

from airflow_tx import CommitOperator, Transaction, check, commit_phase, persistent_aggregate


def checks(output: Any) -> list[Any]:
    """The first ten numbers are 45 in all, the next ten 145."""
    return [check("small sums", output, value="sum(total) < 100"), check("no gaps", output, rows="numbers = 5")]


with DAG("checked", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=4) as tx:
        counts = count(tx.batch)
        update = persistent_aggregate(counts, state=state("checked"))
        CommitOperator(task_id="commit", updates=[update], checks=checks(counts))

with DAG("checked_phase", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=4) as tx:
        counts = count(tx.batch)
        with commit_phase():
            update = persistent_aggregate(counts, state=state("checked_phase"))
            CommitOperator(task_id="b", updates=[update], checks=checks(counts))
