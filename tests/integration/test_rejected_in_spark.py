"""Rows that Spark applications reject: in the table of the transaction, as the rows that Python tasks reject."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_tx.base.errors import StagingError
from airflow_tx.sources.files.source import FileSource
from airflow_tx.spark import Batch
from airflow_tx.spark.connect import session
from airflow_tx.state import DeltaTable
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.integration.rejecting_app import applied, committed
from tests.stage import Stage, StageRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = "word,n\ncat,1\ndog,\nemu,3\n"


@pytest.fixture
def aside(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "lake" / "rejected")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable) -> StageRun:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    (tmp_path / "words.csv").write_text(ROWS)
    source = FileSource(f"{tmp_path}/*.csv", schema="word STRING, n INT")
    stage = Stage(source=source, inside=("count",), rejected=aside)
    found = StageRun(stage.spec, "r1")
    found.begin()
    return found


@pytest.fixture(params=["classic", "connect"])
def either(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    if request.param == "classic":
        yield request.getfixturevalue("spark")
        return
    server: LocalSparkConnect = request.getfixturevalue("spark_connect")
    with session(f"sc://127.0.0.1:{server.port}", tag="rejected", server="test") as found:
        yield found


def test_an_application_stores_rejected_rows_as_json_with_their_reason(
    run: StageRun, aside: DeltaTable, either: SparkSession
) -> None:
    def main(spark: SparkSession, batch: Batch) -> None:
        from pyspark.sql import functions as F

        rows = batch.read()
        batch.emit("good", rows.where("n = 1"))
        batch.reject(rows.where("n IS NULL"), "no n")
        batch.reject(rows.where("n = 3"), F.concat(F.col("word"), F.lit("\0!")))

    applied(run, either, main)
    names = ("tx_txid", "tx_task", "tx_reason", "tx_where", "tx_content")
    assert [tuple(row[name] for name in names) for row in committed(run, aside)] == [
        (1, "count", "emu\\x00!", "", '{"word":"emu","n":3}'),
        (1, "count", "no n", "", '{"word":"dog","n":null}'),
    ]


def test_an_application_fails_if_its_reason_column_is_empty_for_a_row(run: StageRun, spark: SparkSession) -> None:
    def main(spark: SparkSession, batch: Batch) -> None:
        from pyspark.sql import functions as F

        batch.reject(batch.read(), F.when(F.col("n") == 1, F.lit("one")))

    with pytest.raises(Exception, match="airflow_tx: a reason is empty"):
        applied(run, spark, main)


@pytest.mark.parametrize("reason", ["", " "])
def test_reject_raises_an_error_at_once_if_the_reason_is_empty(run: StageRun, spark: SparkSession, reason: str) -> None:
    with pytest.raises(StagingError, match="is empty"):
        applied(run, spark, lambda spark, batch: batch.reject(batch.read(), reason))


def test_reject_raises_an_error_if_the_dag_has_no_table_of_rejected_rows(run: StageRun, spark: SparkSession) -> None:
    run.spec = type(run.spec)(**{**vars(run.spec), "rejected": None})
    with pytest.raises(StagingError, match="the transaction has no table for rejected rows"):
        applied(run, spark, lambda spark, batch: batch.reject(batch.read(), "odd"))


def test_an_application_that_rejects_more_rows_than_it_read_is_refused(run: StageRun, spark: SparkSession) -> None:
    def main(spark: SparkSession, batch: Batch) -> None:
        rows = batch.read()
        batch.reject(rows, "odd")
        batch.reject(rows.where("n = 1"), "again")

    with pytest.raises(StagingError, match="the task rejected 4 rows but read only 3"):
        applied(run, spark, main)
