"""Aggregators: exact, the same in any grouping, and NULL as in SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import ConfigError
from airflow_tx.state import (
    ApproxCountDistinct,
    Avg,
    CollectSet,
    CombinerAggregator,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)

numbers = st.none() | st.integers(-(10**6), 10**6)


@given(st.lists(numbers), st.integers(0, 20))
def test_sums_and_counts_in_any_grouping_equal_the_results_of_sql(column: list[int | None], cut: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (v)")
    connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in column])
    expected = connection.execute("SELECT sum(v), count(v) FROM t").fetchone()
    aggregators: list[CombinerAggregator] = [Sum(), Count()]
    for aggregator, wanted in zip(aggregators, expected, strict=True):
        left, right = ([aggregator.init(v) for v in part] for part in (column[:cut], column[cut:]))
        parts = [reduce(aggregator.combine, part, None) for part in (left, right)]
        assert aggregator.combine(*parts) == (wanted if column else None)


@pytest.mark.parametrize("aggregator", [Sum(), Count(), Sum("double"), Sum("numeric")])
def test_zero_and_null_do_not_change_an_aggregate(aggregator: CombinerAggregator) -> None:
    for value in (7, -1, 0):
        assert aggregator.combine(aggregator.zero(), value) == value
        assert aggregator.combine(None, value) == aggregator.combine(value, None) == value
    assert aggregator.combine(None, None) is None


def test_aggregates_of_integers_and_decimals_are_exact() -> None:
    assert Sum().combine(2**62, 1) == 2**62 + 1
    tiny, huge = Decimal("1e-40"), Decimal(10**40)
    assert huge + tiny == huge  # what the default context makes of it
    assert Sum("numeric").combine(huge, tiny) - huge == tiny


def test_equal_aggregators_compare_equal_and_cannot_be_changed() -> None:
    assert Sum() == Sum("bigint") != Sum("double")
    assert (Sum().name, Count().name, Count().type) == ("sum", "count", "bigint")
    assert repr(Sum()) == "Sum(type='bigint')"
    with pytest.raises(AttributeError):
        Sum().type = "double"  # type: ignore[misc]


def test_an_aggregator_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="bigint"):
        Sum("int8")


@given(st.lists(numbers), st.integers(0, 20))
def test_the_result_of_min_and_max_and_first_and_last_does_not_depend_on_the_grouping(
    column: list[int | None], cut: int
) -> None:
    present = [value for value in column if value is not None]
    expected: dict[CombinerAggregator, int | None] = {
        Min(): min(present, default=None),
        Max(): max(present, default=None),
        First(): present[0] if present else None,
        Last(): present[-1] if present else None,
    }
    for aggregator, wanted in expected.items():
        left, right = ([aggregator.init(v) for v in part] for part in (column[:cut], column[cut:]))
        parts = [reduce(aggregator.combine, part, aggregator.zero()) for part in (left, right)]
        assert aggregator.combine(*parts) == wanted


def test_texts_are_compared_by_their_characters() -> None:
    words = ["b", "B", "a", "ä", "Z"]
    assert (reduce(Min("text").combine, words), reduce(Max("text").combine, words)) == ("B", "ä")


@given(st.lists(st.none() | st.integers(0, 5) | st.sampled_from(["", "a", "b"]) | st.booleans()), st.integers(0, 20))
def test_a_collected_set_does_not_depend_on_the_grouping_and_the_order_of_its_values(
    column: list[Any], cut: int
) -> None:
    aggregator = CollectSet()
    one = reduce(aggregator.combine, map(aggregator.init, column), None)
    other = aggregator.combine(column[cut:] or None, column[:cut] or None)
    assert one == (other or None)
    if one:
        assert {(type(value), value) for value in one} == {(type(v), v) for v in column if v is not None}


def test_a_collected_set_is_stored_as_a_sorted_json_list() -> None:
    given_values = ["b", 2, True, 10, "a", 1.5, False, None, -0.0, 2, "b"]
    assert CollectSet().delta(given_values) == [False, True, 0.0, 1.5, 2, 10, "a", "b"]
    assert (CollectSet().init(None), CollectSet().delta([]), CollectSet().delta("ab")) == (None, [], ["ab"])


@pytest.mark.parametrize("value", [{"a": 1}, [["a"]], [1, b"x"]])
def test_a_set_of_values_other_than_scalars_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        CollectSet().delta(value)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("double", [1.0, 2.5], 1.75),
        ("bigint", [1, 2], 1.5),
        ("numeric", [Decimal(1), Decimal("0.5"), Decimal("0.5")], Decimal(2) / 3),
        ("double", [None], None),
    ],
)
def test_an_average_is_the_sum_divided_by_the_count(kind: str, values: list[Any], expected: Any) -> None:
    average = Avg(kind)
    rows = [average.deltas("v", value) for value in values]
    kept = {name: reduce(part.combine, [row[name] for row in rows]) for name, part in average.parts("v").items()}
    result = average.result(kept)
    assert result == expected or abs(result - expected) < Decimal("1e-25")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Min("json"), "bigint"),
        (lambda: Max("int8"), "bigint"),
        (lambda: First("any"), '"json"'),
        (lambda: Last("any"), '"json"'),
        (lambda: Avg("text"), '"numeric"'),
        (lambda: CollectSet(0), "bound"),
        (lambda: ApproxCountDistinct(3), "from 4 to 21"),
    ],
)
def test_an_invalid_aggregator_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
