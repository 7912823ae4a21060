"""A committer that goes away between its write and its mark: the numbers are counted once all the same."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.stack import SIZE, Stack


@pytest.mark.worth("the promise of the package: killed at the worst moment, counted once")
def test_a_committer_killed_after_its_write_and_before_the_end_of_the_commit_runs_again(stack: Stack) -> None:
    dag, airflow = "crashed", stack.airflow
    killed = stack.failpoints.arm("commit.before_mark", "kill", topology=dag, txid=1)

    stack.commit_runs(dag, "r1", "r2")

    assert killed.reached
    first, second = stack.ledger(dag).history()
    assert (first.txid, second.txid) == (1, 2)
    assert airflow.task(dag, first.run_id, "commit")["try_number"] > 1
    receipts = stack.receipts(dag)
    assert [(each["txid"], each["attempt"]) for each in receipts] == [(1, 1), (2, 1)]
    assert receipts[0]["epoch"] > receipts[1]["epoch"]
    assert receipts[1]["previous"] == receipts[0]["hash"]
    stack.assert_counted_once(dag, 2 * SIZE)


@pytest.mark.long
def test_a_resumed_committer_that_a_user_sets_to_failed_is_cleared_and_commits_once(stack: Stack) -> None:
    dag, airflow, ledger = "overruled", stack.airflow, stack.ledger("overruled")
    paused = stack.failpoints.arm("commit.before_mark", "pause", topology=dag, txid=2)
    hold = stack.signal()
    stack.start(dag, "r1", hold=hold)
    stack.begun(dag, "r1")
    stack.start(dag, "r2")
    airflow.wait_task(dag, "r2", "commit", "deferred")
    hold.give()
    airflow.wait_for(lambda: paused.reached, 300, "the resumed committer stands before its mark", dag, "r2")
    pid = airflow.task(dag, "r2", "commit")["pid"]

    airflow.set_task_state(dag, "r2", "commit", "failed")
    airflow.wait_run(dag, "r2", state="failed")
    eventually(lambda: pid not in airflow.processes(), 240, f"the overruled committer (pid {pid}) is gone")
    assert [entry.txid for entry in ledger.history()] == [1]
    airflow.clear(dag, "r2", ["commit"])
    airflow.wait_run(dag, "r2")

    assert [entry.attempts for entry in ledger.history()] == [1, 1]
    stack.assert_counted_once(dag, 2 * SIZE)
