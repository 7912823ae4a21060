"""Ten numbers a run as plain Airflow has them, with one, four and sixteen runs at a time."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from benchmarks.peers.plain_tasks import commit, sum_up_numbers

for pending in (1, 4, 16):
    dag_id = f"plain_{pending}"
    with DAG(dag_id, schedule=None, max_active_runs=pending):
        rows: Any = sum_up_numbers(dag_id)
        commit(dag_id, rows)
