"""Batches on a real Spark Connect server, by the operator, from `begin` to the commit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.base.errors import ConfigError
from airflow_tx.operators.spark import SparkBatchOperator
from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.outputs.staging.area import read_output
from airflow_tx.outputs.staging.files import LocalFiles
from airflow_tx.sources.files.source import FileSource
from airflow_tx.spark.connect import SparkUnreachable, session
from airflow_tx.spark.submit import ApplicationFailed
from airflow_tx.state import Count, MemoryState, Sum
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.integration.spark_runs import Topology, update

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
FLIGHTS = "dep_delay,carrier,origin\n5,UA,EWR\n-1,UA,EWR\nNA,UA,EWR\n7,AA,JFK\nNA,DL,JFK\n"
APP = """
from pathlib import Path
from helper import TOLD
from airflow_tx import FailedBatch
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    if "fail" in batch.args:
        raise FailedBatch(TOLD)
    if "replace" in batch.args:
        rows = batch.read()
        Path(batch.args[1]).write_text("dep_delay,carrier,origin\\n5,UA,EWR\\n")
        return batch.emit("counts", rows)
    batch.emit("counts", batch.read().select("no_such_column") if "wrong" in batch.args else batch.read())
"""


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for name in ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        if name in os.environ:  # SparkBatchOperator adds to them
            monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    found: LocalSparkConnect = request.getfixturevalue("spark_connect")
    connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": found.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connect))


@pytest.fixture
def flights(tmp_path: Path) -> Topology:
    """A topology of two files, one a transaction, with an application and its helper beside the DAG file."""
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.csv").write_text(FLIGHTS)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "helper.py").write_text("TOLD = 'May is not complete'\n")
    source = FileSource(f"{tmp_path}/in/*.csv", files_per_batch=1, options={"nullValue": "NA"})
    return Topology(source, tmp_path, str(ROOT / "dags" / "flights.py"))


def counts(topology: Topology, ti: Any) -> list[dict[str, Any]]:
    return sorted(read_output(topology.area, ti.pushed["counts"]), key=lambda row: str(row["carrier"]))


@pytest.mark.lead
@pytest.mark.worth("one application in both ways, committed")
def test_an_application_writes_the_same_output_with_spark_submit_and_on_a_connect_server(flights: Topology) -> None:
    state = MemoryState("totals", keys=["carrier", "origin"], values={"flights": Count(), "dep_delay": Sum()})
    app = "spark_apps/flight_counts.py"
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.ui.enabled": "false"}
    first = flights.begin("r1")
    submitted = first.execute(SparkBatchOperator(task_id="count", application=app, conf=quick))
    second = flights.begin("r2")
    connected = second.execute(SparkConnectBatchOperator(task_id="count", application=app))
    assert counts(flights, submitted) == counts(flights, connected)
    assert {name: ref["rows"] for name, ref in connected.pushed.items()} == {"counts": 3, "overall": 1}
    for run in (first, second):
        assert run.commit(update(state)) is None
    found = {key: stored.value for key, stored in state.database.rows.items()}
    assert found == {("AA", "JFK"): (2, 14), ("DL", "JFK"): (2, 0), ("UA", "EWR"): (6, 8)}
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_a_failed_application_reports_the_reason_and_its_task_acks_no_output(flights: Topology) -> None:
    flights.dag.fileloc = str(flights.folder / "dag.py")
    run = flights.begin("r1")
    with pytest.raises(AirflowFailException, match="May is not complete"):
        run.execute(SparkConnectBatchOperator(task_id="count", application="app.py", application_args=["fail"]))
    with pytest.raises(ApplicationFailed, match=r"app.py of task count in transaction 1.1 failed: AnalysisException"):
        run.execute(SparkConnectBatchOperator(task_id="count", application="app.py", application_args=["wrong"]))
    state = MemoryState("totals", keys=["carrier"], values={"flights": Count()})
    run.commit(update(state))
    assert not state.database.rows


@pytest.mark.worth("a changed input is noticed by the job that read it")
@pytest.mark.parametrize(
    "operator", [SparkConnectBatchOperator, pytest.param(SparkBatchOperator, marks=pytest.mark.long)]
)
def test_a_task_fails_without_an_ack_if_a_file_is_replaced_while_a_job_reads_it(
    flights: Topology, operator: type[SparkConnectBatchOperator | SparkBatchOperator]
) -> None:
    flights.dag.fileloc = str(flights.folder / "dag.py")
    run = flights.begin("r1")
    file = flights.folder / "in" / "a.csv"
    with pytest.raises((AirflowFailException, ApplicationFailed), match=rf"file {file} changed while it was read"):
        run.execute(operator(task_id="count", application="app.py", application_args=["replace", str(file)]))
    state = MemoryState("totals", keys=["carrier"], values={"flights": Count()})
    run.commit(update(state))
    assert not state.database.rows


@pytest.mark.parametrize(
    ("own", "told"),
    [("_read-", "Spark wrote 5 rows, but only 0 are in"), ("nothing", "Spark does not find the rows of the batch in")],
    ids=["output", "all"],
)
def test_a_staging_folder_on_the_disk_of_another_host_is_refused(
    flights: Topology, monkeypatch: pytest.MonkeyPatch, own: str, told: str
) -> None:
    elsewhere = flights.folder / "disk of the executors"
    usual = LocalFiles.spark_uri
    monkeypatch.setattr(
        LocalFiles, "spark_uri", lambda self, name: usual(self, name) if own in name else f"file://{elsewhere}/{name}"
    )
    flights.dag.fileloc = str(flights.folder / "dag.py")
    run = flights.begin("r1")
    with pytest.raises(ApplicationFailed, match=rf"{told} .*storage that .* share"):
        run.execute(SparkConnectBatchOperator(task_id="count", application="app.py"))


def test_a_session_is_closed_after_its_block_and_the_error_names_an_unreachable_server(
    spark_connect: LocalSparkConnect, flights: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        session(spark_connect.url, tag="flights 1.1 count", server="connection x") as spark,
    ):
        raise ZeroDivisionError
    with pytest.raises(Exception, match=r"(?i)closed|stopped|NO_ACTIVE_SESSION"):
        spark.range(1).collect()
    with (
        pytest.raises(SparkUnreachable, match=r"connection x cannot be reached: 127.0.0.1:1: .*refused"),
        session("sc://127.0.0.1:1", tag="", server="connection x", patience=0),
    ):
        pass
    with pytest.raises(ConfigError, match="No such connection. Make it: airflow connections add nowhere"):
        flights.begin("r1").execute(
            SparkConnectBatchOperator(task_id="count", application="spark_apps/flight_counts.py", conn_id="nowhere")
        )
