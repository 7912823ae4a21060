"""The place of a key among several writers: equal keys have one, and it never changes."""

from __future__ import annotations

import datetime as dt
import enum
import math
import zlib
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state.keys import partition_of
from airflow_tx.state.trident import PartitionedState

MANY = 2**31
BERLIN = ZoneInfo("Europe/Berlin")
UTC = ZoneInfo("UTC")
NOON = dt.datetime(2024, 3, 1, 12, 30, 0, 5, tzinfo=UTC)
TWICE = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)


class Number(enum.IntEnum):
    ONE = 1


class Text(str, enum.Enum):
    A = "a"


Pair = namedtuple("Pair", "a b")

EQUAL: dict[str, list[Any]] = {
    "one": [1, 1.0, True, Decimal("1.00"), Fraction(1), Number.ONE, 1 + 0j, np.int8(1), np.uint64(1), np.float32(1),
            np.True_, np.longdouble(1), np.complex64(1), pd.Series([1])[0]],
    "none": [0, False, 0.0, -0.0, Decimal("-0.00"), Decimal("0E+9"), np.float64(-0.0)],
    "halves": [1.5, Decimal("1.50"), Decimal("15E-1"), Fraction(3, 2), np.float32(1.5), np.float16(1.5)],
    "no float": [Decimal("0.1"), Decimal("0.100"), Decimal("1E-1"), Fraction(1, 10)],
    "more digits than a float": [10**30 + 1, Decimal(10**30 + 1), Decimal(f"{10**30 + 1}.00")],
    "a great float": [1e300, int(1e300), Decimal(int(1e300))],
    "beyond every float": [10**400, Decimal("1E+400"), Decimal("10E+399"), Fraction(10**400)],
    "beyond every text": [Decimal("1E+999999999"), Decimal("10E+999999998")],
    "infinite": [math.inf, Decimal("Infinity"), np.float32("inf")],
    "texts": ["a", Text.A, np.str_("a")],
    "bytes": [b"a", np.bytes_(b"a"), memoryview(b"a")],
    "tuples": [(1, ("a", 2.0)), (True, ("a", Decimal(2))), Pair(1.0, ("a", 2))],
    "sets": [frozenset({1, "a", 2.5}), frozenset({2.5, "a", True})],
    "moments": [NOON, NOON.astimezone(BERLIN), NOON.astimezone(dt.timezone.utc), pd.Timestamp(NOON),
                NOON.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=45)))],
    "moments without a zone": [dt.datetime(2024, 3, 1, 12), pd.Timestamp(2024, 3, 1, 12),
                               np.datetime64("2024-03-01T12:00:00"), dt.datetime(2024, 3, 1, 12, fold=1)],
    "an hour that comes twice": [TWICE, TWICE.replace(fold=1)],
    "the first moment": [dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=3))),
                         dt.datetime(1, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=4)))],
    "times of day": [dt.time(1, 30), dt.time(1, 30, fold=1), dt.time(1, 30, tzinfo=BERLIN)],
    "times of day of a zone": [dt.time(1, 30, tzinfo=dt.timezone.utc),
                               dt.time(3, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))],
    "durations": [dt.timedelta(hours=1), pd.Timedelta(hours=1), np.timedelta64(1, "h"), np.timedelta64(60, "m")],
}  # fmt: skip


@pytest.mark.parametrize("values", EQUAL.values(), ids=EQUAL.keys())
def test_equal_keys_are_in_the_same_partition(values: list[Any]) -> None:
    assert {value == values[0] for value in values} == {True}
    assert len({partition_of([value], MANY) for value in values}) == 1
    assert len({partition_of(["a", (value, None)], MANY) for value in values}) == 1


def test_equal_keys_with_unhashable_fields_are_in_the_same_partition() -> None:
    assert partition_of([{"a": 1, "b": [2.0]}], MANY) == partition_of([{"b": [2], "a": True}], MANY)


@pytest.mark.parametrize("value", [math.nan, Decimal("NaN"), Decimal("sNaN"), pd.NaT, pd.NA, np.datetime64("NaT")])
def test_a_value_that_does_not_equal_itself_is_always_in_the_same_partition(value: Any) -> None:
    assert partition_of([value], MANY) == partition_of([value], MANY)


Numbers = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.fractions(),
    st.decimals(allow_nan=False, allow_infinity=False), st.integers(-2**63, 2**63 - 1).map(np.int64),
    st.floats(width=32, allow_nan=False).map(np.float32),
)  # fmt: skip


@given(
    Numbers, st.sampled_from([int, float, Decimal, Fraction, np.longdouble, np.float32, np.int64]), st.integers(0, 9)
)
def test_equal_numbers_of_different_classes_are_in_the_same_partition(number: Any, of: Any, zeros: int) -> None:
    try:
        other = of(number)
    except (ArithmeticError, TypeError, ValueError):
        return
    others = [other]
    if isinstance(other, Decimal) and other.is_finite():
        sign, digits, exponent = other.as_tuple()
        assert isinstance(exponent, int)
        others.append(Decimal((sign, (*digits, *[0] * zeros), exponent - zeros)))
    for each in others:
        if each == number and hash(each) == hash(number):
            assert partition_of([each], MANY) == partition_of([number], MANY)


Zones = st.one_of(
    st.none(), st.timezones(), st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
)


@given(st.datetimes(timezones=Zones), Zones, st.sampled_from([0, 1]))
def test_equal_times_are_in_the_same_partition(moment: dt.datetime, zone: Any, fold: int) -> None:
    others = [moment.replace(fold=fold)]
    if moment.tzinfo is not None and zone is not None:
        try:
            others.append(moment.astimezone(zone))
        except OverflowError:
            pass
    for each in others:
        if each == moment:
            assert partition_of([each], MANY) == partition_of([moment], MANY)


PLAIN: list[Any] = [
    "", "word", "ß\ud800'\"", 0, 1, -7, 2**63, 10**40, b"", b"\xff", None, 1.5, -0.25, 5e-324, Decimal("0.1"),
    Decimal("-19.99"), (), (1, "a"), ("a", (2, None)), [1, "a"], dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, 2),
    NOON, dt.time(1, 2, 3), dt.timedelta(1, 2, 3), math.inf, math.nan, {"a": 1, "b": [2]},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_a_key_is_in_the_same_partition_in_every_process(value: Any) -> None:
    for key in ([value], [value, "x"], ["x", value]):
        # What a store was written with: the text of the key.
        assert partition_of(key, MANY) == zlib.crc32(repr(key).encode()) % MANY


def test_known_keys_are_in_the_recorded_partitions() -> None:
    keys: list[Any] = [["word"], [1], [2**40, "a"], [1.5], [b"a"], [None], [dt.date(2013, 1, 31)], [("a", 1)]]
    assert [partition_of(key, 8) for key in keys] == [1, 0, 7, 6, 6, 3, 7, 4]


def test_rows_with_equal_keys_are_passed_to_one_writer() -> None:
    rows = [{"k": each} for each in (1, 1.0, True, Decimal("1.00"), np.int64(1))]
    state = PartitionedState("s", list(range(16)), ["k"])
    assert sorted(len(numbers) for _, numbers in state.shared_out(rows)) == [0] * 15 + [5]
