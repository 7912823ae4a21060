"""Many runs cleared in one go, failed ones and committed ones: each is counted once."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.airflow.stack import SIZE, Stack

DAG = "cleared_many"
FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)
RUNS = ["r1", "r2", "r3", "r4"]


@pytest.mark.long
def test_failed_and_committed_runs_that_are_cleared_in_one_request_count_once(stack: Stack) -> None:
    airflow, ledger, last = stack.airflow, stack.ledger(DAG), FIRST + timedelta(days=len(RUNS) - 1)
    failing = stack.signal()
    failing.give()
    airflow.wait_dag(DAG)
    for number, run_id in enumerate(RUNS):
        conf = {"fail_while": str(failing.path)} if number > 1 else {}
        airflow.trigger(DAG, run_id, conf, FIRST + timedelta(days=number))
        stack.begun(DAG, run_id)
    airflow.wait_runs(DAG, {"r1": "success", "r2": "success", "r3": "failed", "r4": "failed"})
    stack.assert_counted_once(DAG, 2 * SIZE)
    failing.take_back()
    assert airflow.clear_range(DAG, FIRST, last, only_failed=True) == {"r3", "r4"}
    airflow.wait_runs(DAG, dict.fromkeys(RUNS, "success"))
    history = ledger.history()
    assert [entry.attempts for entry in history] == [1] * 4
    stack.assert_counted_once(DAG, 4 * SIZE)

    failing.give()
    airflow.trigger(DAG, "r5", {"fail_while": str(failing.path)})
    airflow.trigger(DAG, "r6", {"fail_while": str(failing.path)})
    airflow.wait_runs(DAG, {"r5": "failed", "r6": "failed"})
    failing.take_back()
    assert airflow.clear_range(DAG, FIRST, last, ["count"], downstream=True) == set(RUNS)
    # While its tasks are being scheduled for the first clear.
    airflow.clear_runs(DAG, ["r6", "r1", "r5"])
    airflow.wait_runs(DAG, dict.fromkeys([*RUNS, "r5", "r6"], "success"))

    assert ledger.history()[:4] == history
    assert [entry.attempts for entry in ledger.history()[4:]] == [2, 2]
    assert airflow.states(DAG, "r2")["count"] == "skipped"
    assert "already committed" in airflow.task_log(DAG, "r1", "begin")
    stack.assert_counted_once(DAG, 6 * SIZE)
