"""The seeds' figure: A, then B (a committer), C after A and B, D (a committer) after C; all but A commit in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task
from counting import Numbers, count, state

from airflow_tx import CommitOperator, Transaction, commit_phase, persistent_aggregate


@task
def derive(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """C: the rows of A again, each total doubled."""
    conf = get_current_context()["dag_run"].conf or {}
    if "fail_inside" in conf and Path(conf["fail_inside"]).exists():
        raise RuntimeError(f"told to fail as long as {conf['fail_inside']} exists")
    return [{**row, "total": 2 * row["total"]} for row in rows]


with DAG("phased", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=4) as tx:
        a = count(tx.batch)
        with commit_phase() as phase:
            b = CommitOperator(task_id="b", updates=[persistent_aggregate(a, state=state("phased_b"))])
            c = derive.override(task_id="c")(a)
            b >> c
            CommitOperator(task_id="d", updates=[persistent_aggregate(c, state=state("phased_d", "tx_state_2"))])
