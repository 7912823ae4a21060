"""Sources of partitions and of runs, read in a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import RowsRefused, SourceError, SourceNotSettled
from airflow_tx.base.rows import dicts_of
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Source, rebuild
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.state import DeltaTable
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite
from tests.integration.upstream_orders import orders_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)

READER = """
from pyspark.sql.functions import col, lit

def events(start, end, spark=None, path=None):
    if spark is None:
        raise ValueError("only Spark reads these")
    at = col("at").cast("timestamp")
    return spark.read.schema("at STRING, n INT").json(path).where((at >= lit(start)) & (at < lit(end)))
"""


def rows_of(source: Source, metadata: Any, spark: Any) -> list[Row]:
    """What a Spark application reads, in its own process."""
    again = rebuild(*json.loads(json.dumps(source.serialize())))
    frame: Any = again.emit_batch(ATTEMPT, metadata, spark)
    return sorted((row.asDict() for row in frame.collect()), key=str)


def rows_without_spark(source: Source, metadata: Any) -> list[Row]:
    return sorted(cast("Iterable[Any]", source.emit_batch(ATTEMPT, metadata)), key=str)


@pytest.mark.parametrize("folder", ["in", "a b{c}"])
def test_spark_and_python_read_the_same_rows_from_object_storage(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    for name, n in (("a.csv", 1), ("b [1].csv", 2), ("b 1.csv", 3)):
        (tmp_path / folder / name).write_text(f"n\n{n}\n{n * 10}\n")
    source = FileSource(f"file://{tmp_path}/{folder}/*.csv", files_per_batch=3, options={"fs.s3a.endpoint": "unused"})
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    found = rows_of(source, batch.metadata, spark)
    assert found == rows_without_spark(source, batch.metadata)
    assert {row["n"] for row in found} == {"1", "10", "2", "20", "3", "30"}


def test_spark_and_python_read_the_same_rows_from_an_upstream_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaTable(tmp_path / "orders")
    orders = orders_of(table, tmp_path, monkeypatch).run(3)
    orders.pipeline.restate(2, "o2", 50)
    source = orders.source(upstream_txid=True, max_transactions=3)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    found = rows_of(source, batch.metadata, spark)
    assert found == sorted(dicts_of(source.emit_batch(ATTEMPT, batch.metadata)), key=str)
    assert sorted((row["upstream_txid"], row["n"]) for row in found) == [(1, 1), (3, 3), (4, 50)]
    source.check_read(ATTEMPT)
    source.close()
    orders.written(1)
    with pytest.raises(SourceNotSettled):
        rows_of(source, batch.metadata, spark)


def test_inferred_column_types_stay_the_same_in_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    columns = "n,half,day,at,yes,word"
    (tmp_path / "1.csv").write_text(f"{columns}\n7,0.5,2013-01-02,2013-01-02 10:11:12,true,a\n")
    (tmp_path / "2.csv").write_text(f"{columns}\n8,1,2013-01-03,2013-01-03T00:00:00,FALSE,9\n,,,2013-01-04,,\n")
    (tmp_path / "3.csv").write_text(f"{columns}\n9,1,2013-01-03,2013-01-03,true,b\nten,1,,,,\n")
    (tmp_path / "4.csv").write_text(f"{columns},more\n9,1,,,,b,1\n")
    source = FileSource(f"{tmp_path}/*.csv", options={"inferSchema": True})
    first, second, third, fourth = _batches(source, 4)
    found = rows_of(source, first, spark) + rows_of(source, second, spark)
    assert found == rows_without_spark(source, first) + rows_without_spark(source, second)
    assert found[1] == {
        "n": 8,
        "half": 1.0,
        "day": date(2013, 1, 3),
        "at": datetime(2013, 1, 3),
        "yes": False,
        "word": "9",
    }
    with pytest.raises(RowsRefused) as refused:
        source.emit_batch(ATTEMPT, third, spark)
    told = str(refused.value)
    assert (
        f"{tmp_path}/3.csv: line 3: n = 'ten' does not fit the schema (n BIGINT): it is no whole number in digits. "
        "Correct the file, then: " in told
    )
    declared = "`n` STRING, `half` DOUBLE, `day` DATE, `at` TIMESTAMP_NTZ, `yes` BOOLEAN, `word` STRING"
    assert f"give the source schema={declared!r}, then clear the task." in told
    # A job that reads none of the new columns would not notice them.
    with pytest.raises(SourceError, match=r"4\.csv: header .* column 'more' is new\. Correct the file"):
        source.emit_batch(ATTEMPT, fourth, spark)


def _batches(source: Source, count: int) -> list[Any]:
    """The metadata of the first batches, as the ledger gives them."""
    found, position = [], None
    for txid in range(1, count + 1):
        batch = source.decide(TransactionAttempt(txid, 1), position)
        assert batch is not None
        metadata, position = json.loads(json.dumps([batch.metadata, batch.position]))
        found.append(metadata)
    return found


@pytest.mark.parametrize("schema", [None, "line STRING"])
def test_spark_and_python_read_the_same_lines_of_text(spark: SparkSession, tmp_path: Path, schema: str | None) -> None:
    (tmp_path / "a.log").write_bytes('\ufeffone\n\n\ttwo, "three" \r\nfour\rfive\nä'.encode())
    source = FileSource(f"{tmp_path}/*.log", format="text", schema=schema)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    found = rows_of(source, batch.metadata, spark)
    assert found == rows_without_spark(source, batch.metadata)
    assert {next(iter(row.values())) for row in found} == {"one", "", '\ttwo, "three" ', "four", "five", "ä"}


@pytest.mark.parametrize("schema", [None, "word STRING, n INT"])
def test_spark_and_python_read_the_same_rows_from_memory(spark: SparkSession, schema: str | None) -> None:
    words = {"0": [{"word": "cat", "n": 1}, {"word": "dog", "n": 2}], "1": [{"word": "man", "n": 3}]}
    source = MemorySource(words, per_batch=2, schema=schema)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    found = rows_of(source, batch.metadata, spark)
    assert sorted(found, key=lambda row: row["n"]) == [row for part in words.values() for row in part]


def test_spark_and_python_read_the_same_rows_and_columns_from_partitioned_folders(
    spark: SparkSession, tmp_path: Path
) -> None:
    for region, n in (("eu", 1), ("us", 2), ("__HIVE_DEFAULT_PARTITION__", 3)):
        folder = tmp_path / f"region={region}"
        folder.mkdir()
        (folder / "a.csv").write_text(f"n\n{n}\n{n * 10}\n")
    source = PartitionedFileSource(f"{tmp_path}/*/*.csv", schema="n INT", kind="opaque")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    found = rows_of(source, batch.metadata, spark)
    assert found == rows_without_spark(source, batch.metadata)
    assert {(row["n"], row["region"]) for row in found} >= {(1, "eu"), (20, "us"), (3, None)}
    assert len(found) == 6


class TestDataIntervalsThatOnlySparkReads(SourceSuite):
    """The suite itself, as a user with such a source runs it."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "tx_spark_reader.py").write_text(READER)
        monkeypatch.syspath_prepend(str(tmp_path))
        self.folder = tmp_path / "events"
        self.folder.mkdir()
        self.days = 0

    @pytest.fixture
    def spark(self, spark: SparkSession) -> SparkSession:
        return spark

    def make(self) -> Source:
        return DataIntervalSource("tx_spark_reader.events", options={"path": str(self.folder)})

    def add(self) -> list[Row]:
        rows = []
        for day in range(self.days, self.days + 2):
            added = [{"at": (FIRST + timedelta(days=day, hours=hour)).isoformat(), "n": day} for hour in (0, 23)]
            (self.folder / f"{day}.json").write_text("".join(json.dumps(row) + "\n" for row in added))
            rows += added
        self.days += 2
        return rows

    def runs(self) -> list[RunInfo]:
        starts = [FIRST + timedelta(days=day) for day in range(self.days)]
        end = timedelta(days=1)
        return [RunInfo(f"run {each}", "scheduled", each, each + end, each, None, None, {}) for each in starts]


