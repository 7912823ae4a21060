"""The rows of csv and JSON files that Spark's executors read: as the client reads them, a file a task."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx.base.errors import ConfigError, TxError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import Manifest, StagingArea, dir_of, read_manifest, read_output
from airflow_tx.outputs.staging.descriptor import Descriptor
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.spark import Batch, batch_app
from airflow_tx.spark.connect import session
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIRST = TransactionAttempt(1, 1)
SCHEMA = (
    "id INT, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, amount DECIMAL(10,2), part DOUBLE, yes BOOLEAN, word STRING"
)
ROW = '7,2013-01-31,2013-01-31T10:00:00+02:00,2013-01-31 10:00:00.5,1.25,0.1,true,"a, ""b"" é"\n'
GOOD = f"id,day,at,wall,amount,part,yes,word\n{ROW},,,,,,,\n"
OBJECTS = '{"id": 1, "tags": ["x", null], "at": {"hour": 5}}\n{"id": 2}\n'


@pytest.fixture(params=[pytest.param("classic", marks=pytest.mark.long), "connect"])
def either(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of each kind."""
    if request.param == "classic":
        yield request.getfixturevalue("spark")
        return
    server: LocalSparkConnect = request.getfixturevalue("spark_connect")
    with session(server.url, tag="files", server="test") as connected:
        yield connected


def described(folder: Path, source: Any) -> Descriptor:
    metadata = json.loads(json.dumps(source.decide(FIRST, None).metadata))
    root = str(folder / "staging" / source.read_by)
    return Descriptor("words", FIRST, TaskTry("count", -1, "try-1"), metadata, source.serialize(), root)


def applied(spark: SparkSession, descriptor: Descriptor, *columns: str) -> Manifest:
    batch_app(lambda spark, batch: batch.emit("rows", batch.read(*columns))).run(spark, Batch(descriptor, spark))
    return read_manifest(dir_of(StagingArea(descriptor.root), descriptor))


def rows_of(spark: SparkSession, descriptor: Descriptor, *columns: str) -> tuple[int | None, list[dict[str, Any]]]:
    manifest = applied(spark, descriptor, *columns)
    rows = read_output(StagingArea(descriptor.root), manifest.refs()["rows"])
    return manifest.consumed_rows, sorted(map(dict, rows), key=str)


def refusal(spark: SparkSession, descriptor: Descriptor) -> str:
    with pytest.raises(TxError) as refused:
        applied(spark, descriptor, "id")
    assert len(str(refused.value).splitlines()) == 1
    return f"{type(refused.value).__name__} {refused.value}"


def test_executors_read_the_same_rows_as_the_client_and_use_one_task_for_each_file(
    either: SparkSession, tmp_path: Path
) -> None:
    for region in ("eu", "us"):
        (tmp_path / "in" / f"region={region}").mkdir(parents=True)
        for name in ("a", "b"):
            (tmp_path / "in" / f"region={region}" / f"{name}.csv").write_text(GOOD)
    how: dict[str, Any] = {"files_per_batch": 2, "schema": SCHEMA}
    by_client, by_executors = (
        described(tmp_path, PartitionedFileSource(f"{tmp_path}/in/*/*.csv", read_by=each, **how))
        for each in ("client", "executors")
    )
    expected = rows_of(either, by_client)
    assert expected[0] == len(expected[1]) == 8
    assert rows_of(either, by_executors) == expected
    from pyspark.sql import functions as F

    batch = Batch(by_executors, either)
    parts = batch.read("id").select(F.spark_partition_id().alias("part")).groupBy("part").count().collect()
    assert [row["count"] for row in parts] == [2] * 4
    batch.close()


def test_executors_read_json_files_with_a_declared_schema(either: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(OBJECTS)
    how: dict[str, Any] = {"format": "json", "schema": "id INT, tags ARRAY<STRING>, at STRUCT<hour: INT>"}
    by_client, by_executors = (
        described(tmp_path, FileSource(f"file://{tmp_path}/*.json", read_by=each, **how))
        for each in ("client", "executors")
    )
    assert rows_of(either, by_executors) == rows_of(either, by_client)


@pytest.mark.parametrize("changed", [None, GOOD.replace("7,", "8,"), GOOD + ROW], ids=["value", "changed", "longer"])
def test_executors_refuse_rows_with_the_same_message_as_the_client(
    either: SparkSession, tmp_path: Path, changed: str | None
) -> None:
    path = tmp_path / "b.csv"
    (tmp_path / "a.csv").write_text(GOOD)
    path.write_text(GOOD if changed else GOOD + ROW.replace("2013-01-31,", "2013-02-31,", 1))
    by_client, by_executors = (
        described(tmp_path, FileSource(f"{tmp_path}/*.csv", 2, schema=SCHEMA, read_by=each))
        for each in ("client", "executors")
    )
    path.write_text(changed or path.read_text())
    expected = refusal(either, by_client)
    assert ("b.csv was " if changed else "b.csv: line 4: day = '2013-02-31' does not fit") in expected
    assert refusal(either, by_executors) == expected


def test_executors_whose_python_lacks_the_package_are_refused(either: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    setting = "spark.sql.execution.pyspark.python"
    either.conf.set(setting, str(bare / "bin" / "python"))
    try:
        found = refusal(
            either, described(tmp_path, FileSource(f"{tmp_path}/*.csv", schema=SCHEMA, read_by="executors"))
        )
    finally:
        either.conf.unset(setting)
    assert "the Python of Spark's executors has no " in found
    assert "PYSPARK_PYTHON" in found


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"read_by": "nobody"}, "'client' or 'executors'"),
        ({"format": "json"}, "Declare the columns"),
        ({"format": "parquet"}, "csv and json"),
        ({"options": {"escape": "!"}}, "only Spark supports the option"),
        ({"malformed": "reject", "schema": SCHEMA}, "only the client can keep rejected rows"),
        ({"path_glob": "s3://bucket/*.csv", "conn_id": "lake"}, "no Airflow connections"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_a_source_whose_files_executors_cannot_read_is_refused_when_it_is_created(given: Any, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as refused:
        FileSource(**{"path_glob": "in/*.csv", "read_by": "executors", **given})
    assert len(str(refused.value).splitlines()) == 1
