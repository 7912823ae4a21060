"""Nobody starts a run, and nobody replays one: two coordinators do, and each number is counted once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.feed import DAG, Feed
from tests.airflow.stack import Stack, parent


@pytest.fixture(scope="module")
def feed(stack: Stack) -> Iterator[Feed]:
    """The topology, with two coordinators that go on until the end of this module."""
    made = Feed(stack)
    stack.airflow.wait_dag(DAG)
    made.go_on()
    yield made
    made.stop()


@pytest.mark.lead
@pytest.mark.worth("two coordinators, retries, a kill, a sensor and asset events in one story")
def test_a_coordinated_topology_commits_every_number_once_and_in_order_despite_failures(feed: Feed) -> None:
    feed.airflow.wait_dag("waiting")
    feed.airflow.trigger("waiting", "w1", conf={"txid": 6, "file": "0004.csv"})
    feed.add(None, "fail-once", "kill")
    feed.airflow.trigger(DAG, "by-hand")  # goes along, and takes whatever is next
    feed.add(None, "fail-once", None)
    feed.committed()
    feed.airflow.wait_run(DAG, "by-hand")

    history = feed.ledger.history()
    assert {entry.run_id for entry in history} <= {"by-hand", *(f"tx-{txid}" for txid in range(1, 7))}
    assert [entry.attempts for entry in history] == [1, 2, 2, 1, 2, 1]
    assert feed.log().count("is replayed (automatic replay 1 of 2)") == 3

    # Who waited is woken, and who is scheduled by commits was given each of them, in order.
    feed.airflow.wait_run("waiting", "w1")
    reported = feed.stack.folder / "reported"
    eventually(
        lambda: reported.read_text().split() == list("123456"),
        240,
        "each commit is reported",
        explain=reported.read_text,
    )


@pytest.mark.long
def test_the_coordinator_recreates_a_deleted_run_with_its_batch(feed: Feed) -> None:
    (hold,) = feed.add("hold")
    txid = feed.files
    run_id = f"tx-{txid}"
    eventually(lambda: feed.record(txid).get("request"), 240, f"{run_id} has begun", explain=feed.explain)
    pid = feed.airflow.wait_task(DAG, run_id, "count", "running")["pid"]
    feed.stop()
    # Airflow deletes no run that is running.
    feed.airflow.set_run_state(DAG, run_id, "failed")
    eventually(lambda: pid not in feed.airflow.processes(), 240, "its task has ended")
    feed.airflow.delete_run(DAG, run_id)
    assert hold is not None
    hold.unlink()
    feed.go_on()
    feed.committed()
    assert feed.ledger.of_run(run_id).txid == txid
    assert feed.airflow.run(DAG, run_id)["run_type"] != "scheduled"


@pytest.mark.long
def test_the_coordinator_replaces_a_committer_that_was_killed_with_its_supervisor(feed: Feed) -> None:
    txid = feed.files + 1
    paused = feed.stack.failpoints.arm("commit.before_mark", "pause", topology=DAG, txid=txid)
    feed.add(None)
    eventually(lambda: paused.reached, 240, "the committer stands before its mark", explain=feed.explain)
    pid = feed.airflow.task(DAG, f"tx-{txid}", "commit")["pid"]
    supervisor = parent(pid)
    assert "airflow worker -- LocalExecutor" in Path(f"/proc/{supervisor}/cmdline").read_text()
    os.kill(supervisor, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    paused.release()

    feed.committed()
    # Airflow by itself would have the task tried again, in the same attempt.
    assert feed.ledger.history()[-1].attempts == 2


@pytest.mark.long
def test_a_transaction_that_fails_repeatedly_is_blocked_until_a_person_replays_it(feed: Feed) -> None:
    (fail, _) = feed.add("fail", None)
    txid = feed.files - 1

    def mark() -> dict[str, Any]:
        return (feed.ledger.read("topology") or {}).get("blocked") or {}

    blocked = eventually(mark, 240, "it is blocked", explain=feed.explain)
    assert (blocked["txid"], blocked["attempt"]) == (txid, 3)
    assert "is not wanted" in blocked["reason"]
    assert f"airflow tx replay {DAG} {txid}" in feed.log()

    # Whichever coordinator found it: one run is red, with a date, so that the home page counts it.
    red = eventually(feed.red, 240, "a run is red", explain=feed.explain)
    assert red["dag_run_id"] == f"blocked-{txid}.3"
    assert red["logical_date"] is not None
    called = (feed.stack.folder / "called").read_text().splitlines()
    assert len(called) == 1
    assert f"Transaction {txid}.3 of {DAG} is blocked" in called[0]

    assert fail is not None
    fail.unlink()
    feed.airflow.clear_run(DAG, f"tx-{txid}")
    feed.committed()
    eventually(lambda: not mark(), 240, "it is blocked no more")
    # It stays red until the coordinator has looked again and cleared it.
    eventually(
        lambda: feed.airflow.run(red["dag_id"], red["dag_run_id"])["state"] == "success",
        240,
        "it is red no more",
        explain=feed.explain,
    )
    assert (feed.stack.folder / "called").read_text().splitlines() == called
