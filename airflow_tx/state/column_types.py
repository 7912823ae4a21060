"""The column types of keyed states: which Python values fit, exactly as they are. Nothing is rounded or cut."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import index
from typing import Any

_BIGINT = 2**63


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
    value = float(value)
    if not math.isfinite(value):
        raise ValueError("is not finite (a missing value is None)")
    return float(value)


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
    return str(value)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"is not a {kind.__name__}")
        return value

    return check


def _timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise TypeError("is not a datetime without time zone")
    return value


def _timestamptz(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise TypeError("is not a datetime with time zone")
    return value.astimezone(dt.timezone.utc)


CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "bigint": _bigint,
    "double": _double,
    "numeric": _numeric,
    "text": _text,
    "boolean": _exactly(bool),
    "date": _exactly(dt.date),
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
}


def type_of(value: Any) -> str | None:
    """The column type that fits a key value; None if there is none."""
    if isinstance(value, dt.datetime):
        return "timestamp" if value.tzinfo is None else "timestamptz"
    for kind, name in ((bool, "boolean"), (str, "text"), (Decimal, "numeric"), (dt.date, "date"), (float, "double")):
        if isinstance(value, kind):
            return name
    return "bigint" if hasattr(value, "__index__") else None


def _in_range(values: Sequence[int]) -> bool:
    return -_BIGINT <= min(values) and max(values) < _BIGINT


def _all_finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _without_nul(values: Sequence[str]) -> bool:
    return "\x00" not in "".join(values)


# The type whose values need no conversion, and what has to hold for all of them at once.
_AS_IS: Mapping[str, tuple[type, Callable[[Sequence[Any]], bool]]] = {
    "bigint": (int, _in_range),
    "double": (float, _all_finite),
    "text": (str, _without_nul),
    "boolean": (bool, bool),
    "date": (dt.date, bool),
}


def converted(kind: str, values: Sequence[Any]) -> Sequence[Any]:
    """A column of values in the given type; None stays None.

    :raises ValueError, TypeError, OverflowError: one of them does not fit; `CONVERT` says which and why.
    """
    if kind in _AS_IS:
        # A look at the whole column costs a tenth of a look at each value, and nearly always suffices.
        plain, holds = _AS_IS[kind]
        present = [value for value in values if value is not None]
        if not present or (set(map(type, present)) == {plain} and holds(present)):
            return values
    fit = CONVERT[kind]
    return [None if value is None else fit(value) for value in values]
