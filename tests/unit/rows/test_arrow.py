"""Rows and frames become the columns of a file with the values that they had, or are refused by row and column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StagingError
from airflow_tx.base.rows.arrow import NoTable, reader_of, reader_of_dicts
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import StagingArea, write_rows

DAY = dt.date(2024, 1, 1)
NOON = dt.datetime(2024, 1, 1, 12)
AUTUMN = dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
KEYS = pd.DataFrame({"k": ["a", "b", "a"], "n": [1, 2, 3]})


def table_of(rows: Any) -> pa.Table:
    return reader_of(rows).read_all()


def column(*values: Any) -> list[Any]:
    found: list[Any] = table_of([{"n": value} for value in values]).column("n").to_pylist()
    return found


def test_a_key_that_first_occurs_in_a_later_row_becomes_a_column_with_null_in_earlier_rows() -> None:
    rows = [{"k": "a"}, {"k": "b", "amount": 5}, {"amount": 6}]
    assert table_of(rows).to_pylist() == [
        {"k": "a", "amount": None}, {"k": "b", "amount": 5}, {"k": None, "amount": 6},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [Decimal("1.10"), 2, Decimal("1E+3")],
        [12345, Decimal("0.5")],
        [AUTUMN, AUTUMN.replace(fold=1), AUTUMN.astimezone(dt.timezone.utc)],
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
        [float("inf"), -0.0],
        ["é", "e\u0301", "", "a\x00b"],
        [{"a": 1}, {"a": None}],
        [[1], []],
    ],
    ids=str,
)
def test_values_that_all_have_one_type_are_stored_unchanged(values: list[Any]) -> None:
    found = column(*values)
    assert list(map(_utc, found)) == list(map(_utc, values))


def _utc(value: Any) -> Any:
    return value.astimezone(dt.timezone.utc) if getattr(value, "tzinfo", None) else value


def test_a_nan_in_a_list_stays_a_nan() -> None:
    assert repr(column([float("nan"), 1.0])) == "[[nan, 1.0]]"


@pytest.mark.parametrize(
    "values",
    [
        [2.5, True],
        [1, True],
        [True, 1],
        [2**53 + 1, 0.5],
        [DAY, NOON],
        [NOON, DAY],
        [NOON, NOON.replace(tzinfo=dt.timezone.utc)],
        [NOON.replace(tzinfo=dt.timezone.utc), NOON],
        [1, Decimal("0.5"), 0.5],
        ["a", b"a"],
        [b"a", "a"],
        ["1", 1],
        [2**63],
        ["\ud800"],
        [Decimal("NaN")],
        [pd.Timestamp("2024-01-01 00:00:00.000000001")],
        [pd.NaT],
        [{1, 2}],
        [dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))],
        [object()],
    ],
    ids=str,
)
def test_the_error_for_a_value_that_the_type_of_its_column_would_change_names_its_row(values: list[Any]) -> None:
    with pytest.raises(NoTable, match=rf"^row {len(values)}: n = ") as refused:
        column(None, *values)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"n": 1}, 5], "row 1 is 5, not a dict"),
        ([{1: 2}], "the column name 1 is not a text"),
        ([{"n": dt.timedelta(1)}], r"column n has the type duration\[us\], which Spark reads as a number"),
        ([{"n": {}}], "column n has the type struct<>, which no file can store"),
        (pd.DataFrame([[1, 2]]), "the column name 0 is not a text"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column a occurs twice"),
        (pd.DataFrame({"n": [2.5, True]}, dtype=object), "row 1: n = True"),
        (pd.DataFrame({"n": [DAY, NOON]}, dtype=object), "row 1: n = "),
        (pd.DataFrame({"n": pd.to_timedelta(["1D"])}), "column n has the type duration"),
        (KEYS.set_index("k", drop=False), "cannot insert k, already exists"),
        (
            pd.DataFrame(
                {"n": pd.to_datetime(["2024-01-01 00:00:00", "2024-01-01 00:00:00.123456789"], format="mixed")}
            ),
            "row 1: n = 2024-01-01 00:00:00.123456789 has nanoseconds, which would be cut",
        ),
        (pd.DataFrame({"n": np.array(["2024", "20000"], "datetime64[s]")}), "row 1: n = .* not in the years 1 to 9999"),
        (pa.table({"n": pa.array([2**62], pa.timestamp("us"))}), "row 0: n = .* not in the years 1 to 9999"),
        (pa.table([[1], [2]], ["a", "a"]), "column a occurs twice"),
    ],
)
def test_the_error_for_a_data_frame_or_row_that_cannot_be_stored_in_a_file_gives_the_reason(
    rows: Any, problem: str
) -> None:
    with pytest.raises(NoTable, match=problem):
        table_of(rows)


@pytest.mark.parametrize(
    ("frame", "rows"),
    [
        (KEYS[KEYS.n > 1], [{"k": "b", "n": 2}, {"k": "a", "n": 3}]),
        (KEYS.groupby("k").sum(), [{"k": "a", "n": 4}, {"k": "b", "n": 2}]),
        (KEYS.set_index("k", append=True), [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}]),
        (KEYS[KEYS.n > 9], []),
        (pd.DataFrame({"n": [2**53 + 1, None]}, dtype=object), [{"n": 2**53 + 1}, {"n": None}]),
        (pd.DataFrame({"n": ["a", None, np.nan]}), [{"n": "a"}, {"n": None}, {"n": None}]),
        (pd.DataFrame({"n": [1.5, np.nan]}), [{"n": 1.5}, {"n": None}]),
        (pd.DataFrame({"n": pd.to_datetime(["1999-12-31"])}), [{"n": dt.datetime(1999, 12, 31)}]),
        (pa.table({"n": [1]}).to_batches()[0], [{"n": 1}]),
    ],
)
def test_the_columns_of_a_data_frame_and_its_named_index_become_columns(frame: Any, rows: list[Any]) -> None:
    assert table_of(frame).to_pylist() == rows


def of_arrow(*values: Any, kind: pa.DataType) -> pa.Table:
    return pa.table({"n": pa.array(values, kind)})


LONG = "a text that is longer than a view holds by itself"


@pytest.mark.parametrize(
    ("frame", "kind", "values"),
    [
        (pl.DataFrame({"n": ["a", LONG, None]}), "string", ["a", LONG, None]),
        (pl.DataFrame({"n": [b"a", None]}), "binary", [b"a", None]),
        (pl.DataFrame({"n": [["a"], []]}), "list<item: string>", [["a"], []]),
        (pl.DataFrame({"n": [{"s": "a"}]}), "struct<s: string>", [{"s": "a"}]),
        (pl.DataFrame({"n": pl.Series([200, None], dtype=pl.UInt8)}), "int16", [200, None]),
        (pl.DataFrame({"n": pl.Series([2**16 - 1], dtype=pl.UInt16)}), "int32", [2**16 - 1]),
        (pl.DataFrame({"n": pl.Series([2**32 - 1], dtype=pl.UInt32)}), "int64", [2**32 - 1]),
        (pl.DataFrame({"n": pl.Series([2**63 - 1, None], dtype=pl.UInt64)}), "int64", [2**63 - 1, None]),
        (pl.DataFrame({"n": pl.Series(["a", None, "a"], dtype=pl.Categorical)}), "string", ["a", None, "a"]),
        (pl.DataFrame({"n": pl.Series(["b"], dtype=pl.Enum(["a", "b"]))}), "string", ["b"]),
        (pl.DataFrame({"n": pl.Series([[1, 2]], dtype=pl.Array(pl.UInt8, 2))}), "list<item: int16>", [[1, 2]]),
        (pl.DataFrame({"n": pl.Series([DAY])}), "date32[day]", [DAY]),
        (pl.DataFrame({"n": pl.Series([NOON], dtype=pl.Datetime("ns"))}), "timestamp[us]", [NOON]),
        (pd.DataFrame({"n": pd.Categorical(["a", None, "a"])}), "string", ["a", None, "a"]),
        (pd.DataFrame({"n": np.array([1], "uint8")}), "int16", [1]),
        (duckdb.sql("SELECT 'a'::ENUM('a', 'b') AS n"), "string", ["a"]),
        (duckdb.sql("SELECT sum(x) AS n FROM (VALUES (1), (2)) t(x)"), "decimal128(38, 0)", [Decimal(3)]),
        (of_arrow("a", kind=pa.large_string()), "string", ["a"]),
        (of_arrow(b"ab", kind=pa.binary(2)), "binary", [b"ab"]),
        (of_arrow(b"ab", kind=pa.large_binary()), "binary", [b"ab"]),
        (of_arrow(["a"], kind=pa.list_view(pa.string())), "list<item: string>", [["a"]]),
        (of_arrow([("a", 1)], kind=pa.map_(pa.string_view(), pa.uint8())), "map<string, int16>", [[("a", 1)]]),
        (of_arrow(DAY, kind=pa.date64()), "date32[day]", [DAY]),
        (of_arrow(1.5, kind=pa.float16()), "float", [1.5]),
        (of_arrow(Decimal("1.5"), kind=pa.decimal256(10, 2)), "decimal128(10, 2)", [Decimal("1.5")]),
        (pa.table({"n": pc.run_end_encode(pa.array(["a", "a"]))}), "string", ["a", "a"]),
    ],
    ids=str,
)
def test_equal_values_of_different_libraries_are_stored_as_the_same_type(
    frame: Any, kind: str, values: list[Any]
) -> None:
    found = table_of(frame)
    assert str(found.schema.field("n").type) == kind
    assert found.column("n").to_pylist() == values
    # Of polars the field says which categories there are.
    assert found.schema.field("n").metadata is None


@pytest.mark.parametrize(
    ("frame", "problem", "remedy"),
    [
        (
            of_arrow(1, 2**63, kind=pa.uint64()),
            "row 1: n = 9223372036854775808 is greater than 9223372036854775807, the greatest whole number in",
            "",
        ),
        (pl.DataFrame({"n": [1]}).lazy(), "a polars.LazyFrame is lazy and has no rows yet", "Call .collect() first."),
        (
            pl.DataFrame({"n": pl.Series([1, "a"], dtype=pl.Object)}),
            "column n has the type Object of polars",
            "Cast it, such as .map_elements(str, return_dtype=polars.String) of n.",
        ),
        (pl.DataFrame({"n": pl.Series([1], dtype=pl.Int128)}), "Invalid or unsupported format string", ""),
        (pl.Series("n", [1]), "Cannot import schema", ""),
        (pa.array([1]), "", ""),
        (pl.DataFrame({"n": [dt.timedelta(1)]}), "column n has the type duration[us], which Spark reads as a", ""),
        (
            pa.table({"n": pa.array([dt.timedelta(1)]).dictionary_encode()}),
            "column n has the type dictionary<values=duration[us], indices=int32, ordered=0>, which Spark reads as a",
            "",
        ),
        (
            pa.table({"n": pa.ListArray.from_arrays([0, 1], pa.array([dt.timedelta(1)]))}),
            "column n has the type list<item: duration[us]>, which Spark reads as a number",
            "",
        ),
        (
            pa.table({"n": pa.ListArray.from_arrays([0, 1], pa.array([2**63], pa.uint64()))}),
            "row 0: n = 9223372036854775808 is greater than 9223372036854775807, the greatest whole number in",
            "",
        ),
    ],
)
def test_the_error_for_a_data_frame_that_is_not_supported_names_the_call_that_converts_it(
    frame: Any, problem: str, remedy: str
) -> None:
    with pytest.raises(NoTable) as refused:
        table_of(frame)
    assert str(refused.value).startswith(problem)
    assert "\n" not in str(refused.value)
    assert refused.value.remedy == remedy


def test_the_row_number_in_an_error_counts_the_rows_of_all_batches() -> None:
    batches = [pa.record_batch({"n": pa.array([each], pa.uint64())}) for each in (1, 2, 2**64 - 1)]
    with pytest.raises(NoTable, match="row 2: n = 18446744073709551615 is greater"):
        table_of(pa.Table.from_batches(batches))
    times = [pa.record_batch({"n": pa.array([each], pa.timestamp("ns"))}) for each in (1000, 1)]
    with pytest.raises(NoTable, match="row 1: n = .* has nanoseconds"):
        table_of(pa.Table.from_batches(times))


def test_an_integer_in_a_column_of_32_bit_floats_is_refused_if_the_type_cannot_represent_it() -> None:
    types = {"a": pa.float32()}
    assert reader_of_dicts([{"a": 0.5}, {"a": 2**25}], types).read_all().to_pylist() == [{"a": 0.5}, {"a": 2.0**25}]
    with pytest.raises(
        NoTable, match="row 1: a = 16777217 is not a value of type float .it has more digits than the type"
    ):
        reader_of_dicts([{"a": 0.5}, {"a": 2**24 + 1}], types).read_all()


def test_dicts_have_their_declared_columns_and_a_type_that_readers_do_not_support_is_refused() -> None:
    types = {"a": pa.int32(), "b": None}
    assert reader_of_dicts((), types).read_all().schema == pa.schema({"a": pa.int32(), "b": pa.null()})
    found = reader_of_dicts([{"b": 1}], types).read_all()
    assert found.sort_by("a").to_pylist() == [{"b": 1, "a": None}]
    assert found.schema.field("a").type == pa.int32()
    with pytest.raises(NoTable, match="column b has the type duration"):
        reader_of_dicts([{"b": dt.timedelta(1)}], types)


def test_a_stream_is_read_batch_by_batch_and_its_own_error_is_raised() -> None:
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(number)
            yield pa.record_batch({"n": [number]})
        raise KeyError("the stream broke")

    reader = reader_of(pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches()))
    assert taken == []
    reader.read_next_batch()
    assert taken == [0]
    with pytest.raises(KeyError, match="the stream broke"):
        reader.read_all()


def test_the_error_for_a_staged_row_names_the_task_and_the_row_and_the_column_and_the_value(tmp_path: Path) -> None:
    where = StagingArea(str(tmp_path)).try_dir("t", TransactionAttempt(1, 1), TaskTry("extract", -1, "1"))
    with pytest.raises(StagingError, match=r"Output 'rows' of task extract .*row 1: n = True"):
        write_rows(where, "rows", [{"n": 2.5}, {"n": True}])
    with pytest.raises(
        StagingError, match=r"a polars\.LazyFrame is lazy and has no rows yet\)\. Call \.collect\(\) first\.$"
    ):
        write_rows(where, "rows", pl.DataFrame({"n": [1]}).lazy())


# --- values at every depth ----------------------------------------------------------------------------------------

FAR = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())
LATE = pa.array([0, 570_000_000_000_000]).cast(pa.timestamp("ms"))
BEYOND = {
    "a date": (FAR, "2932897 days since 1970 is not in the years 1 to 9999"),
    "a date in ms": (pa.array([0, 2_932_897 * 86_400_000]).cast(pa.date64()), "ms since 1970 is not in the years"),
    "a time": (LATE, "570000000000000 ms since 1970 is not in the years 1 to 9999"),
    "nanoseconds": (pa.array([1000, 1], pa.timestamp("ns")), "has nanoseconds, which would be cut"),
    "nanoseconds of a day": (pa.array([1000, 1], pa.time64("ns")), "has nanoseconds, which would be cut"),
    "a number": (pa.array([0, 2**64 - 1], pa.uint64()), "is greater than 9223372036854775807"),
    "digits": (pa.array([Decimal(0), Decimal(10**38)]), r"has more digits than decimal128\(38, 0\)"),
    "digits behind the point": (
        pa.array([Decimal(0), Decimal(10**28)], pa.decimal256(50, 10)),
        r"has more digits than decimal128\(38, 10\)",
    ),
}
WITHIN: dict[str, Any] = {
    "itself": lambda values: values,
    "a list": lambda values: pa.ListArray.from_arrays([0, 1, 2], values),
    "a large list": lambda values: pa.LargeListArray.from_arrays([0, 1, 2], values),
    "a list of one length": lambda values: pa.FixedSizeListArray.from_arrays(values, 1),
    "a view of a list": lambda values: pa.ListViewArray.from_arrays([0, 1], [1, 1], values),
    "a struct": lambda values: pa.StructArray.from_arrays([values], ["x"]),
    "a map": lambda values: pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), values),
    "codes": lambda values: values.dictionary_encode(),
    "a list of structs": lambda values: pa.ListArray.from_arrays(
        [0, 1, 2], pa.StructArray.from_arrays([values], ["x"])
    ),
}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN.keys())
@pytest.mark.parametrize(("values", "problem"), BEYOND.values(), ids=BEYOND.keys())
def test_a_value_that_python_or_spark_does_not_support_is_refused_at_every_depth(
    values: Any, problem: str, within: Any
) -> None:
    made = pa.table({"n": within(values)})
    for frame, row in ((made, 1), (made.slice(1), 0)):
        with pytest.raises(NoTable, match=f"row {row}: n = .*{problem}"):
            table_of(frame)
    assert table_of(made.slice(0, 1)).num_rows == 1


def test_a_null_before_an_invalid_value_counts_as_a_row_in_the_error() -> None:
    lists = pa.array([None, [0], [0, 2_932_897]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    sized = pa.array([None, [0, 2_932_897]], pa.list_(pa.int32(), 2)).cast(pa.list_(pa.date32(), 2))
    for values, row in ((lists, 2), (sized, 1)):
        with pytest.raises(NoTable, match=f"row {row}: n = 2932897"):
            table_of(pa.table({"n": values}))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (pl.DataFrame({"n": pl.Series([2_932_897]).cast(pl.Date)}), "row 0: n = 2932897 days"),
        (pl.DataFrame({"n": [pl.Series([2_932_897]).cast(pl.Date)]}), "row 0: n = 2932897 days"),
        (duckdb.sql("SELECT DATE 'infinity' AS n"), "row 0: n = 2147483647 days"),
        (duckdb.sql("SELECT [TIMESTAMP 'infinity'] AS n"), "row 0: n = 9223372036854775807 us"),
        (duckdb.sql("SELECT MAP {'a': DATE '-infinity'} AS n"), "row 0: n = -2147483647 days"),
        (pa.table({"n": pa.array([90_000], pa.int32()).view(pa.time32("s"))}), "90000 is not within"),
        (
            pa.table({"n": pa.Array.from_buffers(pa.decimal128(3, 1), 1, pa.array([Decimal("12345.6")]).buffers())}),
            "column n: Decimal value 123456 does not fit",
        ),
        (
            pa.table({"n": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8()))}),
            "row 0: n .* a duplicate key",
        ),
        (pa.table({"n": pa.StructArray.from_arrays([FAR, FAR], ["x", "x"])}), "which has two fields with one name"),
    ],
    ids=str,
)
def test_a_value_of_a_library_that_no_reader_supports_is_refused(frame: Any, problem: str) -> None:
    with pytest.raises(NoTable, match=problem) as refused:
        table_of(frame)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([np.nan, 1.0]),
        pd.Series([np.nan, 1.0], dtype="float16"),
        pd.Series([0.0, 1.0], dtype="Float64") / pd.Series([0.0, 1.0], dtype="Float64"),
        pd.Series([0.0, 1.0], dtype="Float32") / pd.Series([0.0, 1.0], dtype="Float32"),
        pd.Series(pa.array([np.nan, 1.0]), dtype=pd.ArrowDtype(pa.float64())),
        pd.Series([np.nan, 1.0], dtype=object),
        pd.Series(pd.Categorical([np.nan, 1.0])),
    ],
    ids=lambda column: str(column.dtype),
)
def test_nan_in_pandas_is_null_in_each_of_its_types(column: Any) -> None:
    assert table_of(pd.DataFrame({"n": column})).to_pylist() == [{"n": None}, {"n": 1.0}]


@pytest.mark.parametrize(
    ("given", "kind", "found"),
    [
        ([[np.nan, 1.0], None], pa.list_(pa.float64()), [[None, 1.0], None]),
        ([{"x": np.nan}, {"x": 1.0}], pa.struct({"x": pa.float32()}), [{"x": None}, {"x": 1.0}]),
        ([[{"x": np.nan}], []], pa.list_(pa.struct({"x": pa.float64()})), [[{"x": None}], []]),
        ([[("a", np.nan)], [("a", 1.0)]], pa.map_(pa.string(), pa.float64()), [{"a": None}, {"a": 1.0}]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_nan_in_pandas_is_null_at_every_depth(given: Any, kind: Any, found: Any) -> None:
    frame = pd.DataFrame({"n": pd.Series(pa.array(given, kind), dtype=pd.ArrowDtype(kind))})
    assert table_of(frame).column("n").to_pylist(maps_as_pydicts="strict") == found
    if not pa.types.is_map(kind):
        assert table_of(pd.DataFrame({"n": pd.Series(given, dtype=object)})).column("n").to_pylist() == found


def test_rows_without_columns_are_refused_and_not_lost() -> None:
    with pytest.raises(NoTable, match="2 rows have no columns"):
        table_of(pa.table({"n": [1, 2]}).select([]))