NAMED = {
    "amount=2": ("a.csv", "id,amount\n1,2\n", {"schema": "id INT, amount INT"}, {"id": 1, "amount": 2}),
    "amount=9": ("a.csv", "id,amount\n1,2\n", {"schema": "id INT, amount INT"}, None),
    "text=2": ("a.csv", "id,text\n1,2\n", {}, {"id": "1", "text": "2"}),
    "text=3": ("a.csv", "id,text\n1,2\n", {}, None),
    "Id=1": ("a.csv", "id,text\n1,2\n", {}, None),
    "day=2024-01-01": (
        "a.json",
        '{"id": 1, "day": "2024-01-01"}\n{"id": 1}\n',
        {"format": "json", "schema": "id INT, day DATE"},
        {"id": 1, "day": date(2024, 1, 1)},
    ),
    "day=2024-01-02": (
        "a.json",
        '{"id": 1, "day": "2024-01-01"}\n',
        {"format": "json", "schema": "id INT, day DATE"},
        None,
    ),
    "at=2024-01-01": (
        "a.json",
        '{"id": 1, "at": "2024-01-01T00:00:00Z"}\n',
        {"format": "json", "schema": "id INT, at TIMESTAMP"},
        {"id": 1, "at": datetime(2024, 1, 1, tzinfo=timezone.utc)},
    ),
    "k=7": (
        "a.csv",
        "id\n1\n",
        {"schema": "id INT, k INT", "missing_columns": "null"},
        {"id": 1, "k": 7},
    ),
    "k=x": ("a.csv", "id\n1\n", {"schema": "id INT, k INT", "missing_columns": "null"}, None),
    "k=1": ("a.csv", "id\n1\n", {"schema": "id INT, k INT"}, {"id": 1, "k": 1}),
    "k=2": ("a.csv", "1\n", {"schema": "id INT, k INT", "options": {"header": False}}, {"id": 1, "k": 2}),
    "k=3": ("a.csv", "1,3\n", {"schema": "id INT, k INT", "options": {"header": False}}, {"id": 1, "k": 3}),
    "k=4": ("a.csv", "id,k\n1,5\n", {"schema": "id INT, k INT"}, None),
    "id=5": ("a.parquet", {"id": [5, 5], "n": [1, 1]}, {"format": "parquet"}, {"id": 5, "n": 1}),
    "id=6": ("a.parquet", {"id": [6, 5], "n": [1, 1]}, {"format": "parquet"}, None),
    "n=1": ("a.parquet", {"id": [5, 5], "n": [1, None]}, {"format": "parquet"}, None),
    "new=1": ("a.parquet", {"id": [5, 5]}, {"format": "parquet"}, {"id": 5, "new": "1"}),
    "a=1/A=2": ("a.csv", "id\n1\n", {}, None),
}
"""Folders with the files in them, how they are read, and each of their rows; None: they are refused."""


