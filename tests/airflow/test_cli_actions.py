"""`airflow tx skip | readmit | replay` while Airflow runs: the batches they touch are counted exactly once, or not."""

from __future__ import annotations

import pytest

from tests.airflow.stack import SIZE, Stack, expected

DAG_ID = "acted"


def tx(stack: Stack, *arguments: str) -> dict[int | None, str]:
    """What `airflow tx …` says it did, by txid."""
    return {row["txid"]: row["done"] for row in stack.tx_rows(*arguments)}


@pytest.mark.long
def test_each_batch_counts_once_if_it_is_skipped_readmitted_or_replayed_while_airflow_runs(stack: Stack) -> None:
    airflow, ledger = stack.airflow, stack.ledger(DAG_ID)
    broken = stack.signal()
    broken.give()
    stack.start(DAG_ID, "bad", fail_while=broken)
    stack.begun(DAG_ID, "bad")
    for run_id in ("second", "third"):
        stack.start(DAG_ID, run_id)
        stack.begun(DAG_ID, run_id)
    airflow.wait_run(DAG_ID, "bad", state="failed")
    for run_id in ("second", "third"):
        airflow.wait_task(DAG_ID, run_id, "commit", ("running", "deferred"))
    assert ledger.names("history") == []

    done = tx(stack, "skip", DAG_ID, "1", "--why", "its file is broken", "--yes")
    assert done[1].startswith("skipped.")
    assert "Its run stays failed in Airflow. If you clear it" in done[1]
    airflow.clear_run(DAG_ID, "bad")
    airflow.wait_run(DAG_ID, "bad")
    for run_id in ("second", "third"):
        airflow.wait_run(DAG_ID, run_id)
    without = {
        name: (n - SIZE // 2, total - expected(SIZE)[name][1]) for name, (n, total) in expected(3 * SIZE).items()
    }
    assert stack.totals(DAG_ID) == without

    broken.take_back()
    done = tx(stack, "readmit", DAG_ID, "1", "--why", "its file is mended", "--yes")
    assert done[1].startswith("re-admitted: its run was cleared")
    airflow.wait_run(DAG_ID, "bad")
    stack.assert_counted_once(DAG_ID, 3 * SIZE)
    history = {name: ledger.read(f"history/{name}") for name in ledger.names("history")}
    ends = {name: (entry["run_id"], entry["end"]) for name, entry in history.items()}
    assert {name: (run, end["outcome"], end.get("readmitted_as")) for name, (run, end) in ends.items()} == {
        "1": ("bad", "READMITTED", 4),
        "2": ("second", "COMMITTED", None),
        "3": ("third", "COMMITTED", None),
        "4": ("bad", "COMMITTED", None),
    }

    broken.give()
    for run_id in ("failed", "deleted"):
        stack.start(DAG_ID, run_id, fail_while=broken)
        stack.begun(DAG_ID, run_id)
    for run_id in ("failed", "deleted"):
        airflow.wait_run(DAG_ID, run_id, state="failed")
    airflow.delete_run(DAG_ID, "deleted")
    broken.take_back()
    assert tx(stack, "replay", DAG_ID, "--failed") == {
        5: "its run was cleared",
        6: "its run did not exist, and was created again",
    }
    for run_id in ("failed", "deleted"):
        airflow.wait_run(DAG_ID, run_id)
    replayed = [ledger.read(f"history/{txid}") for txid in (5, 6)]
    assert [(entry["run_id"], entry["attempt"]) for entry in replayed] == [("failed", 2), ("deleted", 2)]
    stack.assert_counted_once(DAG_ID, 5 * SIZE)
    for event in ("cli_skip", "cli_readmit", "cli_replay"):
        assert airflow.call("GET", "eventLogs", params={"event": event})["event_logs"], event


@pytest.mark.long
def test_a_corrected_file_is_counted_after_a_person_runs_the_command_named_in_the_error(stack: Stack) -> None:
    airflow, ledger, dag_id = stack.airflow, stack.ledger("corrected"), "corrected"
    folder = stack.folder / "corrected"
    folder.mkdir()
    wrong = {"1.csv": "0\nnine\n", "3.csv": "4\n5;\n"}
    right = {"1.csv": "0\n1\n", "2.csv": "2\n3\n", "3.csv": "4\n5\n", "4.csv": "6\n7\n"}
    for name, text in {**right, **wrong}.items():
        (folder / name).write_text(f"number\n{text}")
    for run_id in ("r1", "r2"):
        stack.start(dag_id, run_id)
        stack.begun(dag_id, run_id)
    airflow.wait_run(dag_id, "r1", state="failed")
    error = ledger.read("coordinator/transactions/1")["error"]
    assert "1.csv: line 3: number has an unusable value, which is in the log of the task" in error
    shown = airflow.task_log(dag_id, "r1", "of_file")
    assert "1.csv: line 3: number = 'nine' does not fit the schema" in shown

    (folder / "1.csv").write_text(f"number\n{right['1.csv']}")
    done = tx(stack, *ledger.advised(1, "replay"), "the ninth was a word")
    assert done == {1: "its rows are decided again: its run was cleared"}
    for run_id in ("r1", "r2"):
        airflow.wait_run(dag_id, run_id)
    stack.assert_counted_once(dag_id, 4)
    assert [(entry.txid, entry.attempts) for entry in ledger.history()] == [(1, 2), (2, 1)]
    (told,) = ledger.read("history/1")["changed"]
    assert (told["why"], told["attempt"], bool(told["who"])) == ("the ninth was a word", 1, True)

    for run_id in ("r3", "r4"):
        stack.start(dag_id, run_id)
        stack.begun(dag_id, run_id)
    airflow.wait_run(dag_id, "r3", state="failed")
    tx(stack, "skip", dag_id, "3", "--why", "its file is broken", "--yes")
    (folder / "3.csv").write_text(f"number\n{right['3.csv']}")
    tx(stack, "readmit", dag_id, "3", "--why", "mended", "--yes")
    for run_id in ("r3", "r4"):
        airflow.wait_run(dag_id, run_id)
    stack.assert_counted_once(dag_id, 8)
