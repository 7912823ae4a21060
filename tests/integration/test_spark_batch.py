"""Spark applications on a real Spark: one through spark-submit, the rest in one session of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx.acks import Collector, open_ackers
from airflow_tx.base.connections.lookup import Endpoint, handed_over
from airflow_tx.base.errors import (
    ConfigError,
    FailedBatch,
    RowsRefused,
    SourceError,
    StagingError,
    TransactionDefinitionError,
)
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.code_digest import file_digest
from airflow_tx.outputs.messages.tree import Origin
from airflow_tx.outputs.staging.area import (
    SMALL_ROWS,
    Output,
    StagingArea,
    TryDir,
    dir_of,
    read_manifest,
    read_output,
    scan_output,
    write_descriptor,
)
from airflow_tx.outputs.staging.descriptor import Ackers, Descriptor
from airflow_tx.sources.api import Batch as Rows
from airflow_tx.sources.files.source import FileSource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.spark import Batch, batch_app
from airflow_tx.spark.app import Failure, load_app, read_failure
from airflow_tx.spark.connect import session
from airflow_tx.spark.submit import driver_environment
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FLIGHT_COUNTS = str(Path(__file__).parents[2] / "spark_apps" / "flight_counts.py")
FLIGHTS = "dep_delay,carrier,origin\n5,UA,EWR\n-1,UA,EWR\nNA,UA,EWR\n7,AA,JFK\nNA,DL,JFK\n"
COUNTS = [
    {"carrier": "AA", "origin": "JFK", "flights": 1, "dep_delay": 7},
    {"carrier": "DL", "origin": "JFK", "flights": 1, "dep_delay": 0},
    {"carrier": "UA", "origin": "EWR", "flights": 3, "dep_delay": 4},
]


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path / "staging area"))


def batch_of(area: StagingArea, tmp_path: Path, name: str = "a.csv", **source: Any) -> Descriptor:
    """A transaction of one small file."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(FLIGHTS)
    files = FileSource(f"{folder}/*.csv", **source)
    rows = files.initialize_transaction(3, None)
    assert isinstance(rows, Rows)
    attempt = TransactionAttempt(3, 2)
    return Descriptor("flights", attempt, TaskTry("count", -1, "try-1"), rows.metadata, files.serialize(), area.root)


def ordered(area: StagingArea, where: TryDir, name: str) -> list[dict[str, Any]]:
    rows = read_output(area, read_manifest(where).refs()[name])
    return sorted(rows, key=lambda row: tuple(map(str, row.values())))


