"""Clearing what has committed changes nothing; clearing what has failed ends in one commit."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.stack import SIZE, Stack

RUNS = ("committed", "open")


def test_a_run_cleared_after_its_commit_changes_nothing(stack: Stack) -> None:
    dag, airflow, ledger = "cleared", stack.airflow, stack.ledger("cleared")
    stack.commit_runs(dag, "whole", "downstream", "commit_only")
    history = ledger.history()

    airflow.clear_run(dag, "whole")
    airflow.clear(dag, "downstream", ["count"], downstream=True)
    airflow.clear(dag, "commit_only", ["commit"])
    for run_id in ("whole", "downstream", "commit_only"):
        airflow.wait_run(dag, run_id)

    assert ledger.history() == history
    stack.assert_counted_once(dag, 3 * SIZE)
    whole, downstream, commit_only = (airflow.states(dag, run) for run in ("whole", "downstream", "commit_only"))
    assert whole["begin"] == "success"
    assert "already committed" in airflow.task_log(dag, "whole", "begin").lower()
    assert downstream["count"] == "skipped", airflow.describe_run(dag, "downstream")
    assert commit_only["commit"] == "success"

    stack.commit_runs(dag, "next")
    assert ledger.of_run("next").txid == 4
    stack.assert_counted_once(dag, 4 * SIZE)


def test_a_run_whose_processing_failed_commits_once_when_it_is_cleared(stack: Stack) -> None:
    dag, airflow, ledger = "failing", stack.airflow, stack.ledger("failing")
    failing = stack.signal()
    failing.give()
    for run_id in ("whole", "task"):
        stack.start(dag, run_id, fail_while=failing)
        stack.begun(dag, run_id)
    for run_id in ("whole", "task"):
        airflow.wait_run(dag, run_id, state="failed")
    failing.take_back()
    assert stack.totals(dag) == {}

    airflow.clear_run(dag, "whole")
    airflow.clear_run(dag, "task", only_failed=True)
    for run_id in ("whole", "task"):
        airflow.wait_run(dag, run_id)

    assert ledger.of_run("whole").attempts == 2
    assert ledger.of_run("task").attempts == 1
    assert airflow.task(dag, "task", "begin")["try_number"] == 1
    stack.assert_counted_once(dag, 2 * SIZE)


@pytest.mark.long
def test_a_task_that_airflow_starts_beside_the_cleared_begin_of_its_run_waits_for_it(stack: Stack) -> None:
    dag, airflow, ledger = "overtaken", stack.airflow, stack.ledger("overtaken")
    failing = stack.signal()
    failing.give()
    stack.commit_runs(dag, "committed")
    stack.start(dag, "open", fail_while=failing)
    airflow.wait_run(dag, "open", state="failed")
    failing.take_back()
    held = {run: stack.failpoints.arm("begin.before_ask", "pause", topology=dag, run_id=run) for run in RUNS}
    for run_id in RUNS:
        airflow.clear_run(dag, run_id)
    eventually(lambda: all(each.reached for each in held.values()), 240, "both begin again")
    for run_id in RUNS:
        stack.start_early(dag, run_id, "count")
    for run_id in RUNS:
        airflow.wait_task(dag, run_id, "count", ("up_for_reschedule", "failed"))
        held[run_id].release()
    for run_id in RUNS:
        airflow.wait_run(dag, run_id)
    assert [(entry.run_id, entry.attempts) for entry in ledger.history()] == [("committed", 1), ("open", 2)]
    stack.assert_counted_once(dag, 2 * SIZE)
