"""Transactions go by the lane of their coordinator: no run is made, unless something goes wrong; then one is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from airflow_tx.base import compat
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import eventually
from tests.airflow.dags.daily import DAY, FIRST, SIZE
from tests.airflow.feed import Feed, worker
from tests.airflow.stack import Stack

DAG, COORDINATOR = "laned", "laned_coordinator"
MAX_PENDING = 4
"""Of its DAG file."""


@pytest.fixture(scope="module")
def feed(stack: Stack) -> Iterator[Feed]:
    made = Feed(stack, DAG, (COORDINATOR,), "laned_marks")
    stack.airflow.wait_dag(DAG)
    made.go_on()
    yield made
    made.stop()


def runs(feed: Feed) -> set[str]:
    return {run["dag_run_id"] for run in feed.airflow.runs(DAG)}


@pytest.mark.lead
@pytest.mark.worth("the lane in a real Airflow, and its way out")
def test_every_row_counts_once_although_the_worker_of_the_lane_is_killed(feed: Feed) -> None:
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
    assert len(feed.airflow.runs(DAG)) <= 1 + MAX_PENDING, "those that were open, and no other"


@pytest.mark.long
@pytest.mark.skipif(compat.is_airflow_3_2(), reason="data intervals go by runs in Airflow 3.2")
def test_the_lane_commits_scheduled_days_and_a_failed_day_becomes_a_run_with_its_dates(
    feed: Feed, stack: Stack
) -> None:
    airflow, dag = stack.airflow, "laned_days"
    airflow.wait_dag(dag)
    (stack.folder / "laned_marks" / "2013-01-03.fail-once").touch()
    waiting = Feed(stack, dag, ("laned_days_coordinator",), "laned_days_marks")
    waiting.go_on()
    eventually(lambda: "deferred" in waiting.coordinators().values(), 240, "it waits in the triggerer")
    dates = ("--from", FIRST.isoformat(), "--to", (FIRST + 5 * DAY).isoformat(), "--in-flight", "0")
    command = [sys.executable, "-m", "airflow", "tx", "backfill", dag, *dates]
    done = run_command(command, env=airflow.environment, capture_output=True, timeout=300)
    assert done.stdout.endswith("All 6 intervals are done.\n"), done.stdout + done.stderr
    history = stack.ledger(dag).history()
    assert [(entry.txid, entry.attempts) for entry in history] == [(1, 1), (2, 1), (3, 2), (4, 1), (5, 1), (6, 1)]
    names = [f"scheduled__{(FIRST + day * DAY).isoformat()}" for day in range(1, 7)]
    assert [entry.run_id for entry in history] == names
    airflow.wait_run(dag, names[2])
    (run,) = airflow.runs(dag)
    given = [run[name] for name in ("dag_run_id", "logical_date", "data_interval_start", "data_interval_end")]
    assert given == [names[2], *(f"2013-01-0{day}T00:00:00Z" for day in (3, 3, 4))]
    airflow.trigger(dag, "again", logical_date=FIRST, interval=(FIRST, FIRST + DAY))
    airflow.wait_run(dag, "again")
    assert len(stack.ledger(dag).history()) == 6
    stack.assert_counted_once(dag, 6 * SIZE)
    waiting.stop()
