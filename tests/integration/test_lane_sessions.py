"""The sessions of a lane on a real Spark Connect server, before there is a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx import append
from airflow_tx.coordinator.lane import Lane
from airflow_tx.ledger.answers import NoData
from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.outputs.staging.area import TryDir
from airflow_tx.spark import connect
from airflow_tx.state import DeltaTable
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.transaction.commit.update import Update
from tests.unit.coordinator.lane_world import TASK, Bounded, LaneWorld, ShowingStore

pytestmark = pytest.mark.spark

PATIENCE = 600.0
"""Seconds that a transaction waits for its turn in the lane. It would leave: then nothing here executes its run."""

# It is executed once in a lane, when it is loaded; it says which sessions it had.
APP = """
from pathlib import Path
from pyspark.sql import functions as F
from airflow_tx.spark import batch_app

LOADED = Path({loaded!r})
if LOADED.with_suffix(".fails").exists():
    LOADED.with_suffix(".fails").unlink()
    raise RuntimeError("not this time")
LOADED.touch()

@batch_app
def main(spark, batch):
    with LOADED.open("a") as file:
        file.write(spark.session_id + chr(10))
    rows = batch.read("number").agg(F.count("*").alias("rows"), F.sum("number").alias("sum"))
    batch.emit("counts", rows.select(F.lit("all").alias("key"), "rows", "sum"))
"""


class Applied(LaneWorld):
    """A topology whose task is a real application."""

    script = ""

    def counted(self) -> Any:
        return SparkConnectBatchOperator(task_id=TASK, application=self.script).output["counts"]


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    return tmp_path / "loaded"


@pytest.fixture
def world(spark_connect: LocalSparkConnect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loaded: Path) -> Applied:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    connection = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connection))
    script = tmp_path / "app.py"
    script.write_text(APP.format(loaded=str(loaded)))
    monkeypatch.setattr(Applied, "script", str(script))
    lines: list[str] = []

    def say(text: str, *arguments: Any, exc_info: Any = None) -> None:
        lines.append(text % arguments)

    log = SimpleNamespace(info=say, warning=say, lines=lines)
    return Applied(ShowingStore(), log, source=Bounded(0), options={"max_pending": 2})


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions that have rehearsed a batch."""
    found: list[str] = []
    rehearse = connect.rehearse

    def noted(spark: Any, where: TryDir) -> None:
        rehearse(spark, where)
        found.append(spark.session_id)

    monkeypatch.setattr(connect, "rehearse", noted)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions that were opened."""
    found: list[str] = []
    session: Any = connect.session

    @contextmanager
    def noted(*arguments: Any, **options: Any) -> Iterator[Any]:
        with session(*arguments, **options) as made:
            found.append(made.session_id)
            yield made

    monkeypatch.setattr(connect, "session", noted)
    return found


def commit(world: Applied, lane: Lane, count: int) -> None:
    """Let the source have so many batches, and the lane commit them."""
    world.source.count = count
    while len(world.history) < count:
        lane.work(0.0)
        lane.wait(0.2)


@pytest.mark.lead
def test_a_lane_prepares_its_spark_sessions_and_its_application_before_the_first_batch(
    world: Applied, opened: list[str], rehearsed: list[str], loaded: Path
) -> None:
    lane = world.lane(patience=PATIENCE)
    with lane.opened():
        assert isinstance(lane.work(0.0), NoData)
        eventually(lambda: len(opened) == 2 and len(rehearsed) == 1, 240, "two sessions are open, one has rehearsed")
        assert loaded.read_text() == ""
        assert world.record(1) is None
        assert world.history == {}
        commit(world, lane, 6)
    world.assert_exact(6)
    assert set(loaded.read_text().split()) <= set(opened)
    assert {entry.attempt for entry in world.history.values()} == {1}


def test_a_failed_preparation_of_a_session_is_logged_and_batches_still_commit(world: Applied, loaded: Path) -> None:
    loaded.with_suffix(".fails").touch()
    lane = world.lane(patience=PATIENCE)
    with lane.opened():
        told = "A session on connection spark_connect_default could not be prepared (not this time)"
        eventually(lambda: any(told in line for line in world.log.lines), 240, "the log says so")
        commit(world, lane, 3)
    world.assert_exact(3)
    assert {entry.attempt for entry in world.history.values()} == {1}


class Appending(Applied):
    """A topology whose application's rows go into a table, written by executors."""

    def update_of(self, counted: Any) -> Update:
        return append(counted, state=self.table)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(Path(self.script).with_name("lake"), partition_by=["key"])

    @property
    def totals(self) -> tuple[int, int]:
        rows = self.table.read()
        assert sorted(row["tx_txid"] for row in rows) == list(self.history)
        return sum(row["rows"] for row in rows), sum(row["sum"] for row in rows)


def test_rows_that_executors_write_for_a_lane_are_in_the_table_once(world: Applied) -> None:
    appending = Appending(ShowingStore(), world.log, source=Bounded(0), options={"max_pending": 2})
    lane = appending.lane(patience=PATIENCE)
    with lane.opened():
        commit(appending, lane, 4)
    appending.assert_exact(4)
    assert {entry.attempt for entry in appending.history.values()} == {1}
