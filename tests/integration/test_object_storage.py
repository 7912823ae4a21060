"""Sources of files and staging on a real S3 server, reached as Airflow's ObjectStoragePath does it, without Spark."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.outputs.staging.files import open_files
from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite
from tests.servers.s3 import Bucket, LocalS3

ATTEMPT = TransactionAttempt(1, 1)


@pytest.fixture
def bucket(s3: LocalS3) -> Bucket:
    return Bucket(s3)


class _InABucket(SourceSuite):
    """Numbered csv objects in folders."""

    kind = "transactional"
    secrets = ("127.0.0.1",)

    @pytest.fixture(autouse=True)
    def place(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.number = 0
        self.away: dict[str, bytes] = {}

    def put(self, folder: str, **columns: str) -> list[Row]:
        self.number += 1
        name = f"{folder}/{self.number:04}.csv"
        rows = [{"file": name, "n": str(self.number * 10 + n)} for n in range(2)]
        self.bucket.put(name, "file,n\n" + "".join(f"{row['file']},{row['n']}\n" for row in rows))
        return [{**row, **columns} for row in rows]


class TestFileSourceOnS3(_InABucket):
    def make(self) -> FileSource:
        url = f"{self.bucket.url}/in/*.csv"
        return FileSource(url, files_per_batch=2, kind=self.kind, conn_id=self.bucket.conn_id)

    def add(self) -> list[Row]:
        return [row for _ in range(5) for row in self.put("in")]

    def lose_rows(self) -> None:
        self.bucket.delete(["in/0001.csv"])


@pytest.mark.long
class TestOpaquePartitionedFileSourceOnS3(_InABucket):
    kind = "opaque"

    def make(self) -> PartitionedFileSource:
        url = f"{self.bucket.url}/orders/*/*.csv"
        return PartitionedFileSource(url, files_per_batch=2, kind=self.kind, conn_id=self.bucket.conn_id)

    def add(self) -> list[Row]:
        return [
            row for name in ("eu", "us") for _ in range(3) for row in self.put(f"orders/region={name}", region=name)
        ]

    def add_partition(self) -> list[Row]:
        return self.put("orders/region=asia", region="asia")

    def lose_partition(self) -> None:
        folder = f"{self.bucket.name}/orders/region=us"
        self.away = {name: self.bucket.fs.cat_file(name) for name in self.bucket.fs.find(folder)}
        self.bucket.fs.rm(list(self.away))

    def return_partition(self) -> None:
        self.bucket.fs.pipe(self.away)

    def lose_rows(self) -> None:
        self.bucket.delete(["orders/region=eu/0001.csv"])


def take(source: FileSource, position: Json = None) -> Batch:
    batch = source.decide(ATTEMPT, position)
    assert batch is not None
    return batch


def names(batch: Batch) -> list[str]:
    return [file["name"] for file in cast("dict[str, Any]", batch.metadata)["files"]]


@pytest.mark.parametrize(
    "pattern",
    ["in/*.csv", "in/**/*.csv", "in/x=*/*.csv", "in/*/*.csv", "*/*.csv", "in/[ab].csv", "in/?.csv", "**/c.csv"],
)
def test_a_glob_matches_the_same_names_in_a_bucket_as_on_a_disk(bucket: Bucket, tmp_path: Path, pattern: str) -> None:
    for name in ("in/a.csv", "in/b.csv", "in/ab.csv", "in/.h.csv", "in/x=1/c.csv", "in/x=2/d.csv", "in/x=1/.z/e.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("n\n1\n")
        bucket.put(name, "n\n1\n")
    on_disk = FileSource(f"{tmp_path}/{pattern}", files_per_batch=10)
    on_s3 = FileSource(f"{bucket.url}/{pattern}", files_per_batch=10, conn_id=bucket.conn_id)
    assert names(take(on_s3)) == names(take(on_disk))
    assert on_s3.backlog(None) == on_disk.backlog(None) > 0


@pytest.mark.parametrize("name", ["in/b.csv/", "in/b.csv/part-0"])
def test_a_folder_that_matches_the_glob_of_the_source_is_refused(bucket: Bucket, name: str) -> None:
    bucket.put("in/a.csv", "n\n1\n")
    bucket.put(name, "")
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id)
    with pytest.raises(
        SourceError, match=rf"folder {bucket.url}/in/b\.csv matches the glob, but the glob must match only files"
    ):
        source.decide(ATTEMPT, None)


def test_an_object_that_changed_after_its_batch_was_decided_is_reported_from_the_listing(bucket: Bucket) -> None:
    bucket.put("in/a.csv", "n\n1\n")
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id)
    metadata = take(source).metadata
    assert source.changed_since(metadata) is None
    bucket.put("in/a.csv", "n\n2\n")
    source.backlog(None)
    assert source.changed_since(metadata) == (
        f"1 file(s) changed: {bucket.url}/in/a.csv: it still has 4 bytes, but was written again"
    )


def test_an_object_younger_than_the_minimum_age_is_not_taken(bucket: Bucket) -> None:
    bucket.put("in/a.csv", "n\n1\n")
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id, min_age=3600)
    assert source.decide(ATTEMPT, None) is None


def test_objects_written_by_another_client_are_seen_at_once(bucket: Bucket) -> None:
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id)
    bucket.put("in/a.csv", "n\n1\n")
    position = take(source).position
    assert source.decide(ATTEMPT, position) is None
    bucket.put("in/b.csv", "n\n1\n")
    assert names(take(source, position)) == ["b.csv"]


def test_an_object_replaced_while_it_is_read_is_refused(bucket: Bucket) -> None:
    bucket.put("in/a.csv", "n\n1\n")
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id)
    assert len(list(cast("Any", source.emit_batch(ATTEMPT, take(source).metadata)))) == 1
    source.check_read(ATTEMPT)
    bucket.put("in/a.csv", "n\n2\n")
    with pytest.raises(
        SourceError, match=r"file s3://bucket-\d+/in/a.csv changed while it was read: it still has 4 bytes"
    ):
        source.check_read(ATTEMPT)
    bucket.delete(["in/a.csv"])
    with pytest.raises(
        SourceError, match=r"file s3://bucket-\d+/in/a.csv changed while .*: it is missing or unreadable"
    ):
        source.check_read(ATTEMPT)


def test_an_object_with_the_same_size_and_other_content_is_reported_as_changed(bucket: Bucket) -> None:
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id)
    bucket.put("in/a.csv", "n\n1\n")
    batch = take(source)
    bucket.put("in/a.csv", "n\n1\n")  # the very same again
    assert list(cast("Iterable[Any]", source.emit_batch(ATTEMPT, batch.metadata))) == [{"n": "1"}]
    bucket.put("in/a.csv", "n\n2\n")
    with pytest.raises(SourceError, match=r"file s3://bucket-\d+/in/a.csv was 4 bytes with etag:\w+, but is 4 bytes"):
        source.emit_batch(ATTEMPT, batch.metadata)


def test_a_batch_contains_as_many_objects_as_its_limit_allows_but_at_least_one(bucket: Bucket) -> None:
    for name, size in (("a", 10), ("b", 20), ("c", 100), ("d", 5)):
        bucket.put(f"in/{name}.csv", "n" * size)
    source = FileSource(f"{bucket.url}/in/*.csv", conn_id=bucket.conn_id, max_bytes_per_batch=30)
    first = take(source)
    assert (names(first), first.size) == (
        ["a.csv", "b.csv"],
        {"files": 2, "why": "2 of 4 files: max_bytes_per_batch=30"},
    )
    second = take(source, first.position)
    assert names(second) == ["c.csv"]
    assert take(source, second.position).reason == "the only file that there was"


def test_parquet_and_json_objects_are_read_without_spark(bucket: Bucket) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2]}), file)
    bucket.put("in/a.parquet", file.getvalue())
    bucket.put("in/a.json", '{"n": 1}\n{"n": 2}\n')
    for kind in ("parquet", "json"):
        source = FileSource(f"{bucket.url}/in/*.{kind}", format=kind, conn_id=bucket.conn_id)
        assert list(cast("Iterable[Any]", source.emit_batch(ATTEMPT, take(source).metadata))) == [{"n": 1}, {"n": 2}]


def test_the_marker_object_of_a_folder_is_not_read_as_a_file(bucket: Bucket) -> None:
    bucket.put("in/", "")
    bucket.put("in/a.csv", "n\n1\n")
    for pattern in ("in/*", "in/**/*"):
        source = FileSource(f"{bucket.url}/{pattern}", files_per_batch=10, conn_id=bucket.conn_id)
        assert names(take(source)) == ["a.csv"]


def test_the_staging_area_writes_lists_and_removes_files_in_a_bucket(bucket: Bucket) -> None:
    files = open_files(f"s3://{bucket.conn_id}@{bucket.name}/staging")
    assert files.list("") == {}
    bucket.put("staging/flights/1/", "")
    files.write("flights/1/a", b"one")
    files.write("flights/b", b"2")
    assert files.list("") == {"flights": None}
    assert files.list("flights") == {"1": None, "b": 1}
    assert files.list("flights/1") == {"a": 3}
    assert files.read("flights/1/a") == b"one"
    with files.open("flights/1/a") as opened:
        opened.seek(1)
        assert opened.read() == b"ne"
    bucket.put("staging/flights/1/late", "")
    assert files.list("flights/1") == {"a": 3, "late": 0}
    files.copy("flights/1/a", "kept/1/a")
    assert files.size("kept/1/a") == 3
    files.remove_tree("flights")
    files.remove_tree("flights")
    assert files.read("kept/1/a") == b"one"
    files.remove_tree("kept")
    assert files.list("") == {}


def test_a_missing_bucket_causes_a_one_line_error(bucket: Bucket) -> None:
    source = FileSource("s3://nosuch/in/*.csv", conn_id=bucket.conn_id)
    with pytest.raises(SourceError, match=r"no file matches s3://nosuch/in/\*.csv"):
        source.decide(ATTEMPT, None)
