"""Sum and Count: exact, and NULL as in SQL."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.errors import ConfigError
from airflow_tx.state import CombinerAggregator, Count, Sum

numbers = st.none() | st.integers(-(10**6), 10**6)


@given(st.lists(numbers), st.integers(0, 20))
def test_any_grouping_gives_what_sql_gives(column: list[int | None], cut: int) -> None:
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
def test_zero_and_absent_change_nothing(aggregator: CombinerAggregator) -> None:
    for value in (7, -1, 0):
        assert aggregator.combine(aggregator.zero(), value) == value
        assert aggregator.combine(None, value) == aggregator.combine(value, None) == value
    assert aggregator.combine(None, None) is None


def test_integers_and_decimals_are_exact() -> None:
    assert Sum().combine(2**62, 1) == 2**62 + 1
    tiny, huge = Decimal("1e-40"), Decimal(10**40)
    assert huge + tiny == huge  # what the default context makes of it
    assert Sum("numeric").combine(huge, tiny) - huge == tiny


def test_aggregators_are_values() -> None:
    assert Sum() == Sum("bigint") != Sum("double")
    assert (Sum().name, Count().name, Count().type) == ("sum", "count", "bigint")
    assert repr(Sum()) == "Sum(type='bigint')"
    with pytest.raises(AttributeError):
        Sum().type = "double"  # type: ignore[misc]


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="bigint"):
        Sum("int8")
