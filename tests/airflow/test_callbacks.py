"""What others learn of runs: a killed task's in the lists, no callback for a yield, and one asset event a commit."""

from __future__ import annotations

import pytest

from tests.airflow.ahead import once
from tests.airflow.stack import SIZE, Stack

DAG = "callbacks"
RUNS = ["r1", "r2", "r3"]


@once
def killed_and_yielded(stack: Stack) -> list[str]:
    """The task of `r1` is killed; `r1` is cleared while two others hold both run slots. What was failed before that."""
    airflow = stack.airflow
    dies = stack.signal()
    dies.give()
    stack.start(DAG, "r1", die_while=str(dies.path))
    airflow.wait_run(DAG, "r1", state="failed")
    for run_id in RUNS[1:]:
        stack.start(DAG, run_id)
    for run_id in RUNS[1:]:
        airflow.wait_task(DAG, run_id, "begin", ("running", "deferred"))
    failed = [row["waiting_for"] for row in stack.tx_rows("list", DAG, "--status", "failed")]
    dies.take_back()
    airflow.clear_run(DAG, "r1")
    airflow.wait_runs(DAG, dict.fromkeys(RUNS, "success"))
    return failed


@pytest.mark.long
def test_a_transaction_whose_task_was_killed_is_listed_as_failed_with_the_command_to_replay_it(stack: Stack) -> None:
    again = f"airflow tx replay {DAG} 1, or clear the run"
    assert killed_and_yielded(stack) == [f"a replay, since its run r1 ended as failed: {again}"]


@pytest.mark.long
def test_no_dag_callback_is_called_for_a_run_that_yields_its_slot(stack: Stack) -> None:
    killed_and_yielded(stack)
    logs = [stack.airflow.whole_log(DAG, run_id, "begin") for run_id in RUNS[1:]]
    assert any(" yields: " in log for log in logs)
    called = (stack.folder / "calls").read_text().splitlines()
    assert "dag r1" in called
    assert {line.partition(" ")[2] for line in called} == {"r1"}


@pytest.mark.long
def test_each_commit_has_exactly_one_asset_event_despite_clears_and_kills(stack: Stack) -> None:
    killed_and_yielded(stack)
    airflow = stack.airflow

    def events() -> list[int]:
        return sorted(event["extra"]["txid"] for event in airflow.asset_events(DAG))

    assert events() == [1, 2, 3]
    airflow.clear_run(DAG, "r1")
    airflow.wait_run(DAG, "r1")
    killed = stack.failpoints.arm("commit.after_mark", "kill", topology=DAG, txid=4)
    stack.commit_runs(DAG, "r4")
    assert killed.reached
    assert airflow.task(DAG, "r4", "commit")["try_number"] > 1
    assert events() == [1, 2, 3, 4]
    stack.assert_counted_once(DAG, 4 * SIZE)
