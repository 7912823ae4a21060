"""When two outputs of a transaction are equal."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Any

import pytest

from airflow_tx.ledger.output import output_text, same_output

TEXT = "f0cfcee4f031c5d3fff90a23979e868d 1.9977119825198315 6.75"
WITHOUT_FLOATS = "cefa81f2cbb1dd71b3760b829876e68b"
ROWS = [{"key": f"k{i}", "n": i, "x": i / 7} for i in range(100)]


def text(rows: Iterable[Mapping[str, Any]]) -> str:
    return output_text(rows, ("key", "n", "x"), ("x",))


def changed(**values: Any) -> list[dict[str, Any]]:
    return [{**row, **(values if number == 50 else {})} for number, row in enumerate(ROWS)]


def test_the_order_of_rows_does_not_change_an_output() -> None:
    assert same_output(text(ROWS), text(random.Random(1).sample(ROWS, len(ROWS))))


def test_float_sums_in_another_order_of_rows_are_equal() -> None:
    # From Python 3.12 on, sum() corrects its rounding.
    numbers = random.Random(2)
    parts = [numbers.uniform(-1e6, 1e6) for _ in range(1000)]
    one = [{"key": str(k), "n": 1, "x": reduce(add, parts[k::10])} for k in range(10)]
    other = [{"key": str(k), "n": 1, "x": reduce(add, reversed(parts[k::10]))} for k in range(10)]
    assert text(one) != text(other)
    assert same_output(text(one), text(other))


def test_a_sum_that_differs_from_zero_only_by_rounding_is_equal_to_zero() -> None:
    assert same_output(text(changed(x=0.1 + 0.2 - 0.3)), text(changed(x=0.0)))


@pytest.mark.parametrize(
    "values", [{"x": 7.143}, {"n": 51}, {"key": "k"}, {"x": None}, {"x": math.nan}, {"x": math.inf}]
)
def test_outputs_with_any_other_difference_of_a_value_are_different(values: dict[str, Any]) -> None:
    assert not same_output(text(ROWS), text(changed(**values)))


def test_outputs_are_different_if_two_rows_swap_their_float_values() -> None:
    swapped = [{**row, "x": ROWS[number ^ 1]["x"]} for number, row in enumerate(ROWS)]
    assert not same_output(text(ROWS), text(swapped))


def test_floats_in_keys_are_compared_exactly() -> None:
    rows = [{"key": 0.3, "n": 1, "x": 1.0}]
    assert not same_output(text(rows), text([{**rows[0], "key": 0.1 + 0.2}]))


def test_outputs_with_different_keys_are_different_although_their_float_sums_are_equal() -> None:
    one, other = [{"key": "a", "n": 1, "x": 0.0}], [{"key": "b", "n": 1, "x": 0.0}]
    assert not same_output(text(one), text(other))
    assert not same_output(text([*one, *one]), text(one))


def test_an_output_without_floats_is_equal_only_to_itself() -> None:
    one, other = [{"key": "a", "n": 1, "x": None}], [{"key": "a", "n": 2, "x": None}]
    assert same_output(text(one), text(one))
    assert not same_output(text(one), text(other))
    assert not same_output(text(one), text(ROWS))
    assert not same_output(text(ROWS), text(one))


@pytest.mark.parametrize("size", [1e300, 1.7e308])
def test_float_columns_with_an_infinite_sum_are_compared_exactly(size: float) -> None:
    rows = [{"key": f"k{i}", "n": 1, "x": size} for i in range(100)]
    assert same_output(text(rows), text(reversed(rows)))
    assert not same_output(text(rows), text([*rows[:-1], {**rows[-1], "x": size / 2}]))


def test_the_digest_text_of_an_output_is_the_same_in_every_process() -> None:
    """A replay compares its own with the one that an earlier attempt has noted."""
    rows = [{"key": "a", "x": 1.5, "y": -2.0}, {"key": "b", "x": 0.25, "y": 3.0}]
    noted = output_text(rows, ("key", "x", "y"), ("x", "y"))
    assert noted == TEXT
    assert output_text(reversed(rows), ("key", "x", "y"), ("x", "y")).split()[0] == TEXT.split()[0]
    assert output_text([{"key": "a", "n": 1}], ("key", "n"), ()) == WITHOUT_FLOATS
