"""Applications on a Spark Connect server go by the lane of their coordinator; its worker is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.airflow.feed import Feed, worker
from tests.airflow.stack import Stack

DAG, COORDINATOR = "applied", "applied_coordinator"


@pytest.fixture(scope="module")
def feed(stack: Stack, spark_connect: LocalSparkConnect) -> Iterator[Feed]:
    made = Feed(stack, DAG, (COORDINATOR,), "applied_marks")
    stack.connect("spark_connect_default", conn_type="spark_connect", host="127.0.0.1", port=spark_connect.port)
    stack.airflow.wait_dag(DAG)
    made.go_on()
    yield made
    made.stop()


def runs(feed: Feed) -> set[str]:
    return {run["dag_run_id"] for run in feed.airflow.runs(DAG)}


@pytest.mark.long
def test_every_row_counts_once_although_the_lane_worker_is_killed_while_applications_run(feed: Feed) -> None:
    feed.add(*[None] * 6)
    feed.committed()
    assert runs(feed) == set()
    assert {entry.attempts for entry in feed.ledger.history()} == {1}

    feed.add("fail-once", None, None)
    feed.committed()
    assert runs(feed) == {"tx-7"}

    (hold, *_) = feed.add("hold", *[None] * 5)
    txid = feed.files - 5
    behind = f"transactions behind {txid} are begun while it is processed"
    eventually(lambda: feed.record(txid + 3).get("request"), 240, behind, explain=feed.explain)
    assert feed.record(txid)["request"].startswith("lane-")
    os.kill(worker(feed), signal.SIGKILL)
    assert hold is not None
    hold.unlink()
    feed.committed()
    history = feed.ledger.history()
    assert runs(feed) == {"tx-7", *(entry.run_id for entry in history if entry.attempts > 1)}
    assert f"tx-{txid}" in runs(feed)
    feed.airflow.wait_run(DAG, f"tx-{txid}")
    assert len(runs(feed)) <= 5
    assert len(feed.stack.receipts(DAG)) == feed.files
