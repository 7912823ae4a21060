"""Clearing what has committed changes nothing; clearing what has failed ends in one commit."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.stack import SIZE, Stack

RUNS = ("committed", "open")


@pytest.mark.worth("what people clear most often, in three ways")
def test_clearing_a_run_after_its_commit_changes_no_total(stack: Stack) -> None:
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


@pytest.mark.worth("the everyday repair, with and without a new attempt")
def test_a_run_whose_processing_failed_is_cleared_and_commits_once(stack: Stack) -> None:
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
def test_a_task_that_starts_before_the_cleared_begin_of_its_run_waits_for_begin(stack: Stack) -> None:
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


@pytest.mark.long
def test_a_notify_task_runs_when_its_run_is_cleared_after_a_failed_commit(stack: Stack) -> None:
    cleared_after_commit(stack, "notified", "commit", "notify")


@pytest.mark.long
def test_a_notify_task_runs_when_its_run_is_cleared_after_a_failed_commit_phase(stack: Stack) -> None:
    cleared_after_commit(stack, "notified_phase", "commit_phase.mark", "notify")


def cleared_after_commit(stack: Stack, dag: str, committer: str, after: str) -> None:
    """A task after the commit fails; whatever of its run is cleared, it runs, and nothing is counted again."""
    airflow, ledger = stack.airflow, stack.ledger(dag)
    unreachable, messages, failing = stack.signal(), stack.signal(), stack.signal()
    unreachable.give()
    conf = {"unreachable": unreachable, "messages": messages}

    def sent() -> list[str]:
        return messages.path.read_text().splitlines() if messages.path.exists() else []

    stack.start(dag, "r1", **conf)
    airflow.wait_run(dag, "r1", state="failed")
    unreachable.take_back()
    history = ledger.history()
    airflow.clear_run(dag, "r1")
    airflow.wait_run(dag, "r1")
    states = airflow.states(dag, "r1")
    assert (states["count"], states[committer], states[after]) == ("skipped", "success", "success")
    assert sent() == ["1 1 [0, 10] [0, 10]"]
    # A part of the run that is cleared again does the same.
    for cleared in (["count"], [committer]):
        airflow.clear(dag, "r1", cleared, downstream=True)
        airflow.wait_run(dag, "r1")
        assert airflow.states(dag, "r1") == states
    assert sent() == 3 * ["1 1 [0, 10] [0, 10]"]
    assert ledger.history() == history

    # A committed run whose tasks were never skipped.
    stack.start(dag, "r2", **conf)
    airflow.wait_run(dag, "r2")
    airflow.clear(dag, "r2", ["count"], downstream=True)
    airflow.wait_run(dag, "r2")
    assert (airflow.states(dag, "r2")["count"], airflow.states(dag, "r2")[after]) == ("skipped", "success")
    assert sent()[3:] == 2 * ["2 2 [10, 20] [10, 20]"]

    # Nothing is sent of what is not committed: a skipped transaction, and a run without data.
    failing.give()
    stack.start(dag, "r3", fail_while=failing, **conf)
    airflow.wait_run(dag, "r3", state="failed")
    stack.skip(dag, 3)
    for run_id in ("r3", "r4"):
        if run_id == "r4":
            stack.start(dag, run_id, **conf)
        else:
            airflow.clear_run(dag, run_id)
        airflow.wait_run(dag, run_id)
        assert airflow.states(dag, run_id)[after] == "skipped"
    airflow.clear(dag, "r3", ["count"], downstream=True)
    airflow.wait_run(dag, "r3")
    assert airflow.states(dag, "r3")[after] == "skipped"
    assert len(sent()) == 5
    stack.assert_counted_once(dag, 2 * SIZE)


@pytest.mark.long
def test_the_log_of_a_cleared_run_names_the_task_after_the_commit_that_airflow_would_skip(stack: Stack) -> None:
    dag, airflow = "needy", stack.airflow
    stack.commit_runs(dag, "r1")
    airflow.clear_run(dag, "r1")
    airflow.wait_run(dag, "r1", state="failed")
    log = airflow.whole_log(dag, "r1", "begin")
    assert "Airflow would also skip late, which follows the committer and count" in log
    stack.assert_counted_once(dag, SIZE)
