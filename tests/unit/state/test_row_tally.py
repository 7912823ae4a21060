"""Rows that are digested and added up column by column: as each of them by itself."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from airflow_tx.ledger.receipt import NOTHING_WRITTEN, Written
from airflow_tx.state.arrow import RowTally

VALUES = [1, 1.0, True, None, "1", b"1", Decimal(1), "Decimal('1')", dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), [1]]


def written(*rows: dict[str, Any]) -> Written:
    tally = RowTally(rows, ["n"])
    return tally.written(len(list(tally)))


def test_the_digest_of_a_column_with_several_types_is_the_sum_of_the_digests_of_its_values() -> None:
    rows = [{"key": key, "n": 1} for key in VALUES]
    assert written(*rows) == sum(map(written, rows), NOTHING_WRITTEN)
    assert len({written(row).digest for row in rows}) == len(VALUES)


@pytest.mark.parametrize("odd", [{"n": 1}, {"key": "b", "n": 1, "m": 2}, {"key": "b", "m": 2}, {}])
def test_rows_with_different_columns_are_hashed_separately(odd: dict[str, Any]) -> None:
    rows = [{"key": "a", "n": 1}, odd, {"key": "c", "n": 5}]
    assert int(written(*rows).digest, 16) == sum(int(written(row).digest, 16) for row in rows) % 2**64
    assert written(*rows).sums == ({"n": 7} if "n" in odd else {})


def test_the_digest_and_the_sums_of_many_rows_are_the_sum_of_their_parts() -> None:
    rows = [{"key": number, "n": number} for number in range(2500)]
    assert written(*rows) == written(*rows[:700]) + written(*rows[700:])
    assert written(*rows).sums == {"n": sum(range(2500))}


def test_a_value_in_another_column_has_another_digest() -> None:
    assert written({"a": 5}).digest != written({"b": 5}).digest
    assert written({"a": 5, "b": None}).digest != written({"a": None, "b": 5}).digest
