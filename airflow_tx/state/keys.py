"""Keys of states as tuples, as bytes, and as values of the types of the key columns."""

from __future__ import annotations

import datetime as dt
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from json.encoder import encode_basestring
from numbers import Complex, Integral, Number, Real
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from airflow_tx.base.errors import StateError
from airflow_tx.state.aggregators import Columns
from airflow_tx.state.column_types import (
    STATE_TYPES,
    converted_keys,
    from_plain,
    json_text,
    to_plain,
)

Key: TypeAlias = tuple[Any, ...]


def as_key(key: Any) -> Key:
    """Return a key as a tuple. A value that is not a list or tuple is a single-column key."""
    return tuple(key) if isinstance(key, (list, tuple)) else (key,)


def canonical_number(value: Decimal) -> Decimal:
    """Return the one Decimal that represents all equal Decimals. It has no trailing zeros, and no minus before 0."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    kept = "".join(map(str, digits)).rstrip("0")
    if not kept:
        return Decimal(0)
    return Decimal((sign, tuple(map(int, kept)), exponent + len(digits) - len(kept)))


def _key_plain(kind: str, value: Any) -> Any:
    if kind == "double":
        return value + 0.0  # -0.0 and 0.0 are equal, so they are one key
    return str(canonical_number(value)) if kind == "numeric" else to_plain(kind, value)


def encode_key(types: Sequence[str], key: Sequence[Any]) -> bytes:
    """Encode a converted key as readable JSON. Only equal keys have equal bytes."""
    return json_text(
        [_key_plain(kind, value) for kind, value in zip(types, key, strict=True)]
    ).encode()


_QUICK: Mapping[str, Callable[[Any], str]] = {"text": encode_basestring, "bigint": str}


def encode_keys(types: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """Encode many keys, given column by column, as `encode_key` does.

    For texts and integers, this is ten times as fast.
    """
    if not set(types) <= _QUICK.keys():
        return [encode_key(types, key) for key in zip(*columns, strict=True)]
    quoted = [map(_QUICK[kind], column) for kind, column in zip(types, columns, strict=True)]
    return [f"[{','.join(key)}]".encode() for key in zip(*quoted, strict=True)]


def decode_key(types: Sequence[str], data: bytes) -> Key:
    return tuple(
        from_plain(kind, plain) for kind, plain in zip(types, json.loads(data), strict=True)
    )


def partition_of(key: Sequence[Any], count: int) -> int:
    """Choose one of `count` partitions.

    Equal keys have the same partition in every process and every version of this package.
    """
    text = repr([part if type(part) in _AS_THEY_ARE else _one_of_equal(part) for part in key])
    return zlib.crc32(text.encode()) % count


_AS_THEY_ARE = frozenset((str, int, bytes, type(None)))
# Python refuses to write an integer with more digits as text. See sys.get_int_max_str_digits.
_MOST_DIGITS = 4300


def _one_of_equal(part: Any) -> Any:
    """Return the same value for all equal values, because its text decides the partition.

    A number becomes an int if possible, otherwise a float or a Decimal.
    """
    if hasattr(part, "dtype") and hasattr(part, "item"):  # a NumPy value
        timed = part.dtype.kind in "mM"
        part = (part.astype(f"{part.dtype.kind}8[us]") if timed else part).item()
    if isinstance(part, Number):
        return _equal_number(part)
    if isinstance(part, str):
        return "".join(part)  # the repr of an Enum differs
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part)
    if isinstance(part, (tuple, list)):
        return (tuple if isinstance(part, tuple) else list)(map(_one_of_equal, part))
    if isinstance(part, Mapping):
        pairs = ((_one_of_equal(name), _one_of_equal(each)) for name, each in part.items())
        return dict(sorted(pairs, key=repr))
    if isinstance(part, (set, frozenset)):
        return sorted(repr(_one_of_equal(each)) for each in part)
    return _equal_time(part) if isinstance(part, (dt.date, dt.time, dt.timedelta)) else part


def _equal_number(part: Any) -> Any:
    if isinstance(part, Integral):
        return int(part)
    if isinstance(part, Complex) and not isinstance(part, Real):
        return complex(part) if part.imag != 0 else _equal_number(part.real)
    if isinstance(part, Decimal) and part.is_nan():
        return part
    with suppress(OverflowError):
        near = float(part)
        if near == part or math.isnan(near):
            return int(near) if near.is_integer() else near
    if isinstance(part, Decimal):
        if part.adjusted() >= _MOST_DIGITS:
            return hash(part)
        found = canonical_number(part)
        return int(found) if found == found.to_integral_value() else found
    above, below = part.as_integer_ratio()
    places = below.bit_length()
    if 10**places % below:
        return Fraction(above, below)
    return _equal_number(Decimal(f"{above * 10**places // below}E-{places}"))


def _equal_time(part: Any) -> Any:
    if isinstance(part, dt.timedelta):
        return dt.timedelta(part.days, part.seconds, part.microseconds)
    if part != part:  # pandas NaT
        return None
    if isinstance(part, dt.time):
        # Drop nanoseconds and fold, because comparing times ignores them.
        made = dt.time(part.hour, part.minute, part.second, part.microsecond, part.tzinfo)
        if made.utcoffset() is None:
            return made.replace(tzinfo=None)
        return dt.datetime.combine(dt.date(2000, 1, 1), made).astimezone(ZoneInfo("UTC")).timetz()
    if not isinstance(part, dt.datetime):
        return dt.date(part.year, part.month, part.day)
    day = dt.date(part.year, part.month, part.day)
    moment = dt.datetime.combine(
        day, dt.time(part.hour, part.minute, part.second, part.microsecond)
    )
    offset = moment.replace(tzinfo=part.tzinfo).utcoffset()
    if offset is None:
        return moment
    try:
        # Times in staged rows are in this time zone.
        return (moment - offset).replace(tzinfo=ZoneInfo("UTC"))
    except OverflowError:
        return moment - dt.datetime.min - offset


def wanted_keys(
    columns: Columns, keys: Sequence[Sequence[Any]], key_types: Mapping[str, str] | None
) -> list[tuple[int, Key]]:
    """Convert keys to a state's key types, and return them with their numbers.

    Keys with a NULL are left out. Before the first update, the list is empty.

    :param key_types: the types that the first update decided; None if there was no update.
    :raises StateError: a key has too few or too many values, or a value of another type.
    """
    normal = [as_key(key) for key in keys]
    for number, key in enumerate(normal):
        if len(key) != len(columns.keys):
            problem = (
                f"it has {len(columns.keys)} key columns ({', '.join(columns.keys) or 'none'})"
            )
            raise _no_key(columns, number, key, problem, "Give one value for each, in this order.")
    whole = [(number, key) for number, key in enumerate(normal) if None not in key]
    if key_types is None or not whole:
        return []
    if not columns.keys:
        return whole
    found = list[Sequence[Any]]()
    for name, values in zip(
        columns.keys, zip(*[key for _, key in whole], strict=True), strict=True
    ):
        kind = key_types[name]
        try:
            found.append(converted_keys(kind, values))
        except (ValueError, TypeError, ArithmeticError):
            raise _misfit(columns, name, kind, whole, values) from None
    return list(zip([number for number, _ in whole], zip(*found, strict=True), strict=True))


def _misfit(
    columns: Columns,
    name: str,
    kind: str,
    keys: Sequence[tuple[int, Key]],
    values: Sequence[Any],
) -> StateError:
    for (number, key), value in zip(keys, values, strict=True):
        try:
            STATE_TYPES[kind].convert(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            return _no_key(
                columns,
                number,
                key,
                f"{name} = {value!r} {error}",
                f"The column has the type {kind}.",
            )
    return _no_key(columns, *keys[0], f"{name} does not fit", f"The column has the type {kind}.")


def _no_key(columns: Columns, number: int, key: Key, problem: str, remedy: str) -> StateError:
    return StateError(
        state=columns.state, problem=f"key {number} {str(key)[:200]}: {problem}", remedy=remedy
    )
