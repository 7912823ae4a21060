"""Plain tasks take part in a transaction without knowing; what Airflow does around them is as `compat` says."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from airflow_tx.base import compat
from airflow_tx.testing.eventually import eventually
from tests.airflow.ahead import once
from tests.airflow.stack import SIZE, Stack, expected


@pytest.mark.long
@pytest.mark.skipif(compat.is_airflow_3_2(), reason="Airflow 3.2 retries it as often as any other one")
def test_a_task_that_fails_its_batch_is_not_retried_and_a_clear_lets_the_batch_commit(stack: Stack) -> None:
    dag, airflow, bad = "failed_batch", stack.airflow, stack.signal()
    bad.give()
    stack.start(dag, "r1", fail_while=bad)
    airflow.wait_run(dag, "r1", state="failed")
    assert airflow.task(dag, "r1", "give_up")["try_number"] == 1
    open_record = stack.ledger(dag).read("coordinator/transactions/1")
    assert (open_record["phase"], open_record["failures"]) == ("FAILED", 1)
    assert "these numbers are not wanted" in open_record["error"]

    bad.take_back()
    airflow.clear_run(dag, "r1", only_failed=True)
    airflow.wait_run(dag, "r1")
    stack.assert_counted_once(dag, SIZE)
    assert stack.ledger(dag).of_run("r1").attempts == 1


@once
def commit_shapes(stack: Stack) -> str:
    """Commit two runs of the DAG whose tasks give outputs of every shape."""
    stack.commit_runs("task_shapes", "r1", "r2")
    return "task_shapes"


@pytest.mark.worth("every way to hand rows to a committer")
def test_outputs_of_every_kind_are_committed_although_a_branch_was_skipped(stack: Stack) -> None:
    dag = commit_shapes(stack)
    whole = expected(2 * SIZE)
    assert stack.totals("shape_even") == {"even": whole["even"]}
    assert stack.totals("shape_odd") == {"odd": whole["odd"]}
    assert stack.totals("shape_mapped") == stack.totals("shape_joined") == whole
    assert stack.airflow.states(dag, "r1")["left"] == "skipped"
    extras = {event["source_run_id"]: event["extra"] for event in stack.airflow.asset_events(dag)}
    assert all(extra.pop("birth") for extra in extras.values())
    txids = {run_id: stack.ledger(dag).of_run(run_id).txid for run_id in ("r1", "r2")}
    assert extras == {run: {"topology": dag, "txid": txid, "attempt": 1} for run, txid in txids.items()}


@pytest.mark.long
def test_an_instance_of_a_mapped_task_cleared_after_the_commit_skips_itself(stack: Stack) -> None:
    dag, airflow = commit_shapes(stack), stack.airflow
    before = stack.totals("shape_mapped")
    airflow.clear(dag, "r2", [("one", 4)])
    airflow.wait_task(dag, "r2", "one", "skipped", map_index=4)
    airflow.wait_run(dag, "r2")
    assert "is already committed" in airflow.task_log(dag, "r2", "one", map_index=4)
    assert stack.totals("shape_mapped") == before


@pytest.mark.long
def test_a_retried_begin_continues_its_attempt_and_a_cleared_begin_starts_the_next_attempt(stack: Stack) -> None:
    dag, airflow = "begun_twice", stack.airflow
    armed = stack.failpoints.arm("begin.after_allocate", "kill", topology=dag)
    stack.start(dag, "r1")
    airflow.wait_run(dag, "r1")
    assert armed.reached
    assert airflow.task(dag, "r1", "begin")["try_number"] == 2
    assert stack.ledger(dag).of_run("r1").attempts == 1

    held = stack.failpoints.arm("commit.before_acquire", "kill", topology=dag)
    stack.failpoints.arm("commit.before_mark", "raise", topology=dag)
    stack.start(dag, "r2")
    airflow.wait_run(dag, "r2")
    assert held.reached
    assert stack.ledger(dag).of_run("r2").attempts == 1
    stack.assert_counted_once(dag, 2 * SIZE)


@pytest.mark.long
def test_clearing_a_run_while_its_task_works_starts_the_next_attempt_and_counts_once(stack: Stack) -> None:
    dag, airflow = "begun_again", stack.airflow
    pause = stack.failpoints.arm("process.before_ack", "pause", topology=dag)
    stack.start(dag, "again")
    airflow.wait_for(lambda: pause.reached, 300, "its task works", dag, "again")
    airflow.clear_run(dag, "again")
    airflow.wait_run(dag, "again")
    assert stack.ledger(dag).of_run("again").attempts == 2
    stack.assert_counted_once(dag, SIZE)


@pytest.mark.worth("what a new user does first, as the page says it")
def test_the_dag_of_the_start_page_counts_each_word_of_each_file_once(stack: Stack) -> None:
    text = (Path(__file__).parents[2] / "docs" / "start.md").read_text()
    code, _ = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (stack.folder / "inbox").mkdir()
    for name, line in (("a", "the man and the dog"), ("b", "the dog")):
        (stack.folder / "inbox" / f"{name}.txt").write_text(f"{line}\n")
    file, airflow = stack.airflow_dags / "text_words.py", stack.airflow
    file.write_text(code)
    airflow.wait_dag("text_words")
    eventually(
        lambda: len(stack.ledger("text_words").names("history")) == 2, 120, "both files are committed", interval=0.5
    )
    airflow.pause("text_words_coordinator")
    file.unlink()
    with sqlite3.connect(stack.folder / "state.db") as state:
        assert dict(state.execute("SELECT word, n FROM words")) == {"the": 3, "man": 1, "and": 1, "dog": 2}
        assert state.execute("SELECT lines, characters FROM text_sizes").fetchall() == [(2, 26)]


@pytest.mark.worth("what a task of a new installation imports is what each run costs")
def test_a_new_task_process_has_already_imported_its_modules_and_the_spark_connect_client(stack: Stack) -> None:
    stack.start("preloaded", "r1")
    stack.airflow.wait_run("preloaded", "r1")
    found = [
        "airflow_tx.ledger.store.zookeeper",
        "airflow_tx.transaction.commit.committer",
        "colorsys",
        "pyspark.sql.connect.session",
    ]
    assert stack.airflow.xcom("preloaded", "r1", "imported") == found
