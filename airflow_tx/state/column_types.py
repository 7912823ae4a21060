"""The column types of keyed states: which Python values fit, exactly, and one plain form of each for stores without
types. Nothing is rounded or cut."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter, index
from typing import Any

from airflow_tx.base.errors import ConfigError

PREV = "tx_prev_"
"""Begins the name of the column that keeps the previous value of another one."""
LONGEST_NAME = 63
"""Bytes of a name that every database takes whole."""


def split_table(
    table: str, columns: Iterable[str], *, state: str, also: str = ""
) -> tuple[str | None, str]:
    """Split a table into its schema, if one is given, and its name; refuse names that a database refuses or cuts.

    :param columns: of the table; `also`: what stands before the names of others.
    """
    schema, dot, name = str(table).rpartition(".")
    names = (name, *([schema] if dot else ()), *columns)
    bad = [each for each in names if not is_name(each)]
    if "." in schema or bad:
        most = LONGEST_NAME - len(also)
        remedy = f'Use "table" or "schema.table", and names of at most {most} bytes.'
        option = f"State {state!r}, table and columns"
        raise ConfigError(option=option, value=table if "." in schema else bad[0], remedy=remedy)
    return schema or None, name


def is_name(text: object) -> bool:
    """Whether every database takes a text as the name of a table or column, and does not cut it."""
    if not isinstance(text, str) or "\0" in text:
        return False
    return 0 < len(text.encode(errors="replace")) <= LONGEST_NAME


_BIGINT = 2**63
_DEEPEST = 100


def _bigint(value: Any) -> int:
    if type(value) is not int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError("is not an integer")
        value = index(value)
    if not -_BIGINT <= value < _BIGINT:
        raise ValueError("does not fit into 64 bits")
    return int(value)


def _double(value: Any) -> float:
    if isinstance(value, (str, bool, Decimal)) or not hasattr(value, "__float__"):
        raise TypeError("is not a float")
    made = float(value)
    if not math.isfinite(made):
        raise ValueError("is not finite (a missing value is None)")
    if made != value:
        raise ValueError("has more digits than a double holds")
    return made


def _numeric(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise TypeError("is not a Decimal")
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("is not finite (a missing value is None)")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("is not a text")
    if "\x00" in value:
        raise ValueError("holds a NUL character")
    if not _encodable(value):
        raise ValueError("holds half a surrogate pair, which is no character")
    return str(value)


def _encodable(value: str) -> bool:
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("is not bytes")
    return bytes(value)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"is not a {kind.__name__}")
        return value

    return check


def _timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise TypeError("is not a datetime without time zone")
    return _to_the_microsecond(value)


def _timestamptz(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise TypeError("is not a datetime with time zone")
    return _to_the_microsecond(value).astimezone(dt.timezone.utc)


def _to_the_microsecond(value: dt.datetime) -> dt.datetime:
    """Of pandas, too, whose Timestamp and NaT are datetimes."""
    if type(value) is dt.datetime:
        return value
    if value != value:
        raise ValueError("is not a time (a missing value is None)")
    if getattr(value, "nanosecond", 0):
        raise ValueError("has nanoseconds, which would be cut")
    clock = (value.hour, value.minute, value.second, value.microsecond)
    return dt.datetime(
        value.year, value.month, value.day, *clock, tzinfo=value.tzinfo, fold=value.fold
    )


def _json(value: Any, depth: int = 0) -> Any:
    """Copy it, so that no other object holds it."""
    if depth > _DEEPEST:
        raise ValueError(f"is nested more than {_DEEPEST} levels deep")
    if value is None or type(value) is bool:
        return value
    if type(value) is list:
        return [_json(item, depth + 1) for item in value]
    if type(value) is dict:
        return {_text(name): _json(item, depth + 1) for name, item in value.items()}
    for kind, fit in ((str, _text), (int, _bigint), (float, _double)):
        if type(value) is kind:
            return fit(value)
    raise TypeError(f"is not plain JSON (a {type(value).__name__} is in it)")


CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "bigint": _bigint,
    "double": _double,
    "numeric": _numeric,
    "text": _text,
    "boolean": _exactly(bool),
    "date": _exactly(dt.date),
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "bytes": _bytes,
    "json": _json,
}
KEY_TYPES: tuple[str, ...] = tuple(name for name in CONVERT if name != "json")


_CLASSES: dict[str, type] = {"boolean": bool, "text": str, "numeric": Decimal, "date": dt.date}
_CLASSES |= {"double": float, "bytes": bytes}


def type_of(value: Any) -> str | None:
    """Find the column type that fits a key value; None if there is none."""
    if isinstance(value, dt.datetime):
        return "timestamp" if value.tzinfo is None else "timestamptz"
    for name, kind in _CLASSES.items():
        if isinstance(value, kind):
            return name
    return "bigint" if hasattr(value, "__index__") else None


def _all_text(values: Sequence[str]) -> bool:
    joined = "".join(values)
    return "\x00" not in joined and _encodable(joined)


_NONE = type(None)
# The type whose values need no conversion, and what has to hold for all of them at once.
_AS_IS: Mapping[str, tuple[type, Callable[[Sequence[Any]], bool]]] = {
    "bigint": (int, lambda values: -_BIGINT <= min(values) and max(values) < _BIGINT),
    "double": (float, lambda values: all(map(math.isfinite, values))),
    "text": (str, _all_text),
    "boolean": (bool, bool),
    "date": (dt.date, bool),
    "timestamp": (dt.datetime, lambda values: set(map(attrgetter("tzinfo"), values)) == {None}),
    "bytes": (bytes, bool),
}


def converted(kind: str, values: Sequence[Any]) -> Sequence[Any]:
    """Bring a column of values into a type; None stays None.

    :raises ValueError, TypeError, OverflowError: one of them does not fit; `CONVERT` says which and why.
    """
    if kind in _AS_IS:
        # A check of the whole column costs a tenth of a check of each value, and nearly always suffices.
        plain, holds = _AS_IS[kind]
        found = set(map(type, values))
        present = [value for value in values if value is not None] if _NONE in found else values
        if not present or (found - {_NONE} == {plain} and holds(present)):
            return values
    fit = CONVERT[kind]
    return [None if value is None else fit(value) for value in values]


# --- plain forms -------------------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """Write a plain JSON value as the one text that equal values share."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )


