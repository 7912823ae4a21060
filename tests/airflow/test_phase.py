"""Several committers and what comes between them, in one commit phase: the seeds' figure with A, B, C and D."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.airflow.stack import SIZE, Stack, expected

DAG = "phased"
B, C, D = (f"commit_phase.{name}" for name in "bcd")
OTHER = "state_2.db"


def assert_counted_once(stack: Stack, numbers: int) -> None:
    """Both states hold the numbers 0 to `numbers` - 1, each once; the second one doubles the sums."""
    stack.assert_counted_once("phased_b", numbers)
    doubled = {name: (count, 2 * total) for name, (count, total) in expected(numbers).items()}
    assert stack.totals("phased_d", OTHER) == doubled


@pytest.mark.long
def test_all_tasks_after_the_first_committer_run_in_the_order_of_the_commits(stack: Stack) -> None:
    airflow, ledger = stack.airflow, stack.ledger(DAG)
    hold = stack.signal()
    stack.start(DAG, "r1", hold=hold)
    stack.begun(DAG, "r1")
    stack.start(DAG, "r2")
    airflow.wait_task(DAG, "r2", "commit_phase.acquire", "deferred")
    assert airflow.task(DAG, "r2", C)["state"] is None
    hold.give()
    airflow.wait_run(DAG, "r1")
    airflow.wait_run(DAG, "r2")

    first, second = ledger.history()
    assert (first.run_id, second.run_id) == ("r1", "r2")
    assert datetime.fromisoformat(airflow.task(DAG, "r2", C)["start_date"]) >= first.ended
    assert_counted_once(stack, 2 * SIZE)

    # A task inside fails for good: nothing is committed, and nobody overtakes it.
    broken = stack.signal()
    broken.give()
    stack.start(DAG, "r3", fail_inside=broken)
    airflow.wait_run(DAG, "r3", state="failed")
    assert airflow.task(DAG, "r3", B)["state"] == "success"
    assert "not committed" in airflow.whole_log(DAG, "r3", "commit_phase.mark")
    assert ledger.read("coordinator/current") == {"format": 1, "txid": 3}
    record = ledger.read("coordinator/transactions/3")
    assert (record["phase"], record["failures"]) == ("COMMITTING", 1)
    assert record["error"].startswith(f"task {C}: RuntimeError: told to fail")
    # Clearing it alone takes the turn again; what B had written is undone, and written again.
    broken.take_back()
    airflow.clear(DAG, "r3", [C, D])
    airflow.wait_run(DAG, "r3")
    assert "written again" in airflow.whole_log(DAG, "r3", "commit_phase.acquire")
    assert_counted_once(stack, 3 * SIZE)

    # The second store's committer is killed before its write, and the last task between its check and its mark.
    killed = [
        stack.failpoints.arm("commit.before_write", "kill", topology=DAG, txid=4, state="tx_state_2.phased_d"),
        stack.failpoints.arm("commit.before_mark", "kill", topology=DAG, txid=4),
    ]
    stack.commit_runs(DAG, "r4")
    assert all(each.reached for each in killed)
    assert_counted_once(stack, 4 * SIZE)

    # In a committed transaction they have nothing to do.
    airflow.clear(DAG, "r4", [C])
    airflow.wait_run(DAG, "r4")
    assert len(ledger.history()) == 4
    assert_counted_once(stack, 4 * SIZE)
