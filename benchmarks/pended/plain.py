"""Ten numbers a run as plain Airflow has them, with one, four and sixteen runs at a time."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, get_current_context, task

from benchmarks.peers.jobs import FIRST, LAST, NUMBERS
from benchmarks.peers.limited_numbers import sums
from benchmarks.peers.plain_tasks import commit, sum_up_numbers
from benchmarks.pended.numbers_of_day import numbers_of_day


@task
def choose() -> list[int]:
    """The first number of the run and that behind its last."""
    first = int((get_current_context()["dag_run"].conf or {})["batch"]) * NUMBERS
    return [first, first + NUMBERS]


@task
def choose_day() -> list[int]:
    """The same of its day."""
    run = get_current_context()["dag_run"]
    assert run.data_interval_start is not None
    numbers = [row["number"] for row in numbers_of_day(run.data_interval_start, run.data_interval_start)]
    return [numbers[0], numbers[-1] + 1]


@task
def sum_up(chosen: list[int]) -> list[dict[str, Any]]:
    """The sums of what was chosen."""
    return sums([*range(*chosen)])


days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
for pending in (1, 4, 16):
    dag_id = f"plain_{pending}"
    with DAG(dag_id, schedule=None, max_active_runs=pending):
        rows: Any = sum_up_numbers(dag_id)
        commit(dag_id, rows)
    dag_id = f"choosing_{pending}"
    with DAG(dag_id, schedule=None, max_active_runs=pending):
        chosen: Any = choose()
        rows = sum_up(chosen)
        commit(dag_id, rows)
    dag_id = f"plain_days_{pending}"
    with DAG(dag_id, schedule=days, start_date=FIRST, end_date=LAST, catchup=False, max_active_runs=pending):
        chosen = choose_day()
        rows = sum_up(chosen)
        commit(dag_id, rows)
