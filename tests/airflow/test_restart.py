"""Everything dies and comes back: transactions go on where they stood."""

from __future__ import annotations

import pytest

from tests.airflow.stack import SIZE, Stack


@pytest.mark.long
@pytest.mark.alone
def test_transactions_continue_with_the_next_txid_after_all_processes_crashed(stack: Stack) -> None:
    dag, airflow, ledger = "restarted", stack.airflow, stack.ledger("restarted")
    stack.commit_runs(dag, "r1")
    failing = stack.signal()
    failing.give()
    stack.start(dag, "r2", fail_while=failing)
    airflow.wait_run(dag, "r2", state="failed")

    airflow.stop(grace=0)
    stack.zookeeper.kill()
    stack.zookeeper.start()
    airflow.start()

    failing.take_back()
    stack.start(dag, "r3")
    stack.begun(dag, "r3")
    airflow.clear_run(dag, "r2")
    for run_id in ("r2", "r3"):
        airflow.wait_run(dag, run_id)
    assert [(entry.txid, entry.run_id, entry.attempts) for entry in ledger.history()] == [
        (1, "r1", 1),
        (2, "r2", 2),
        (3, "r3", 1),
    ]
    stack.assert_counted_once(dag, 3 * SIZE)
