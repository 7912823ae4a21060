"""`airflow tx skip | readmit | replay` while Airflow runs: the batches they touch are counted exactly once, or not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.airflow.stack import SIZE, Stack, expected

DAG_ID = "acted"


def tx(stack: Stack, *arguments: str) -> dict[str | None, str]:
    """What `airflow tx …` says it did, by txid."""
    command = [sys.executable, "-m", "airflow", "tx", *arguments, "--output", "json"]
    found = subprocess.run(command, env=stack.airflow.environment, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    rows: list[dict[str, Any]] = json.loads(found.stdout)
    return {row["txid"]: row["done"] for row in rows}


def test_a_batch_that_fails_always_is_skipped_then_readmitted_and_failed_ones_are_replayed(stack: Stack) -> None:
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
    assert done["1"].startswith("skipped.")
    assert "Its run stays failed in Airflow: clear it" in done["1"]
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
    assert done["1"].startswith("re-admitted: its run was cleared")
    airflow.wait_run(DAG_ID, "bad")
    stack.assert_counted_once(DAG_ID, 3 * SIZE)
    history = {name: ledger.read(f"history/{name}") for name in ledger.names("history")}
    assert {name: (entry["run_id"], entry["outcome"], entry["readmitted_as"]) for name, entry in history.items()} == {
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
        "5": "its run was cleared",
        "6": "its run did not exist, and was made anew",
    }
    for run_id in ("failed", "deleted"):
        airflow.wait_run(DAG_ID, run_id)
    replayed = [ledger.read(f"history/{txid}") for txid in (5, 6)]
    assert [(entry["run_id"], entry["attempts"]) for entry in replayed] == [("failed", 2), ("deleted", 2)]
    stack.assert_counted_once(DAG_ID, 5 * SIZE)
    for event in ("cli_skip", "cli_readmit", "cli_replay"):
        assert airflow.call("GET", "eventLogs", params={"event": event})["event_logs"], event
