"""Every topology has a ledger of its own, and its name has one owner."""

from __future__ import annotations

import pytest

from airflow_tx.base import compat
from tests.airflow.stack import SIZE, Stack


@pytest.mark.long
def test_two_topologies_under_two_zookeeper_roots_count_independently(stack: Stack) -> None:
    for run_id in ("r1", "r2"):
        for dag in ("left", "right"):
            stack.start(dag, run_id)
    for dag in ("left", "right"):
        for run_id in ("r1", "r2"):
            stack.airflow.wait_run(dag, run_id)
        assert [entry.txid for entry in stack.ledger(dag, root=f"/{dag}").history()] == [1, 2]
        assert stack.ledger(dag).allocated == 0
        stack.assert_counted_once(dag, 2 * SIZE)


@pytest.mark.long
def test_a_dag_that_uses_the_topology_of_another_dag_is_refused_and_its_log_names_the_owner(stack: Stack) -> None:
    stack.commit_runs("owner", "r1")
    stack.start("intruder", "r1")
    stack.airflow.wait_run("intruder", "r1", state="failed")

    log = stack.airflow.whole_log("intruder", "r1", "begin")
    assert "Topology 'claimed' belongs to DAG 'owner', and DAG 'intruder' asks for it" in log
    assert stack.ledger("claimed").allocated == 1
    assert stack.totals("intruder") == {}
    stack.commit_runs("owner", "r2")
    stack.assert_counted_once("owner", 2 * SIZE)


@pytest.mark.long
@pytest.mark.skipif(compat.is_airflow_3_2(), reason="with the packages of the lock, Airflow 3.2 can test no DAG at all")
def test_airflow_dags_test_changes_no_ledger_or_state_and_airflow_tasks_test_is_refused(stack: Stack) -> None:
    airflow = stack.airflow
    stack.commit_runs("tested", "r1")
    before, totals = stack.ledger("tested").tree(), stack.totals("tested")
    with pytest.raises(AssertionError, match="the scheduler would start its tasks.*airflow dags pause tested"):
        airflow.command("dags", "test", "tested", timeout=300)
    for task_id in ("count", "commit", "begin"):
        refused = airflow.command("tasks", "test", "tested", task_id, "r1", timeout=300)
        assert "a single task cannot be tried out" in refused
    airflow.pause("tested")
    shown = airflow.command("dags", "test", "tested", timeout=300)
    assert "Trial: the run ended as success" in shown
    assert "would be written" in shown
    assert stack.ledger("tested").tree() == before
    assert stack.totals("tested") == totals
    airflow.pause("tested", paused=False)
    stack.commit_runs("tested", "r2")
    assert stack.ledger("tested").allocated == 2
    stack.assert_counted_once("tested", 2 * SIZE)


_RENAMED = """from counting import counting_dag

dag = counting_dag({dag_id!r}, table="renamed")  # airflow DAG
"""


@pytest.mark.long
def test_a_renamed_dag_continues_its_topology_even_after_the_old_dag_was_deleted(stack: Stack) -> None:
    airflow, file, broken = stack.airflow, stack.airflow_dags / "renamed.py", stack.signal()
    file.write_text(_RENAMED.format(dag_id="before"))
    stack.commit_runs("before", "r1")
    broken.give()
    stack.start("before", "r2", fail_while=broken)
    airflow.wait_run("before", "r2", state="failed")

    file.write_text(_RENAMED.format(dag_id="after"))
    stack.start("after", "r3")
    airflow.wait_run("after", "r3", state="failed")
    assert "If the DAG was renamed: airflow tx rename OLD after --why TEXT" in airflow.whole_log(
        "after", "r3", "commit"
    )
    airflow.command("dags", "delete", "before", "--yes")
    airflow.command("tx", "rename", "before", "after", "--why", "a better name", "--yes")
    airflow.command("tx", "replay", "after", "--failed")
    airflow.wait_run("after", "r2")
    airflow.clear_run("after", "r3")
    airflow.wait_run("after", "r3")
    assert [(entry.txid, entry.run_id) for entry in stack.ledger("after").history()] == [
        (1, "r1"),
        (2, "r2"),
        (3, "r3"),
    ]
    stack.assert_counted_once("renamed", 3 * SIZE)
    assert airflow.call("GET", "eventLogs", params={"event": "cli_rename"})["event_logs"]
