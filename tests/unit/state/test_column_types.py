"""Values of every column type: what fits, and plain forms that come back exactly."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state.column_types import (
    KEY_TYPES,
    STATE_TYPES,
    converted,
    from_plain,
    json_text,
    largest,
    size_of,
    to_plain,
    type_of,
)
from airflow_tx.state.keys import decode_key, encode_key

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
bigints = st.integers(-(2**63), 2**63 - 1)
doubles = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.booleans() | bigints | doubles | texts,
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(texts, inner | st.none(), max_size=3),
    max_leaves=8,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bigint": bigints,
    "double": doubles,
    "numeric": st.decimals(allow_nan=False, allow_infinity=False),
    "text": texts,
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes().map(lambda value: value.replace(fold=0)),
    "timestamptz": st.datetimes(
        dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=st.just(dt.timezone(dt.timedelta(hours=5)))
    ),
    "bytes": st.binary(max_size=20),
    "json": json_values,
}


@st.composite
def typed(draw: st.DrawFn, kinds: tuple[str, ...]) -> tuple[str, Any]:
    """A type and a value in it, as a column would hold it."""
    kind = draw(st.sampled_from(kinds))
    return kind, converted(kind, [draw(VALUES[kind])])[0]


@st.composite
def two_keys(draw: st.DrawFn) -> tuple[list[str], list[Any], list[Any]]:
    """Two keys of the same columns, often equal."""
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), max_size=3))
    first, second = (
        [
            converted(kind, [draw(VALUES[kind] | st.just(0.0 if kind == "double" else draw(VALUES[kind])))])[0]
            for kind in kinds
        ]
        for _ in range(2)
    )
    return kinds, first, list(first) if draw(st.booleans()) else second


def test_every_type_of_states_has_test_values() -> None:
    assert set(VALUES) == set(STATE_TYPES)


@given(typed(tuple(STATE_TYPES)))
def test_a_value_is_unchanged_after_it_is_converted_to_json_and_back(value: tuple[str, Any]) -> None:
    kind, given_value = value
    plain = json.loads(json.dumps(to_plain(kind, given_value)))
    back = from_plain(kind, plain)
    assert (back, repr(back), type(back)) == (given_value, repr(given_value), type(given_value))
    assert to_plain(kind, back) == plain


@pytest.mark.parametrize("kind", STATE_TYPES)
def test_null_is_stored_as_null_in_every_type(kind: str) -> None:
    assert to_plain(kind, None) is from_plain(kind, None) is None
    assert list(converted(kind, [None])) == [None]


def test_a_number_may_be_read_from_a_string() -> None:
    assert (from_plain("bigint", "9223372036854775807"), from_plain("double", "0.1")) == (2**63 - 1, 0.1)


@given(two_keys())
def test_keys_are_equal_if_and_only_if_their_bytes_are_equal(keys: tuple[list[str], list[Any], list[Any]]) -> None:
    kinds, first, second = keys
    assert (encode_key(kinds, first) == encode_key(kinds, second)) == (first == second)
    assert list(decode_key(kinds, encode_key(kinds, first))) == first


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [("double", 0.0, -0.0), ("numeric", Decimal("1.50"), Decimal("1.5")), ("numeric", Decimal("-0"), Decimal("0.00"))],
)
def test_equal_keys_that_are_written_differently_have_the_same_bytes(kind: str, one: Any, other: Any) -> None:
    assert encode_key([kind], [one]) == encode_key([kind], [other])


def test_the_bytes_of_a_key_can_be_decoded() -> None:
    assert encode_key(["text", "bigint", "date"], ['ä"', 7, dt.date(2026, 1, 2)]).decode() == '["ä\\"",7,"2026-01-02"]'


def test_the_bytes_of_a_key_separate_its_columns() -> None:
    assert encode_key(["text", "text"], ["a", "b,c"]) != encode_key(["text", "text"], ["a,b", "c"])


@pytest.mark.parametrize("value", ["a", 1, True, 1.5, Decimal(1), dt.date(2026, 1, 1), b"a", dt.datetime(2026, 1, 1)])
def test_the_type_that_is_detected_for_a_key_value_fits_the_value(value: Any) -> None:
    kind = type_of(value)
    assert kind in KEY_TYPES
    assert list(converted(kind, [value])) == [value]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("bytes", "a", "is not bytes"),
        ("json", {1: 2}, "is not a text"),
        ("json", [math.nan], "is not finite"),
        ("json", (1, 2), "not plain JSON .it contains a tuple"),
        ("json", [2**63], "64 bits"),
        ("json", {"a": dt.date(2026, 1, 1)}, "a date is in it"),
        ("text", "\ud800", "surrogate"),
        ("text", "a\x00", "NUL"),
        ("timestamp", pd.Timestamp(1), "nanoseconds"),
        ("timestamp", pd.NaT, "is not a time"),
        ("bigint", True, "not an integer"),
    ],
)
def test_a_value_that_its_type_cannot_represent_exactly_is_refused(kind: str, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        converted(kind, [value])


def test_json_that_is_too_deep_to_be_read_again_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        converted("json", [deep])


def test_values_of_related_classes_are_converted() -> None:
    assert converted("timestamp", [pd.Timestamp("2026-01-02 03:04:05.000006")]) == [dt.datetime(2026, 1, 2, 3, 4, 5, 6)]
    assert converted("bytes", [bytearray(b"a"), memoryview(b"b")]) == [b"a", b"b"]


def test_a_state_stores_its_own_copy_of_a_json_value() -> None:
    mine: dict[str, Any] = {"a": [1]}
    (kept,) = converted("json", [mine])
    mine["a"].append(2)
    assert kept == {"a": [1]}
    assert json_text({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}'


@given(st.lists(typed(tuple(STATE_TYPES)), min_size=1, max_size=5))
def test_the_estimated_size_of_a_column_is_never_less_than_its_largest_value(values: list[tuple[str, Any]]) -> None:
    for kind, value in values:
        assert size_of(kind, value) <= largest(kind, [value, None])
