"""Statistics of files: a bound that is too narrow would lose rows."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state.api import TXID, Misfit
from airflow_tx.state.lake.delta import TableFile
from airflow_tx.state.lake.files import TEXT, check_txid, read_footer, text_bounds


def _file(columns: dict[str, Any], *, txid: int = 7, groups: int = 100) -> TableFile:
    count = len(next(iter(columns.values())))
    table = pa.table({**columns, TXID: pa.array([txid] * count, pa.int64())})
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=groups)
    out.seek(0)
    return read_footer(out, path="p", size=1, partition={}, partition_fields=[])


def _bounds(file: TableFile, name: str) -> tuple[Any, Any, int]:
    said = json.loads(file.stats)
    return said["minValues"].get(name), said["maxValues"].get(name), said["nullCount"][name]


def _parsed(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


whole = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30)
texts = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=80), min_size=1, max_size=10)
moments = st.lists(st.none() | st.datetimes(), min_size=1, max_size=10)


@given(whole, st.integers(1, 5))
def test_the_bounds_of_integers_are_exact_over_all_row_groups(values: list[int | None], groups: int) -> None:
    known = [each for each in values if each is not None]
    found = _bounds(_file({"n": pa.array(values, pa.int64())}, groups=groups), "n")
    assert found == (min(known, default=None), max(known, default=None), values.count(None))


@given(texts)
def test_each_text_is_within_its_bounds(values: list[str | None]) -> None:
    known = [each.encode() for each in values if each is not None]
    low, high, _ = _bounds(_file({"t": pa.array(values, pa.string())}), "t")
    assert low is None or all(low.encode() <= each for each in known)
    assert high is None or all(each <= high.encode() for each in known)


@given(moments, st.sampled_from([None, "UTC"]))
def test_each_timestamp_is_within_its_bounds(values: list[datetime | None], zone: str | None) -> None:
    low, high, _ = _bounds(_file({"at": pa.array(values, pa.timestamp("us", zone))}), "at")
    known = [each.replace(tzinfo=timezone.utc if zone else None) for each in values if each is not None]
    assert low is None or all(_parsed(low) <= each for each in known)
    assert high is None or all(each <= _parsed(high) for each in known)
    assert low is None or low.endswith("Z") == bool(zone)


def test_the_upper_bound_of_a_timestamp_is_rounded_up_to_the_next_millisecond() -> None:
    at = datetime(2026, 1, 1) + timedelta(microseconds=1)
    assert _bounds(_file({"at": pa.array([at], pa.timestamp("us"))}), "at")[:2] == (
        "2026-01-01T00:00:00.000",
        "2026-01-01T00:00:00.001",
    )


def test_the_bounds_of_dates_are_written_in_the_format_of_delta() -> None:
    days = pa.array([date(2026, 1, 2), date(1969, 12, 31)])
    assert _bounds(_file({"day": days}), "day")[:2] == ("1969-12-31", "2026-01-02")
    # Python has no such year.
    assert _bounds(_file({"day": pa.array([4_000_000], pa.int32()).cast(pa.date32())}), "day")[1] is None


@pytest.mark.parametrize(
    "column", [pa.array([1.0, float("nan")]), pa.array([None, None], pa.int64()), pa.array([True, False])]
)
def test_a_column_without_a_defined_order_has_no_bounds(column: pa.Array) -> None:
    said = json.loads(_file({"x": column}).stats)
    assert "x" not in said["minValues"]
    assert "x" not in said["maxValues"]


def test_a_nested_field_is_not_confused_with_a_column_whose_name_contains_a_dot() -> None:
    file = _file({"a": pa.array([{"b": 5}]), "a.b": pa.array([9], pa.int64())})
    assert json.loads(file.stats)["minValues"] == {TXID: 7}


@pytest.mark.parametrize(
    ("text", "upper"),
    [("a" * 40, "a" * (TEXT - 1) + "b"), ("\U0010ffff" * 40, None), ("\ud7ff" * 40, "\ud7ff" * (TEXT - 1) + "\ue000")],
)
def test_the_upper_bound_of_a_long_string_is_a_shorter_and_higher_string(text: str, upper: str | None) -> None:
    assert text_bounds(text, text) == (text[:TEXT], upper)


def test_the_txid_column_has_bounds_no_matter_how_many_columns_exist() -> None:
    file = _file({f"c{number}": pa.array([1]) for number in range(50)})
    assert _bounds(file, TXID) == (7, 7, 0)


@pytest.mark.parametrize("column", [pa.array([7, 8]), pa.array([7, None]), pa.array([8, 8])])
def test_a_file_with_a_row_of_another_transaction_is_refused(column: pa.Array) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({TXID: column}), out)
    out.seek(0)
    file = read_footer(out, path="p", size=1, partition={}, partition_fields=[], shared=True)
    with pytest.raises(Misfit, match="some rows of file p lack"):
        check_txid(file.stats, "p", 7)


def test_a_file_that_contains_a_partition_column_is_refused() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({TXID: [7], "day": ["x"]}), out)
    out.seek(0)
    with pytest.raises(Misfit, match="file p contains partition column day"):
        read_footer(out, path="p", size=1, partition={"day": "x"}, partition_fields=[])


def test_dates_of_the_julian_calendar_are_refused() -> None:
    table = pa.table({TXID: [7]}).replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    out = io.BytesIO()
    pq.write_table(table, out)
    out.seek(0)
    with pytest.raises(Misfit, match="CORRECTED"):
        read_footer(out, path="p", size=1, partition={}, partition_fields=[])