@pytest.mark.long
def test_an_application_run_by_spark_submit_writes_its_complete_output(area: StagingArea, tmp_path: Path) -> None:
    descriptor = batch_of(area, tmp_path)
    submit = [
        str(Path(sys.executable).with_name("spark-submit")),
        "--master",
        "local[1]",
        "--conf",
        "spark.ui.enabled=false",
    ]
    # A driver of seconds is done before the better compiler pays: half the processor time.
    quick = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **quick}
    command = [*submit, FLIGHT_COUNTS, write_descriptor(area, descriptor)]
    ended = run_command(command, env=environment, capture_output=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "flight_counts.py, flights 3.2 count: emitted counts (3 rows), overall (1 rows)" in ended.stdout
    assert ordered(area, dir_of(area, descriptor), "counts") == COUNTS
    assert ordered(area, dir_of(area, descriptor), "overall") == [{"flights": 5}]
    assert read_manifest(dir_of(area, descriptor)).code == file_digest(Path(FLIGHT_COUNTS).read_bytes())


_READER = """
import pathlib
from airflow.sdk import BaseHook

def orders(start, end, spark=None, *, seen):
    found = BaseHook.get_connection("orders_db")
    pathlib.Path(seen).write_text(f"{found.host} {found.login} {len(found.password)}")
    url = f"jdbc:unknown://{found.host}/orders"
    return spark.read.jdbc(url, "orders", properties={"user": found.login, "password": found.password})
"""
_APPLICATION = """
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    batch.emit("rows", batch.read())
"""


@pytest.mark.long
def test_a_reader_in_a_driver_gets_its_connection_and_a_jdbc_error_is_one_line(
    area: StagingArea, tmp_path: Path
) -> None:
    dag_file, seen = tmp_path / "dag.py", tmp_path / "seen"
    (tmp_path / "orders_of_day.py").write_text(_READER)
    (tmp_path / "app.py").write_text(_APPLICATION)
    source = DataIntervalSource("orders_of_day.orders", {"seen": str(seen)}, connections=["orders_db"])
    rows = {"from": "2026-01-01T00:00:00+00:00", "to": "2026-01-02T00:00:00+00:00"}
    attempt, task = TransactionAttempt(1, 1), TaskTry("count", -1, "try-1")
    descriptor = Descriptor("orders", attempt, task, rows, source.serialize(), area.root)
    password = "pass-" + os.urandom(8).hex()
    endpoint = Endpoint("orders_db", "postgres", "db.example", login="ann", password=password)
    submit = str(Path(sys.executable).with_name("spark-submit"))
    environment = {
        **os.environ,
        # What Airflow lets a task see of its database.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "airflow-db-not-allowed:///",
        **driver_environment(os.environ, dag_file=str(dag_file), binary=submit, local=True),
        **handed_over(endpoint),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", str(tmp_path / "app.py")]
    command.append(write_descriptor(area, descriptor))
    ended = run_command(command, env=environment, capture_output=True, timeout=240)
    assert ended.returncode == 1
    assert seen.read_text() == f"db.example ann {len(password)}"
    failure = read_failure(dir_of(area, descriptor))
    assert str(failure) == "java.sql.SQLException: No suitable driver"
    told = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("app.py, ")]
    assert told == [f"app.py, {descriptor}: {failure}"]
    written = [
        ended.stdout,
        ended.stderr,
        *(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file()),
    ]
    assert not any(password in each for each in written)


def test_an_application_can_run_in_an_existing_spark_session(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    descriptor = batch_of(area, tmp_path, options={"nullValue": "NA"})
    refs = load_app(FLIGHT_COUNTS).run(spark, Batch(descriptor, spark))
    assert {name: ref.rows for name, ref in refs.items()} == {"counts": 3, "overall": 1}
    assert json.loads(json.dumps(refs["counts"].to_json()))["txid"] == 3
    assert ordered(area, dir_of(area, descriptor), "counts") == COUNTS
    assert read_manifest(dir_of(area, descriptor)).code == file_digest(Path(FLIGHT_COUNTS).read_bytes())


def test_a_small_output_fetched_by_the_driver_equals_the_output_that_spark_would_write(
    area: StagingArea, tmp_path: Path, spark_connect: LocalSparkConnect
) -> None:
    @batch_app
    def main(spark: SparkSession, batch: Batch) -> None:
        rows = batch.read().selectExpr("*", f"explode(sequence(1, {batch.args[0]})) at", "CAST(1 AS DECIMAL(9,2)) few")
        batch.emit("rows", rows)

    def output(number: int, times: int) -> Output:
        descriptor = replace(batch_of(area, tmp_path), task=TaskTry("count", -1, f"try-{number}"))
        main.run(spark, Batch(descriptor, spark, [str(times)], main.small))
        where = dir_of(area, descriptor)
        assert scan_output(where, "rows").columns == ("dep_delay", "carrier", "origin", "at", "few")
        return read_manifest(where).outputs["rows"]

    with session(f"sc://127.0.0.1:{spark_connect.port}", tag="small", server="test") as spark:
        first, second, large, after, small = (output(*each) for each in enumerate((1, 1, SMALL_ROWS, SMALL_ROWS, 1)))

    fetched = "part-0.parquet"
    assert [each.files[0].name == fetched for each in (first, second, large, after, small)] == [
        False, True, True, False, False,
    ]  # fmt: skip
    assert (first.content, first.row_digest) == (second.content, second.row_digest) == (small.content, small.row_digest)
    assert (large.rows, large.content, large.row_digest) == (after.rows, "", after.row_digest)


def test_an_application_that_was_not_loaded_from_a_file_has_no_code_digest() -> None:
    names: dict[str, Any] = {}
    exec("def main(spark, batch): ...", names)
    assert batch_app(names["main"]).code == ""


def test_an_application_can_read_its_transaction_and_its_arguments(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    seen: list[Any] = []

    @batch_app
    def main(spark: SparkSession, batch: Batch) -> None:
        seen.append((batch.txid, str(batch.attempt), batch.metadata["files"][0]["name"], batch.args))
        batch.emit("all", batch.read().limit(0))

    refs = main.run(spark, Batch(batch_of(area, tmp_path), spark, ["--fast"]))
    assert seen == [(3, "3.2", "a.csv", ("--fast",))]
    assert refs["all"].rows == 0


def test_wildcards_and_spaces_in_file_names_are_read_literally(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    descriptor = batch_of(area, tmp_path, name="a [1]*{x}%20.csv")
    (tmp_path / "in" / "a 1x.csv").write_text(FLIGHTS)
    assert Batch(descriptor, spark).read().count() == 5


def test_a_row_that_does_not_fit_the_schema_fails_the_batch(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    descriptor = batch_of(area, tmp_path, schema="dep_delay INT, carrier STRING, origin STRING")
    topology = descriptor.topology
    advice = f"Correct the file, then: airflow tx replay {topology} 3 --changed-rows --why TEXT; or correct the options"
    with pytest.raises(RowsRefused, match=r"a\.csv: line 4: dep_delay = 'NA' does not fit") as refused:
        Batch(descriptor, spark).read()
    assert advice in str(refused.value)
    swapped = batch_of(
        area, tmp_path, schema="carrier STRING, dep_delay INT, origin STRING", options={"nullValue": "NA"}
    )
    with pytest.raises(Exception, match="header .* does not match the schema"):
        Batch(swapped, spark).read().collect()


def test_a_failing_application_reports_the_reason_and_writes_no_manifest(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    @batch_app
    def main(spark: SparkSession, batch: Batch) -> None:
        batch.emit("counts", batch.read())
        raise ZeroDivisionError("nothing to divide by\nand more")

    descriptor = batch_of(area, tmp_path)
    where = dir_of(area, descriptor)
    with pytest.raises(ZeroDivisionError):
        main.run(spark, Batch(descriptor, spark))
    assert str(read_failure(where)) == "ZeroDivisionError: nothing to divide by"
    with pytest.raises(StagingError, match="incomplete"):
        read_manifest(where)


def test_a_driver_restarted_by_the_cluster_completes_its_output_once(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    calls: list[int] = []

    @batch_app
    def main(spark: SparkSession, batch: Batch) -> None:
        calls.append(batch.txid)
        batch.emit("counts", batch.read())
        if len(calls) == 1:
            raise KeyboardInterrupt

    descriptor = batch_of(area, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        main.run(spark, Batch(descriptor, spark))
    refs = main.run(spark, Batch(descriptor, spark))
    assert main.run(spark, Batch(descriptor, spark)) == refs
    assert (len(calls), refs["counts"].rows) == (2, 5)
    assert len(list(read_output(area, refs["counts"]))) == 5


def test_a_batch_that_the_application_fails_on_purpose_is_recorded_as_such(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    @batch_app
    def main(spark: SparkSession, batch: Batch) -> None:
        raise FailedBatch("the file of May is not complete")

    descriptor = batch_of(area, tmp_path)
    with pytest.raises(FailedBatch):
        main.run(spark, Batch(descriptor, spark))
    assert read_failure(dir_of(area, descriptor)) == Failure("FailedBatch", "the file of May is not complete", True)


def test_an_application_that_emits_no_output_or_one_name_twice_is_refused(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    @batch_app
    def nothing(spark: SparkSession, batch: Batch) -> None:
        batch.read()

    @batch_app
    def twice(spark: SparkSession, batch: Batch) -> None:
        batch.emit("counts", batch.read())
        batch.emit("counts", batch.read())

    descriptor = batch_of(area, tmp_path)
    with pytest.raises(StagingError, match=r"application test_spark_batch.py emitted nothing. Call batch.emit"):
        nothing.run(spark, Batch(descriptor, spark))
    with pytest.raises(StagingError, match=r"'counts' of task count in transaction 3.2 refused: .* emitted it twice"):
        twice.run(spark, Batch(descriptor, spark))


def test_the_manifest_of_an_application_contains_the_number_of_emitted_messages(
    area: StagingArea, tmp_path: Path, spark: SparkSession, redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    @batch_app
    def main(spark: SparkSession, batch: Batch) -> None:
        rows = batch.read().collect()
        emitted.extend(batch.emit_messages(len(rows)))
        emitted.extend(batch.emit_messages(1))
        batch.emit_messages(1, tracked=False)

    emitted = list[str]()
    found = {"conn_type": "redis", "host": "127.0.0.1", "port": redis.port, "password": REDIS_PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_QUEUES", json.dumps(found))
    descriptor = replace(batch_of(area, tmp_path), ackers=Ackers(2, "queues", "/tx", anchored=True))
    with closing(open_ackers(redis.url())) as ackers:
        origin = Origin("flights", 3, 2)
        ackers.open(origin, "", 2)
        assert main.run(spark, Batch(descriptor, spark)) == {}
        assert read_manifest(dir_of(area, descriptor)).trees == len(emitted) == 6
        assert ackers.report(origin).open == {"count": 6}
        with Collector(redis.url()) as collector:
            for reference in emitted:
                collector.process(reference).ack()
        report = ackers.report(origin)
        assert (report.open, report.emitted) == ({}, {descriptor.task: 6})
        later = replace(descriptor, task=TaskTry("count", -1, "try-2"))
        with pytest.raises(FailedBatch, match="in an earlier try, and workers may have taken them"):
            main.run(spark, Batch(later, spark))
        ackers.forget(origin)
    with pytest.raises(TransactionDefinitionError, match=r"task count emits messages. Write .*ackers=1"):
        main.run(spark, Batch(replace(later, ackers=None), spark))


def test_a_file_that_changed_since_the_batch_was_decided_is_refused_before_a_job_runs(
    area: StagingArea, tmp_path: Path, spark: SparkSession
) -> None:
    descriptor = batch_of(area, tmp_path)
    (tmp_path / "in" / "a.csv").write_text(FLIGHTS + "1,UA,EWR\n")
    with pytest.raises(SourceError, match=r"a.csv was \d+ bytes"):
        Batch(descriptor, spark).read()


@pytest.mark.parametrize("read_first", [True, False], ids=["after it was read", "before it is read"])
def test_an_output_has_no_manifest_if_a_file_is_replaced_before_the_application_ends(
    area: StagingArea, tmp_path: Path, spark: SparkSession, *, read_first: bool
) -> None:
    descriptor = batch_of(area, tmp_path)
    file = tmp_path / "in" / "a.csv"

    def main(spark: SparkSession, batch: Batch) -> None:
        rows = batch.read()
        if read_first:
            batch.emit("rows", rows)
        file.write_text(FLIGHTS.replace("UA", "AA"))
        if not read_first:
            batch.emit("rows", rows)

    with pytest.raises(SourceError, match=rf"file {file} changed while it was read: it still has \d+ bytes"):
        batch_app(main).run(spark, Batch(descriptor, spark))
    with pytest.raises(StagingError):
        read_manifest(dir_of(area, descriptor))


def test_a_script_that_defines_no_application_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"The file has 0 batch apps. Decorate exactly one"):
        load_app(str(script))


def run_script(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_script_may_define_helper_functions_after_its_application(area: StagingArea, tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(
        "from airflow_tx.spark import batch_app\n@batch_app\ndef main(spark, batch):\n    helper()\n"
        "def helper():\n    raise ValueError('below')\n"
    )
    assert run_script(script).stderr.endswith("with SparkBatchOperator, which passes a descriptor.\n")
    gone = run_script(script, f"{tmp_path}/gone/_descriptor.json")
    assert (gone.returncode, "This file does not exist" in gone.stderr.splitlines()[-1]) == (1, True)
    app = load_app(str(script))
    with pytest.raises(ValueError, match="below"):
        app(None, None)  # type: ignore[arg-type]
