"""Python rows are counted and digested as they pass: the same rows give the same digest in every process."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.ledger.row_digest import COUNT, RowsDigest
from airflow_tx.ledger.steps.processing import OutputName
from airflow_tx.transaction.processing.consumed_rows import PYTHON, RowsReading
from airflow_tx.transaction.processing.task import fullest

A_VALUE = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.datetimes()
A_ROW = st.dictionaries(st.text(max_size=3), A_VALUE | st.lists(A_VALUE, max_size=2), max_size=3)
CODE = """
from airflow_tx.transaction.processing.consumed_rows import RowsReading
reading = RowsReading()
list(reading.passing([{"word": "cat" + "s", "n": number, "x": 0.1} for number in range(3)]))
print(reading.found.text)
"""


def read(rows: Any) -> RowsDigest:
    reading = RowsReading()
    assert list(reading.passing(rows)) == list(rows)
    return reading.found


@given(rows=st.lists(A_ROW, max_size=8))
def test_equal_rows_have_the_same_digest_in_any_order(rows: list[dict[str, Any]]) -> None:
    again = [{str(key): value for key, value in row.items()} for row in reversed(rows)]
    assert read(rows) == read(again)
    assert read(rows).form == PYTHON


def test_the_digest_of_rows_is_the_same_in_another_process() -> None:
    here = read([{"word": "cats", "n": number, "x": 0.1} for number in range(3)])
    there = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.strip()
    assert here.text == there


def test_rows_with_another_value_have_another_digest() -> None:
    rows: list[dict[str, Any]] = [{"at": datetime(2020, 1, 1, tzinfo=timezone.utc), "n": Decimal("1.5")}]
    for key, value in (("at", datetime(2020, 1, 2, tzinfo=timezone.utc)), ("n", Decimal("1.6")), ("n", "1.5")):
        assert not read(rows).agrees(read([{**rows[0], key: value}]))


def test_rows_with_values_that_have_no_stable_hash_are_only_counted() -> None:
    assert read([{"n": 1}, {"n": object()}]) == RowsDigest(2, 0, COUNT)


def test_a_reading_that_stops_early_counts_the_rows_that_it_has_read() -> None:
    reading = RowsReading()
    next(reading.passing([{"n": 1}, {"n": 2}]))
    assert reading.found.rows == 1


def test_the_reading_with_the_most_rows_counts_and_a_reading_that_has_not_started_does_not() -> None:
    readings = [RowsReading(), RowsReading(), RowsReading(), RowsReading((OutputName("a", -1, "x"),), COUNT)]
    rows = [{"n": 1}, {"n": 2}]
    next(readings[0].passing(rows))
    list(readings[1].passing(rows))
    readings[2].passing(rows)
    list(readings[3].passing(rows))
    batch, output = fullest(readings)
    assert (batch.found, batch.outputs) == (read(rows), ())
    assert (output.found, output.outputs) == (RowsDigest(2), (OutputName("a", -1, "x"),))


def test_an_empty_batch_counts_as_read_after_its_end_was_reached() -> None:
    reading = RowsReading()
    assert list(reading.passing([])) == []
    assert fullest([reading])[0].found.rows == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (date(2026, 1, 1), "date 2026-01-01"),
        (Decimal(1), "Decimal 1"),
        ([date(2026, 1, 1)], ["2026-01-01"]),
        ({1: date(2026, 1, 1)}, {"1": date(2026, 1, 1)}),
    ],
)
def test_a_value_and_a_similar_value_of_another_type_have_different_digests(one: Any, other: Any) -> None:
    beside = {"cost": Decimal("1.50")}
    assert not read([{"a": one, **beside}]).agrees(read([{"a": other, **beside}]))


def test_the_digest_of_rows_that_are_hashed_as_text_ignores_the_order_of_columns() -> None:
    cost = Decimal("1.50")
    assert read([{"a": 1, "cost": cost}]) == read([{"cost": cost, "a": 1}])
