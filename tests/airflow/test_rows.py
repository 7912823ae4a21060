"""In a real Airflow: a transaction whose tasks have not read every row once is refused, and exact once they have."""

from __future__ import annotations

import pytest

from tests.airflow.stack import NUMBERS_A_FILE, Stack

DAG = "rows_read"


@pytest.mark.long
def test_tasks_that_read_only_a_part_of_the_batch_are_refused_and_a_clear_makes_totals_exact(stack: Stack) -> None:
    airflow, cut_batch, cut_output = stack.airflow, stack.signal(), stack.signal()
    cut_batch.give()
    cut_output.give()
    stack.start(DAG, "r1", cut_batch=cut_batch, cut_output=cut_output)

    airflow.wait_run(DAG, "r1", state="failed", timeout=600)
    refused = airflow.task_log(DAG, "r1", "commit")
    assert "Rows of transaction 1.1 differ: task audit read 100 rows" in refused
    assert "task count 30 rows" in refused
    assert stack.totals(DAG) == {}

    cut_batch.take_back()
    airflow.clear_run(DAG, "r1")
    airflow.wait_run(DAG, "r1", state="failed", timeout=600)
    assert "task check read 1 row of output 'counts' of task count, which emitted 2 rows" in airflow.task_log(
        DAG, "r1", "commit"
    )
    assert stack.totals(DAG) == {}

    cut_output.take_back()
    airflow.clear(DAG, "r1", ["check"], downstream=True)
    airflow.wait_run(DAG, "r1", timeout=600)
    stack.assert_counted_once(DAG, NUMBERS_A_FILE)
    history = stack.ledger(DAG).read("history/1")
    assert history["receipt"]["rows"] == NUMBERS_A_FILE
