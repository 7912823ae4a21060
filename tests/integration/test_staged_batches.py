"""The rows of csv and JSON files as an application gets them: read once by the client, and staged for Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import FailedBatch, RowsRefused, SourceError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import Manifest, StagingArea, dir_of, read_manifest, read_output
from airflow_tx.outputs.staging.descriptor import Descriptor
from airflow_tx.sources.files import rows as rows_of_files
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.spark import Batch, batch_app
from airflow_tx.spark.connect import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIRST = TransactionAttempt(1, 1)
ROWS = "id,word,odd name.\n1,a,x\n2,b,\n3,,z\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(ROWS)
    return tmp_path


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path / "staging"))


def source_in(place: Path, **options: Any) -> FileSource:
    return FileSource(f"{place}/in/*.csv", schema="id INT, word STRING, `odd name.` STRING", **options)


def described(area: StagingArea, source: Any) -> Descriptor:
    metadata = json.loads(json.dumps(source.decide(FIRST, None).metadata))
    return Descriptor("words", FIRST, TaskTry("count", -1, "try-1"), metadata, source.serialize(), area.root)


def staged(area: StagingArea) -> list[Path]:
    return sorted(Path(area.root.removeprefix("local://")).rglob("_read-*/*"))


def applied(spark: SparkSession, descriptor: Descriptor, main: Callable[[Any, Batch], None]) -> Manifest:
    """Run an application; what it leaves."""
    batch_app(main).run(spark, Batch(descriptor, spark))
    return read_manifest(dir_of(StagingArea(descriptor.root), descriptor))


@pytest.mark.parametrize(
    ("named", "columns"),
    [((), ["id", "word", "odd name."]), (("ID",), ["id"]), (("`odd name.`", "id"), ["id", "odd name."]),
     (("*",), ["id", "word", "odd name."]), (("upper(word)",), None)],
    ids=["none", "in other letters", "odd", "all", "unknown"],
)  # fmt: skip
def test_only_columns_that_an_application_requests_are_staged(
    place: Path, area: StagingArea, spark: SparkSession, named: tuple[str, ...], columns: list[str] | None
) -> None:
    batch = Batch(described(area, source_in(place)), spark)
    if columns is None:
        with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
            batch.read(*named)
        return
    assert batch.read(*named).count() == 3
    (file,) = staged(area)
    assert pq.read_schema(file).names == columns


def test_a_column_that_an_application_reads_twice_is_staged_once(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    found = []

    def main(spark: SparkSession, batch: Batch) -> None:
        rows, ids = batch.read("word", "id"), batch.read("ID")
        found.append(len(staged(area)))
        batch.emit("pairs", rows.join(ids, rows["id"] == ids["ID"]).select(rows["id"], "word"))
        batch.emit("odd", batch.read("`odd name.`"))
        found.append(len(staged(area)))

    manifest = applied(spark, described(area, source_in(place)), main)
    assert found == [1, 2]
    assert sorted(row["id"] for row in read_output(area, manifest.refs()["pairs"])) == [1, 2, 3]
    assert [row["odd name."] for row in read_output(area, manifest.refs()["odd"])] == ["x", None, "z"]


def test_staging_a_batch_runs_no_spark_job(place: Path, area: StagingArea, spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("staging", "")
    Batch(described(area, source_in(place)), spark).read("id")
    assert not tracker.getJobIdsForGroup("staging")


@pytest.mark.parametrize("fails", [False, True], ids=["well", "with an error"])
def test_staged_rows_are_deleted_when_the_application_ends(
    place: Path, area: StagingArea, spark: SparkSession, fails: bool
) -> None:
    def main(spark: SparkSession, batch: Batch) -> None:
        batch.emit("rows", batch.read())
        assert staged(area)
        if fails:
            raise FailedBatch("not today")

    try:
        applied(spark, described(area, source_in(place)), main)
    except FailedBatch:
        assert fails
    assert staged(area) == []


def test_a_refused_row_leaves_no_staged_file(place: Path, area: StagingArea, spark: SparkSession) -> None:
    (place / "in" / "a.csv").write_text(f"{ROWS}x,y,z\n")
    with pytest.raises(RowsRefused, match=r"a\.csv: line 5: id = 'x' does not fit"):
        applied(spark, described(area, source_in(place)), lambda spark, batch: batch.emit("rows", batch.read("word")))
    assert staged(area) == []


def test_files_staged_by_a_killed_driver_are_not_read(place: Path, area: StagingArea, spark: SparkSession) -> None:
    descriptor = described(area, source_in(place))
    Batch(descriptor, spark).read()
    (left,) = staged(area)
    left.write_bytes(left.read_bytes()[:100])
    manifest = applied(spark, descriptor, lambda spark, batch: batch.emit("rows", batch.read()))
    assert manifest.consumed_rows == 3


def test_the_error_about_a_staging_area_that_spark_cannot_reach_names_the_area(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    def main(spark: SparkSession, batch: Batch) -> None:
        rows = batch.read()
        staged(area)[0].unlink()
        batch.emit("rows", rows)

    with pytest.raises(SourceError, match=r"Spark does not find the rows of the batch in .*_read.* must be storage"):
        applied(spark, described(area, source_in(place)), main)


def test_a_batch_can_be_staged_in_object_storage(place: Path, tmp_path: Path, spark_connect: Any) -> None:
    area = StagingArea(f"local://{tmp_path}/staging")
    seen = []

    def main(spark: SparkSession, batch: Batch) -> None:
        rows = batch.read("id")
        seen.extend(staged(area))
        batch.emit("rows", rows)

    with session(spark_connect.url, tag="test", server="the test's") as spark:
        manifest = applied(spark, described(area, source_in(place)), main)
    assert [row["id"] for row in read_output(area, manifest.refs()["rows"])] == [1, 2, 3]
    assert len(seen) == 1
    assert staged(area) == []


class Longer(FileSource):
    """Uses a column that its readers need not name."""

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        rows: Any = super().emit_batch(attempt, metadata, spark)
        return rows.where("id > 1")


def test_all_columns_of_a_subclassed_source_are_staged_and_its_number_of_rows_is_unknown(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    source = Longer(f"{place}/in/*.csv", schema="id INT, word STRING, `odd name.` STRING")
    batch = Batch(described(area, source), spark)
    assert batch.read("word").count() == 2
    manifest = applied(spark, batch.descriptor, lambda spark, batch: batch.emit("words", batch.read("word").limit(2)))
    assert (manifest.consumed_rows, manifest.read[0].more) == (2, False)


def test_files_of_all_partition_folders_are_staged_as_one_file(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    for region in ("eu", "us"):
        (place / "parts" / f"region={region}").mkdir(parents=True)
        (place / "parts" / f"region={region}" / "a.csv").write_text("id\n1\n2\n")
    batch = Batch(described(area, PartitionedFileSource(f"{place}/parts/*/*.csv", schema="id INT")), spark)
    assert sorted(map(tuple, batch.read("region", "id").collect())) == [("eu", 1), ("eu", 2), ("us", 1), ("us", 2)]
    assert len(staged(area)) == 1


def test_json_without_a_schema_gets_its_types_from_spark_and_is_checked_by_the_client(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    file = place / "in" / "a.json"
    file.write_text('{"n": 1, "s": null, "l": [{"x": 1.5}]}\n{"n": 2}\n')
    source = FileSource(f"{place}/in/*.json", format="json")
    rows = Batch(described(area, source), spark).read()
    assert rows.schema.simpleString() == "struct<l:array<struct<x:double>>,n:bigint,s:string>"
    assert len(staged(area)) == 1
    file.write_text('{"n": 1}\n{"n": \n')
    with pytest.raises(RowsRefused, match=r"a\.json: line 2: it is no JSON"):
        Batch(described(area, source), spark).read()


def test_files_staged_outside_of_an_application_are_deleted_when_the_source_is_closed(
    place: Path, spark: SparkSession
) -> None:
    source = source_in(place)
    rows: Any = source.emit_batch(FIRST, source.decide(FIRST, None).metadata, spark)  # type: ignore[union-attr]
    (file,) = (Path(each.removeprefix("file://")) for each in rows.inputFiles())
    assert file.exists()
    source.close()
    assert not file.exists()


@pytest.mark.parametrize("options", [{}, {"options": {"escape": "\\"}}], ids=["the client's", "Spark's"])
def test_files_with_options_that_only_spark_supports_are_not_staged(
    place: Path, area: StagingArea, spark: SparkSession, options: Any
) -> None:
    batch = Batch(described(area, source_in(place, **options)), spark)
    assert batch.read().count() == 3
    assert len(staged(area)) == (0 if options else 1)


def test_a_spark_error_about_a_file_is_one_line_that_contains_the_file_name(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    (place / "in" / "a.csv").write_text("id,word,odd name.\n1\n")
    descriptor = described(area, source_in(place, options={"escape": "\\"}))
    with pytest.raises(RowsRefused, match=r"in/a\.csv.* Correct the file, then: airflow tx replay words 1") as refused:
        applied(spark, descriptor, lambda spark, batch: batch.emit("rows", batch.read()))
    assert len(str(refused.value).splitlines()) == 1


def test_malformed_rows_that_spark_reads_are_recorded_with_file_and_line(
    place: Path, area: StagingArea, spark: SparkSession
) -> None:
    (place / "in" / "a.csv").write_text(f"{ROWS}x,y,z\n4\n")
    descriptor = described(area, source_in(place, malformed="reject"))
    manifest = applied(spark, descriptor, lambda spark, batch: batch.emit("rows", batch.read("id")))
    aside = [*read_output(area, manifest.refs()["tx_malformed"])]
    assert [row["tx_where"] for row in aside] == [f"{place}/in/a.csv:5", f"{place}/in/a.csv:6"]
    assert [row["tx_content"] for row in aside] == ['{"id":"x","word":"y","odd name.":"z"}', "4"]
    assert manifest.consumed_rows == 5
    assert manifest.outputs["rows"].rows == 3


def test_rows_of_files_are_read_and_staged_in_blocks(
    place: Path, area: StagingArea, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_of_files, "BLOCK", 12)
    Batch(described(area, source_in(place)), spark).read()
    (file,) = staged(area)
    assert pq.ParquetFile(file).num_row_groups > 1
