"""A Spark application that reads a part of its batch: what a limit cuts off is noticed whatever the source knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx import FileSource
from airflow_tx.base.errors import RowsDiffer
from airflow_tx.spark import Batch
from airflow_tx.spark.connect import session
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.integration.rejecting_app import applied
from tests.stage import Stage, StageRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 100_000
Part = Callable[["SparkSession", "DataFrame"], "DataFrame"]


def of_view(spark: SparkSession, rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("part_of_a_batch")
    return spark.sql("SELECT * FROM part_of_a_batch LIMIT 10")


PARTS: dict[str, Part] = {
    "limit": lambda spark, rows: rows.limit(10),
    "limit, counted": lambda spark, rows: rows.limit(10).groupBy().count(),
    "LIMIT": lambda spark, rows: spark.sql("SELECT * FROM {rows} LIMIT 10", rows=rows),
    "limit in small letters": lambda spark, rows: spark.sql("select * from {rows}\nlimit 10", rows=rows),
    "limit beside a join": lambda spark, rows: rows.limit(10).join(spark.range(ROWS).toDF("n"), "n"),
}
WHOLE: dict[str, Part] = {
    "the greatest": lambda spark, rows: rows.orderBy("n", ascending=False).limit(3),
    "a limit that is greater": lambda spark, rows: rows.limit(ROWS + 1),
    "a limit of what is counted": lambda spark, rows: rows.groupBy("n").count().limit(3),
    "joined with some of others": lambda spark, rows: rows.join(spark.range(5).limit(2).toDF("n"), "n"),
}
UNKNOWN: dict[str, Part] = {
    "take": lambda spark, rows: spark.createDataFrame(rows.take(3)),
    "head": lambda spark, rows: spark.createDataFrame(rows.head(3)),
    "joined with nothing": lambda spark, rows: rows.join(spark.range(5).limit(0).toDF("n"), "n"),
}


@pytest.fixture(params=["classic", "connect"])
def any_spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    if request.param == "classic":
        yield request.getfixturevalue("spark")
        return
    server: LocalSparkConnect = request.getfixturevalue("spark_connect")
    with session(server.url, tag="parts", server="test") as connected:
        yield connected


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StageRun:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    pq.write_table(pa.table({"n": range(ROWS)}), tmp_path / "a.parquet", row_group_size=10_000)
    made = StageRun(Stage(source=FileSource(f"{tmp_path}/*.parquet", format="parquet")).spec, "r1")
    made.begin()
    return made


def unproven(run: StageRun, spark: SparkSession, part: Part) -> Any:
    """Let an application emit a part, and commit it."""

    def main(spark: SparkSession, batch: Batch) -> None:
        batch.emit("part", part(spark, batch.read()))

    applied(run, spark, main)
    commit = run.commit_of([])
    commit.complete()
    commit.prepare()
    assert commit.try_to_commit()
    assert commit.processed is not None
    return commit.processed.unproven


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_an_output_is_refused_if_a_limit_cuts_off_rows_of_the_batch(
    run: StageRun, any_spark: SparkSession, part: Part
) -> None:
    with pytest.raises(RowsDiffer, match=r"task count read \d+ rows of the batch, but the batch has more rows"):
        unproven(run, any_spark, part)


@pytest.mark.parametrize("part", WHOLE.values(), ids=WHOLE.keys())
def test_an_output_is_committed_if_a_limit_cuts_off_no_row_of_the_batch(
    run: StageRun, any_spark: SparkSession, part: Part
) -> None:
    assert not any("stopped" in why for why in unproven(run, any_spark, part))


def test_an_output_from_a_view_with_a_limit_is_refused_or_unproven_on_a_spark_server(
    run: StageRun, any_spark: SparkSession
) -> None:
    with suppress(RowsDiffer):
        assert len(unproven(run, any_spark, of_view)) == 1


@pytest.mark.parametrize("part", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_output_is_not_proven_if_spark_may_not_have_read_all_rows(
    run: StageRun, any_spark: SparkSession, part: Part
) -> None:
    assert len(unproven(run, any_spark, part)) > 0