def _iso(value: Any) -> str:
    text: str = value.isoformat()
    return text


_TO_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "bigint": int,
    "double": float,
    "numeric": str,
    "text": str,
    "boolean": bool,
    "date": _iso,
    "timestamp": _iso,
    "timestamptz": _iso,
    "bytes": lambda value: base64.b64encode(value).decode(),
    "json": lambda value: value,
}
_FROM_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    **_TO_PLAIN,
    "numeric": Decimal,
    "date": dt.date.fromisoformat,
    "timestamp": dt.datetime.fromisoformat,
    "timestamptz": dt.datetime.fromisoformat,
    "bytes": base64.b64decode,
}


def to_plain(kind: str, value: Any) -> Any:
    """Write a value of a column, already in its type, as plain JSON: exact, and the same for the same value."""
    return None if value is None else _TO_PLAIN[kind](value)


def from_plain(kind: str, plain: Any) -> Any:
    """Read the value that `to_plain` made `plain` from; a number may also come as its text, as some stores keep it."""
    return None if plain is None else _FROM_PLAIN[kind](plain)


# --- sizes -------------------------------------------------------------------------------------------------------

_FIXED = 8


def size_of(kind: str, value: Any) -> int:
    """Count the bytes of a value: a text in UTF-8, a JSON value as text, a number of any length by its digits."""
    if value is None or kind not in ("text", "bytes", "json", "numeric"):
        return _FIXED
    if kind == "bytes":
        return len(value)
    if kind == "numeric":
        return len(value.as_tuple().digits)
    return len((value if kind == "text" else json_text(value)).encode())


def largest(kind: str, values: Sequence[Any]) -> int:
    """Bound the sizes in a column, quickly: for text up to four times too high."""
    if kind == "text":
        present = [value for value in values if value is not None] if None in values else values
        return 4 * max(map(len, present), default=0)
    if kind in ("bytes", "json", "numeric"):
        return max((size_of(kind, value) for value in values), default=0)
    return _FIXED
