"""Outputs of Spark applications that are appended to a table: written by executors, published by the commit."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StagingError, TxError
from airflow_tx.operators.spark import SparkBatchOperator
from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.state import DeltaTable, MemoryState, Sum
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.transaction.processing.batch import inputs_of, rows_of_output
from airflow_tx.transaction.processing.task import _KEY
from tests.integration.spark_runs import PushingTi, SparkRun, Topology, update
from tests.unit.bench import Numbers

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
APP = """
from pyspark.sql import functions as F
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    rows = spark.range(1000, numPartitions=2).select(
        "id",
        F.expr("concat('a b/:=%', id % 3)").alias("kind"),
        F.expr("IF(id = 7, NULL, date_add(DATE'2026-01-01', CAST(id % 2 AS INT)))").alias("day"),
        F.expr("TIMESTAMP'2026-01-01 10:00:00.123456+00:00' + make_interval(0, 0, 0, 0, 0, 0, id)").alias("at"),
        F.expr("named_struct('x', CAST(id AS INT), 'y', array(id))").alias("nested"),
        F.expr("CAST(id AS DECIMAL(9,2)) / 4").alias("amount"),
    )
    if "empty" in batch.args:
        rows = rows.withColumn("kind", F.expr("IF(id = 5, '', kind)"))
    if "interval" in batch.args:
        rows = rows.withColumn("for", F.expr("INTERVAL '1' DAY"))
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    batch.emit("orders", rows.limit(0) if "none" in batch.args else rows)
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before
    batch.emit("counts", rows.groupBy("kind").agg(F.count("*").alias("n")))
"""


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark_connect: LocalSparkConnect) -> None:
    for name in ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        if name in os.environ:  # SparkBatchOperator adds to them
            monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connect))


@pytest.fixture
def orders(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "the lake" / "orders", partition_by=["kind", "day"])


@pytest.fixture
def topology(tmp_path: Path, orders: DeltaTable) -> Topology:
    (tmp_path / "enrich.py").write_text(APP)
    found = Topology(Numbers(), tmp_path, str(tmp_path / "dag.py"))
    found.spec = type(found.spec)(**{**vars(found.spec), "tables": {("count", "orders"): orders}})
    return found


def processed(topology: Topology, operator: Any, run_id: str = "r1") -> SparkRun:
    run = topology.begin(run_id)
    run.execute(operator)
    return run


def connect(*arguments: str) -> SparkConnectBatchOperator:
    return SparkConnectBatchOperator(task_id="count", application="enrich.py", application_args=[*arguments])


def append_to(table: DeltaTable) -> Any:
    return update(table, "orders", writers="worker")


def totals() -> MemoryState:
    return MemoryState("totals", keys=["kind"], values={"n": Sum()})


def content(table: DeltaTable) -> list[dict[str, Any]]:
    return sorted(table.read(), key=lambda row: (row["tx_txid"], row["id"]))


@pytest.mark.lead
@pytest.mark.worth("executors write a table of a lake: by spark-submit, and on a Connect server")
@pytest.mark.parametrize("by", [pytest.param("submit", marks=pytest.mark.long), "connect"])
def test_rows_written_by_executors_become_visible_in_one_commit_with_another_state(
    topology: Topology, orders: DeltaTable, by: str
) -> None:
    operator: Any = connect()
    if by == "submit":
        conf = {"spark.ui.enabled": "false"}
        operator = SparkBatchOperator(task_id="count", application="enrich.py", reliable=False, conf=conf)
    operator.reliable = False  # it reads nothing of the batch
    run = processed(topology, operator)
    ref = run.committer.xcoms["count", "orders", -1]
    assert ref["rows"] == 1000
    assert ref["row_digest"]
    assert orders.read() == []
    other = totals()
    assert run.commit(append_to(orders), update(other)) is None
    rows = content(orders)
    assert [row["id"] for row in rows] == list(range(1000))
    assert {row["tx_txid"] for row in rows} == {1}
    assert rows[7]["day"] is None
    assert rows[1]["kind"] == "a b/:=%1"
    assert rows[1]["at"].isoformat() == "2026-01-01T10:00:01.123456+00:00"
    assert rows[5]["nested"] == {"x": 5, "y": [5]}
    assert sum(row["n"] for row in other.read()) == 1000
    files = [*Path(orders.uri).rglob("*.parquet")]
    assert "INT96" not in {column.physical_type for file in files for column in pq.ParquetFile(file).schema}


def test_a_replay_keeps_only_its_own_rows_and_an_output_without_rows_commits(
    topology: Topology, orders: DeltaTable
) -> None:
    operator = connect("none")
    operator.reliable = False
    assert processed(topology, operator).commit(append_to(orders)) is None
    assert content(orders) == []
    again = connect()
    again.reliable = False
    assert processed(topology, again, "r2").commit(append_to(orders)) is None
    assert orders.rows_by_txid() == {2: 1000}


def test_each_instance_of_a_mapped_application_appends_its_rows(topology: Topology, orders: DeltaTable) -> None:
    topology.spec = replace(topology.spec, mapped=frozenset({"count"}))
    run = topology.begin("r1")
    for index in range(2):
        operator = connect(*["none"] * index)
        operator.reliable = False
        ti = PushingTi("count", "r1", index)
        context: Any = {"ti": ti, "dag": topology.dag, _KEY: run.processing(ti)}
        operator.execute(context)
        run.committer.states[f"count_{index}"] = "success"
        run.committer.xcoms.update({("count", name, index): value for name, value in ti.pushed.items()})
    other = totals()
    assert run.commit(append_to(orders), update(other)) is None
    assert [row["id"] for row in content(orders)] == list(range(1000))
    assert sum(row["n"] for row in other.read()) == 2000


def test_rows_with_a_type_that_the_table_cannot_store_are_refused_in_one_line(topology: Topology) -> None:
    with pytest.raises(TxError) as refused:
        processed(topology, connect("interval"))
    assert "column for has the type interval day" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_text_is_refused_if_the_table_would_store_it_as_null(topology: Topology, orders: DeltaTable) -> None:
    with pytest.raises(TxError, match="partition column kind has an empty text, .*: give NULL or another text"):
        processed(topology, connect("empty"))
    assert orders.read() == []


def test_an_output_is_refused_if_its_files_are_missing_in_the_folder_of_the_table(
    topology: Topology, orders: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaTable, "list_staged", lambda *where: [])
    with pytest.raises(StagingError, match="Spark wrote 1000 rows, but only 0 are in"):
        processed(topology, connect())


def test_an_output_that_was_appended_to_a_table_cannot_be_read_as_rows(topology: Topology) -> None:
    operator = connect()
    operator.reliable = False
    run = processed(topology, operator)
    ref = run.committer.xcoms["count", "orders", -1]
    with pytest.raises(StagingError, match="its rows are appended to table"):
        list(rows_of_output(topology.spec, ref, run.begun))
    with pytest.raises(StagingError, match="its rows are appended to table"):
        inputs_of(topology.spec, {"orders": ref}, run.begun)
    with pytest.raises(StagingError, match="its rows are appended to table"):
        run.commit(update(MemoryState("wrong", keys=["id"], values={"rows": Sum()}), "orders"))
