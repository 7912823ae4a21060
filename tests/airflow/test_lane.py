"""Transactions go by the lane of their coordinator: no run is made, unless something goes wrong; then one is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.stack import Stack
from tests.airflow.test_coordinator import Feed

DAG, COORDINATOR = "laned", "laned_coordinator"


@pytest.fixture(scope="module")
def feed(stack: Stack) -> Iterator[Feed]:
    made = Feed(stack, DAG, (COORDINATOR,), "laned_marks")
    stack.airflow.wait_dag(DAG)
    made.go_on()
    yield made
    made.stop()


def runs(feed: Feed) -> set[str]:
    return {run["dag_run_id"] for run in feed.airflow.runs(DAG)}


def worker(feed: Feed) -> int:
    """The process of the coordinator's task."""
    (coordinator,) = feed.coordinating

    def running() -> int:
        for run in feed.airflow.runs(coordinator):
            task = feed.airflow.task(coordinator, run["dag_run_id"], "coordinate")
            if task.get("state") == "running" and task.get("pid"):
                return int(task["pid"])
        return 0

    return int(eventually(running, 240, "the coordinator is in its worker", explain=feed.explain))


def test_the_worker_of_the_lane_is_killed_in_the_middle_and_all_is_counted_once(feed: Feed) -> None:
    feed.add(*[None] * 20)
    feed.committed()
    assert runs(feed) == set()
    assert {entry.attempts for entry in feed.ledger.history()} == {1}

    feed.add("fail-once", None, None)
    feed.committed()
    assert runs(feed) == {"tx-21"}

    (hold, *_) = feed.add("hold", *[None] * 9)
    txid = feed.files - 9
    eventually(lambda: feed.record(txid).get("request"), 240, f"transaction {txid} has begun", explain=feed.explain)
    assert feed.record(txid)["request"].startswith("lane-")
    os.kill(worker(feed), signal.SIGKILL)
    assert hold is not None
    hold.unlink()
    feed.committed()
    history = feed.ledger.history()
    assert runs(feed) == {"tx-21", *(entry.run_id for entry in history if entry.attempts > 1)}
    assert f"tx-{txid}" in runs(feed)
    feed.airflow.wait_run(DAG, f"tx-{txid}")
    assert len(feed.airflow.runs(DAG)) <= 4
