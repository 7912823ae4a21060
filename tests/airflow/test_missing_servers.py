"""A server that is not there: the task fails and says which and where, and nothing is half done."""

from __future__ import annotations

import json

import pytest

from tests.airflow.stack import SIZE, Stack


@pytest.mark.long
def test_the_log_names_the_connection_of_an_unreachable_zookeeper(stack: Stack) -> None:
    dag, airflow = "zookeeper_away", stack.airflow
    stack.start(dag, "r1")
    airflow.wait_run(dag, "r1", state="failed")

    hosts = json.loads(airflow.environment["AIRFLOW_CONN_ZOOKEEPER_AWAY"])["host"]
    assert f"ZooKeeper {hosts} (connection zookeeper_away) cannot be reached" in airflow.whole_log(dag, "r1", "begin")
    assert airflow.states(dag, "r1")["count"] == "upstream_failed"
    assert stack.ledger(dag).names("") == []


@pytest.mark.long
def test_a_transaction_whose_database_is_down_commits_after_the_database_returns(stack: Stack) -> None:
    dag, airflow, ledger = "database_away", stack.airflow, stack.ledger("database_away")
    stack.start(dag, "r1")
    airflow.wait_run(dag, "r1", state="failed")
    log = airflow.whole_log(dag, "r1", "commit")
    assert "cannot be reached" in log
    assert "No value of this transaction was committed" in log
    assert ledger.history() == []
    assert ledger.allocated == 1
    record = ledger.read("coordinator/transactions/1")
    assert (record["phase"], record["failures"]) == ("COMMITTING", 1)
    assert record["error"].startswith("task commit: StateUnavailable: State 'state_away.database_away'")

    (stack.folder / "away").mkdir()
    airflow.clear(dag, "r1", ["commit"])
    airflow.wait_run(dag, "r1")
    assert [entry.attempts for entry in ledger.history()] == [1]
    stack.assert_counted_once(dag, SIZE, database="away/state.db")


@pytest.mark.long
def test_the_log_names_a_missing_spark_connection_and_no_application_is_submitted(stack: Stack) -> None:
    dag, airflow = "spark_missing", stack.airflow
    stack.start(dag, "r1")
    airflow.wait_run(dag, "r1", state="failed")
    log = airflow.whole_log(dag, "r1", "count")
    assert "spark_that_nobody_made" in log
    assert "spark-submit" not in log
    assert stack.ledger(dag).history() == []
