"""Times in Parquet files are read as the moments that they are, also INT96, as Spark writes it by itself."""

from __future__ import annotations

import datetime as dt
import io
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.outputs.staging.area import batches_in, read_schema
from airflow_tx.outputs.staging.row_hash import digest_of_batch

TIMES = [
    dt.datetime(1500, 2, 3, 4, 5, 6, 7),
    dt.datetime(2024, 1, 1),
    None,
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
IN_UTC = [None if each is None else each.replace(tzinfo=dt.timezone.utc) for each in TIMES]
MICROSECONDS = pa.timestamp("us")


def file(table: pa.Table, **options: Any) -> io.BytesIO:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    sink.seek(0)
    return sink


def rows(opened: io.BytesIO, *columns: str) -> list[dict[str, Any]]:
    return [row for batch in batches_in(opened, columns) for row in batch.to_pylist()]


def test_an_int96_time_of_any_year_is_read_with_a_precision_of_microseconds() -> None:
    table = pa.table({"n": [1, 2, 3, 4], "at": pa.array(TIMES, MICROSECONDS)})
    opened = file(table, use_deprecated_int96_timestamps=True)
    assert rows(opened) == [{"n": n, "at": at} for n, at in enumerate(IN_UTC, 1)]
    assert rows(opened, "at") == [{"at": at} for at in IN_UTC]
    assert read_schema(opened).field("at").type == pa.timestamp("us", tz="UTC")


def test_int96_times_have_the_digest_of_the_same_times_in_another_type() -> None:
    made = pa.table({"at": pa.array(IN_UTC, pa.timestamp("us", tz="UTC"))})
    opened = file(pa.table({"at": pa.array(TIMES, MICROSECONDS)}), use_deprecated_int96_timestamps=True)
    (batch,) = batches_in(opened)
    assert digest_of_batch(batch) == digest_of_batch(made.to_batches()[0])


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.list_(MICROSECONDS), [TIMES[0]], [IN_UTC[0]]),
        (pa.struct([("n", pa.int64()), ("at", MICROSECONDS)]), {"n": 1, "at": TIMES[3]}, {"n": 1, "at": IN_UTC[3]}),
        (pa.map_(pa.string(), MICROSECONDS), [("a", TIMES[1])], [("a", IN_UTC[1])]),
    ],
    ids=str,
)
def test_an_int96_time_inside_a_nested_value_is_read_as_a_timestamp(kind: Any, value: Any, found: Any) -> None:
    opened = file(pa.table({"n": pa.array([value], kind)}), use_deprecated_int96_timestamps=True)
    assert rows(opened) == [{"n": found}]


def test_a_time_without_a_time_zone_is_read_without_a_time_zone() -> None:
    assert rows(file(pa.table({"at": pa.array(TIMES, MICROSECONDS)}))) == [{"at": at} for at in TIMES]


def test_a_file_with_many_row_groups_is_never_in_memory_completely(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    part = pa.table({"n": pa.array(os.urandom(8) for _ in range(10_000))})
    with pq.ParquetWriter(path, part.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(20):
            writer.write_table(part)
    held = list[int]()
    tracemalloc.start()
    try:
        with path.open("rb") as opened:
            for _ in batches_in(opened):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(held) == 20
    # One group or two of twenty, as threads have them.
    assert max(held) < path.stat().st_size / 4
