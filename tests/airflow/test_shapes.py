"""Mapped tasks and Spark applications take part in a transaction like any other task."""

from __future__ import annotations

import pytest

from tests.airflow.stack import FILES, NUMBERS_A_FILE, Stack, expected


@pytest.mark.long
def test_every_instance_of_a_mapped_task_counts_once_although_one_instance_fails_first(stack: Stack) -> None:
    dag, airflow = "mapped", stack.airflow
    failing = stack.signal()
    failing.give()
    stack.start(dag, "r1", fail_while=failing)
    stack.start(dag, "r2")
    airflow.wait_run(dag, "r1", state="failed")
    failing.take_back()
    airflow.clear_run(dag, "r1", only_failed=True)  # the other instance, too, if it came to its ack too late
    for run_id in ("r1", "r2"):
        airflow.wait_run(dag, run_id)

    assert airflow.task(dag, "r1", "count_part", 1)["try_number"] == 2
    stack.assert_counted_once(dag, 24)
    assert {entry.attempts for entry in stack.ledger(dag).history()} == {1}


@pytest.mark.lead
@pytest.mark.worth("the only spark-submit in a real Airflow")
def test_a_spark_application_reads_exactly_its_batch_and_a_run_without_data_is_skipped(stack: Stack) -> None:
    dag, airflow = "sparked", stack.airflow
    runs = [f"r{number}" for number in range(1, FILES + 1)]
    hold = stack.signal()
    stack.start(dag, runs[0], hold=hold)
    stack.begun(dag, runs[0])
    for run_id in runs[1:]:
        stack.start(dag, run_id)
    for run_id in runs[1:]:
        airflow.wait_run(dag, run_id, timeout=600)
    stack.assert_counted_once(dag, FILES * NUMBERS_A_FILE)
    # A side branch reads the output of its transaction although that one, and a later one, are committed.
    hold.give()
    airflow.wait_run(dag, runs[0])
    assert [airflow.xcom(dag, run_id, "beside") for run_id in runs] == [NUMBERS_A_FILE] * FILES

    stack.start(dag, "no_more_files")
    airflow.wait_run(dag, "no_more_files")
    assert airflow.states(dag, "no_more_files") == dict.fromkeys(("begin", "count", "beside", "commit"), "skipped")
    assert stack.ledger(dag).allocated == FILES
    assert stack.totals(dag) == expected(FILES * NUMBERS_A_FILE)
