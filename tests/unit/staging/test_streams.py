"""Rows that come as a stream are written part by part: never whole in memory, and all of them or none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StagingError, StagingUnavailable
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.outputs.staging import files
from airflow_tx.outputs.staging.area import WRITTEN_AT_ONCE, StagingArea, TryDir, batches_of, write_rows
from airflow_tx.outputs.staging.row_hash import digest_of_batch

NOON = dt.datetime(2024, 1, 1, 12, 0, 0, 1)


@pytest.fixture(params=["local", "remote"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> TryDir:
    root = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/streams"
    return StagingArea(root).try_dir("t", TransactionAttempt(1, 1), TaskTry("extract", -1, "1"))


def stream(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    first = next(batches)

    def all_of_them() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, all_of_them())


def numbers(count: int, each: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, each):
        values = list(range(start, start + each))
        yield pa.record_batch({"n": values, "text": [f"row {value}" for value in values]})


@pytest.mark.parametrize("each", [1, 1_000, 3 * WRITTEN_AT_ONCE])
def test_batches_of_any_size_are_written_in_row_groups_of_similar_size(where: TryDir, each: int) -> None:
    count = 3 * WRITTEN_AT_ONCE if each > 1 else 5
    output = write_rows(where, "rows", stream(numbers(count, each)), digested=True)
    assert output.rows == -(-count // each) * each
    with where.files.open(where.child("rows/part-0.parquet")) as file:
        footer = pq.ParquetFile(file).metadata
        sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert all(WRITTEN_AT_ONCE <= size < 2 * WRITTEN_AT_ONCE for size in sizes[:-1])
    assert sizes[-1] < 2 * WRITTEN_AT_ONCE
    found = sum(map(digest_of_batch, batches_of(where, "rows", output)), RowsDigest(0))
    assert found.text == output.row_digest != ""


def test_a_stream_is_never_in_memory_completely(where: TryDir) -> None:
    before = pa.total_allocated_bytes()
    held = []

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in numbers(20 * WRITTEN_AT_ONCE, WRITTEN_AT_ONCE):
            held.append(pa.total_allocated_bytes() - before)
            yield batch

    output = write_rows(where, "rows", stream(counted()), digested=True)
    assert output.rows == 20 * WRITTEN_AT_ONCE
    # The last batches of the stream find no more in memory than the first ones did.
    assert max(held[10:]) < 1.5 * max(held[2:10])


class TheirError(OSError):
    pass


def broken(error: Exception) -> Iterator[pa.RecordBatch]:
    yield from numbers(2 * WRITTEN_AT_ONCE, WRITTEN_AT_ONCE)
    raise error


@pytest.mark.parametrize("error", [TheirError("no route"), KeyError("n")], ids=repr)
def test_a_stream_that_fails_leaves_no_file_and_raises_its_own_error(where: TryDir, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        write_rows(where, "rows", stream(broken(error)))
    assert raised.value is error
    assert where.files.list(where.child("rows")) == {}


def test_a_refused_value_leaves_no_file(where: TryDir) -> None:
    batches = [pa.record_batch({"n": pa.array([each], pa.uint64())}) for each in (1, 2**64 - 1)]
    with pytest.raises(StagingError, match="its rows do not form a table .row 1: n = 18446744073709551615"):
        write_rows(where, "rows", pa.Table.from_batches(batches))
    assert where.files.list(where.child("rows")) == {}


def test_a_full_disk_is_not_an_error_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = StagingArea(str(tmp_path)).try_dir("t", TransactionAttempt(1, 1), TaskTry("extract", -1, "1"))

    class Full:
        def __init__(self, out: Any) -> None:
            pass

        def write(self, content: bytes) -> int:
            raise OSError(28, "No space left on device")

    made = files.Sink.__init__
    monkeypatch.setattr(files.Sink, "__init__", lambda self, out, making: made(self, Full(out), making))  # type: ignore[arg-type]
    with pytest.raises(StagingUnavailable, match="No space left on device"):
        write_rows(where, "rows", stream(numbers(10, 10)))
    assert where.files.list(where.child("rows")) == {}


TYPES: list[tuple[pa.DataType, Any]] = [
    *((kind, 5) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())),
    (pa.float16(), 1.5),
    (pa.float32(), 1.5),
    (pa.float64(), -0.0),
    (pa.bool_(), True),
    (pa.string(), "é"),
    (pa.large_string(), "é"),
    (pa.string_view(), "é"),
    (pa.binary(), b"a"),
    (pa.binary(1), b"a"),
    (pa.dictionary(pa.int8(), pa.string()), "a"),
    (pa.date32(), dt.date(2024, 1, 1)),
    (pa.date64(), dt.date(2024, 1, 1)),
    (pa.timestamp("ms"), NOON.replace(microsecond=1000)),
    (pa.timestamp("us", "Europe/Berlin"), NOON),
    (pa.timestamp("ns"), NOON),
    (pa.decimal128(5, 2), Decimal("1.50")),
    (pa.decimal128(38, 2), Decimal("1.50")),
    (pa.decimal256(20, 2), Decimal("1.50")),
    (pa.null(), None),
]


@pytest.mark.parametrize(("kind", "value"), TYPES, ids=str)
def test_the_digest_of_the_writer_equals_the_digest_of_each_reader(
    where: TryDir, kind: pa.DataType, value: Any
) -> None:
    output = write_rows(where, "rows", pa.table({"n": pa.array([value, None], kind)}), digested=True)
    found = sum(map(digest_of_batch, batches_of(where, "rows", output)), RowsDigest(0))
    assert found.text == output.row_digest != ""


@pytest.mark.parametrize("value", [[1], {"a": 1}, dt.time(1)], ids=str)
def test_rows_with_types_that_cannot_be_hashed_are_only_counted(where: TryDir, value: Any) -> None:
    output = write_rows(where, "rows", pa.table({"n": [value]}), digested=True)
    assert (output.rows, output.row_digest) == (1, "")
    assert [batch.num_rows for batch in batches_of(where, "rows", output)] == [1]