@pytest.mark.parametrize("folder", NAMED)
def test_a_column_that_differs_from_the_value_in_the_folder_name_is_refused(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    name, content, how, row = NAMED[folder]
    (tmp_path / folder).mkdir(parents=True)
    if isinstance(content, str):
        (tmp_path / folder / name).write_text(content)
    else:
        pq.write_table(pa.table(content), tmp_path / folder / name)
    source: Any = PartitionedFileSource(f"{tmp_path}/{'*/' * len(Path(folder).parts)}*", **cast("Any", how))
    metadata = source.decide(ATTEMPT, None).metadata
    readers: Any = {
        "read": lambda: [*map(dict, source.emit_batch(ATTEMPT, metadata))],
        "arrow": lambda: [each for batch in source.emit_arrow(ATTEMPT, metadata) for each in batch.to_pylist()],
        "spark": lambda: source.emit_batch(ATTEMPT, metadata, spark).toArrow().to_pylist(),
    }
    for reader, read in readers.items():
        if row is not None:
            found = read()
            assert (reader, found) == (reader, [row] * len(found))
        else:
            with pytest.raises(
                Exception, match=r"the name of its folder|are the same column in Spark and in SQL|is no|no INT"
            ):
                read()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("parse_json('{}')", "VARIANT"),
        ("named_struct('x', parse_json('{}'))", "VARIANT"),
        ("ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')", "GEOMETRY"),
        ("ST_GeogFromWKB(X'0101000000000000000000F03F0000000000000040')", "GEOGRAPHY"),
    ],
)
def test_a_parquet_column_that_python_or_spark_does_not_support_is_refused_by_both(
    spark: SparkSession, tmp_path: Path, value: str, kind: str
) -> None:
    spark.sql(f"SELECT 1 AS id, {value} AS v").coalesce(1).write.parquet(str(tmp_path / "in"))
    source = FileSource(f"{tmp_path}/in/*.parquet", format="parquet")
    batch: Any = source.initialize_transaction(1, None)
    for reading in (spark, None):
        with pytest.raises(SourceError, match=rf"column (v|x) has the type {kind}, whose values differ between Spark"):
            source.emit_batch(ATTEMPT, batch.metadata, reading)


def test_a_parquet_column_of_the_type_half_float_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": pa.array([1.5], pa.float16())}), tmp_path / "a.parquet")
    source = FileSource(f"{tmp_path}/*.parquet", format="parquet")
    batch: Any = source.initialize_transaction(1, None)
    with pytest.raises(SourceError, match="column x has the type FLOAT16"):
        source.emit_batch(ATTEMPT, batch.metadata)
