"""Rows and frames become the columns of a file with the values that they had, or are refused by row and column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StagingError
from airflow_tx.base.rows.arrow import NoTable, table_of
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import StagingArea, write_rows

DAY = dt.date(2024, 1, 1)
NOON = dt.datetime(2024, 1, 1, 12)
AUTUMN = dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
KEYS = pd.DataFrame({"k": ["a", "b", "a"], "n": [1, 2, 3]})


def column(*values: Any) -> list[Any]:
    found: list[Any] = table_of([{"n": value} for value in values]).column("n").to_pylist()
    return found


def test_a_key_that_comes_later_is_a_column_and_null_in_the_rows_without_it() -> None:
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
def test_values_of_one_type_stay_what_they_are(values: list[Any]) -> None:
    found = column(*values)
    assert list(map(_utc, found)) == list(map(_utc, values))


def _utc(value: Any) -> Any:
    return value.astimezone(dt.timezone.utc) if getattr(value, "tzinfo", None) else value


def test_a_nan_in_a_list_stays_one() -> None:
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
def test_a_value_that_its_column_would_change_is_refused_with_its_row(values: list[Any]) -> None:
    with pytest.raises(NoTable, match=rf"^row {len(values)}: n = ") as refused:
        column(None, *values)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"n": 1}, 5], "row 1 is 5, and no dict"),
        ([{1: 2}], "the column name 1 is no text"),
        ([{"n": dt.timedelta(1)}], r"column n has the type duration\[us\], which Spark reads as a number"),
        ([{"n": {}}], "column n has the type struct<>, which no file has"),
        (pd.DataFrame([[1, 2]]), "the column name 0 is no text"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "column a comes twice"),
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
        (pa.table([[1], [2]], ["a", "a"]), "column a comes twice"),
    ],
)
def test_a_frame_or_row_that_no_file_holds_is_refused_in_words(rows: Any, problem: str) -> None:
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
def test_the_columns_of_a_frame_and_its_named_index_are_taken(frame: Any, rows: list[Any]) -> None:
    assert table_of(frame).to_pylist() == rows


def test_a_refusal_of_staged_rows_names_task_row_column_and_value(tmp_path: Path) -> None:
    where = StagingArea(str(tmp_path)).try_dir("t", TransactionAttempt(1, 1), TaskTry("extract", -1, "1"))
    with pytest.raises(StagingError, match=r"Output 'rows' of task extract .*row 1: n = True"):
        write_rows(where, "rows", [{"n": 2.5}, {"n": True}])
