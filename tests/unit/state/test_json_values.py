"""Keys and values as the texts that Redis and Memcached keep."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import StateError
from airflow_tx.ledger.attempt import Token
from airflow_tx.state import OpaqueValue, StateKind, Sum, TransactionalValue, from_trident
from airflow_tx.state.aggregators import Columns
from airflow_tx.state.keys import encode_key
from airflow_tx.state.maps import from_text, key_text, to_text
from airflow_tx.state.redis.state import RedisRows

TOKEN = Token(1, 7, 2, 5, "n")


def _unfolded(value: dt.datetime) -> dt.datetime:
    # Without a zone of its own a time is not ambiguous.
    return value.replace(fold=0)


_plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_others = (
    st.decimals(allow_nan=False, allow_infinity=False)
    | st.binary()
    | st.dates()
    | st.datetimes().map(_unfolded)
    | st.datetimes(timezones=st.just(dt.timezone.utc)).map(_unfolded)
)
_values = st.recursive(
    _plain | _others,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


def _exactly(value: Any) -> str:
    return repr(value)


@given(_values)
def test_values_are_unchanged_after_they_are_stored_as_text(value: Any) -> None:
    # JSON sorts the fields of an object.
    assert from_text(to_text(value)) == value
    assert len(_exactly(from_text(to_text(value)))) == len(_exactly(value))


@given(_values, _values, st.sampled_from([None, TOKEN]))
def test_values_with_their_transaction_are_unchanged_after_they_are_stored_as_text(
    value: Any, prev: Any, token: Token | None
) -> None:
    for stored in (OpaqueValue(7, value, prev, token, 3), TransactionalValue(7, value, token, 3, 2)):
        back = from_text(to_text(stored))
        assert (type(back), back) == (type(stored), stored)
    assert from_text(to_text(TransactionalValue(7, value, token, 3, 2))).updates == 2


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, float("nan"), float("inf"), [object()], OpaqueValue(1, object(), 1)]
)
def test_a_value_that_cannot_be_stored_as_text_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        to_text(value)


@pytest.mark.parametrize("data", [b"", b"{", b'{"$numeric":"x"}', b'{"$unknown":1}', b'{"$opaque":[1]}', b"\xff"])
def test_a_text_that_no_state_has_written_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        from_text(data)


def test_equal_numbers_of_a_type_are_one_key() -> None:
    assert key_text((Decimal("1.0"), -0.0)) == key_text((Decimal("1.00"), 0.0))
    assert len({key_text(key) for key in [(1,), ("1",), (1, 1), ("1,1",), ("a", "b"), ("a,b",), (), (None,)]}) == 8


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), min_size=1, max_size=3))
def test_the_fast_encoding_of_a_text_key_equals_the_encoding_of_every_state(key: list[str]) -> None:
    names = [f"k{number}" for number in range(len(key))]
    columns = Columns("s", tuple(names), {"n": Sum()}, {})
    rows = RedisRows(columns, StateKind.OPAQUE, dict.fromkeys(names, "text"))
    assert rows.fields([*[[part] for part in key], [1]]) == [encode_key(["text"] * len(key), key)]
    assert tuple(rows.key(rows.fields([*[[part] for part in key], [1]])[0]).values()) == tuple(key)


@given(st.integers(-(2**63), 2**63 - 1))
def test_the_fast_encoding_of_a_number_equals_the_encoding_of_every_state(key: int) -> None:
    columns = Columns("s", ("k",), {"n": Sum()}, {})
    assert RedisRows(columns, StateKind.OPAQUE, {"k": "bigint"}).fields([[key], [1]]) == [encode_key(["bigint"], [key])]


# --- what Storm has stored ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        (b"[7,5,3]", "opaque", 5),
        (b"[8,5,3]", "opaque", 3),
        (b"[8,5,null]", "opaque", None),
        (b"[7,{\"n\":1.5}]", "transactional", {"n": 1.5}),
        ("[1,2,3]", "non-transactional", [1, 2, 3]),
    ],
)  # fmt: skip
def test_a_value_of_trident_is_read_with_the_result_of_its_last_commit(data: Any, kind: str, value: Any) -> None:
    assert from_trident(data, kind, committed=7) == value


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("data", [b"5", b"[7]", b"[true,1,2]", b'["7",1]', b"{", b"\xff", b"[1,2,3,4]", b"null"])
def test_a_text_that_trident_has_not_written_is_refused(data: bytes, kind: str) -> None:
    with pytest.raises(StateError, match="map of Trident"):
        from_trident(data, kind, committed=7)


def test_a_transactional_trident_value_of_an_uncommitted_transaction_is_refused() -> None:
    with pytest.raises(StateError, match="is of transaction 8, but Storm has committed only 7"):
        from_trident(b"[8,5]", "transactional", committed=7)
