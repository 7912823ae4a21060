"""The column types of keyed states, and the Python values that fit them. No value is rounded or truncated.

Stores without column types keep each value as plain JSON.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter, index
from typing import Any, NamedTuple

from airflow_tx.base.errors import ConfigError

PREV = "tx_prev_"
"""The prefix of a column that keeps the previous value of another column."""
LONGEST_NAME = 63
"""Maximum length, in bytes, of a name that every database accepts without truncating it."""


def split_table(
    table: str, columns: Iterable[str], *, state: str, also: str = ""
) -> tuple[str | None, str]:
    """Split a table name into the schema, if given, and the table's own name.

    Refuse names that a database would refuse or truncate.

    :param columns: names of the columns of the table.
    :param also: prefix that this package adds to some column names.
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
    """Return whether every database accepts a text as a table or column name, without truncating it."""
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
        raise ValueError("contains half of a surrogate pair, which is not a character")
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
    """Convert a datetime, such as pandas' Timestamp, to a plain datetime. NaT and nanoseconds are refused."""
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
    """Check that a value is plain JSON, and return an independent copy."""
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
    raise TypeError(f"is not plain JSON (it contains a {type(value).__name__} is in it)")


# --- types --------------------------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """Return a plain JSON value as text. Equal values have the same text."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )


def _iso(value: Any) -> str:
    text: str = value.isoformat()
    return text


def _unchanged(value: Any) -> Any:
    return value


def _all_text(values: Sequence[str]) -> bool:
    joined = "".join(values)
    return "\x00" not in joined and _encodable(joined)


_Function = Callable[[Any], Any]


class StateType(NamedTuple):
    """A column type of states: a row of `STATE_TYPES`.

    :param name: the word that users write, such as ``bigint``.
    :param column: type of the column in Arrow and Spark, as DDL. It is a row of `airflow_tx.base.rows.COLUMN_TYPES`.
    :param made: Python class of the values.
    :param convert: converts a value to the type. It raises ValueError, TypeError or OverflowError if the type has no
        equal value.
    :param holds: returns whether a column of values of this class needs no conversion; None to convert each value.
    :param size: returns the size of a value in bytes; None if each value has eight bytes.
    :param plain: converts a value to plain JSON; None to use `made`.
    :param read: reads a value that `plain` wrote; None to use `made`.
    :param to_arrow: converts a value to its Arrow value; None if both are the same.
    :param from_arrow: converts an Arrow value back; None if both are the same.
    """

    name: str
    column: str
    made: type[Any]
    convert: _Function
    holds: Callable[[Sequence[Any]], bool] | None = None
    size: Callable[[Any], int] | None = None
    plain: _Function | None = None
    read: _Function | None = None
    to_arrow: _Function | None = None
    from_arrow: _Function | None = None


STATE_TYPES: Mapping[str, StateType] = {
    each.name: each
    for each in (
        StateType(
            "bigint",
            "BIGINT",
            int,
            _bigint,
            holds=lambda values: -_BIGINT <= min(values) and max(values) < _BIGINT,
        ),
        StateType(
            "double", "DOUBLE", float, _double, holds=lambda values: all(map(math.isfinite, values))
        ),
        StateType(
            "numeric",
            "STRING",
            Decimal,
            _numeric,
            size=lambda value: len(value.as_tuple().digits),
            plain=str,
            # Arrow decimals have a fixed number of digits, so Arrow gets text, which CAST converts
            # to DECIMAL.
            to_arrow=lambda value: format(value, "f"),
            from_arrow=Decimal,
        ),
        StateType(
            "text", "STRING", str, _text, holds=_all_text, size=lambda value: len(value.encode())
        ),
        StateType("boolean", "BOOLEAN", bool, _exactly(bool), holds=bool),
        StateType(
            "date",
            "DATE",
            dt.date,
            _exactly(dt.date),
            holds=bool,
            plain=_iso,
            read=dt.date.fromisoformat,
        ),
        StateType(
            "timestamp",
            "TIMESTAMP_NTZ",
            dt.datetime,
            _timestamp,
            holds=lambda values: set(map(attrgetter("tzinfo"), values)) == {None},
            plain=_iso,
            read=dt.datetime.fromisoformat,
        ),
        StateType(
            "timestamptz",
            "TIMESTAMP",
            dt.datetime,
            _timestamptz,
            plain=_iso,
            read=dt.datetime.fromisoformat,
            from_arrow=_timestamptz,
        ),
        StateType(
            "bytes",
            "BINARY",
            bytes,
            _bytes,
            holds=bool,
            size=len,
            plain=lambda value: base64.b64encode(value).decode(),
            read=base64.b64decode,
        ),
        StateType(
            "json",
            "STRING",
            object,
            _json,
            size=lambda value: len(json_text(value).encode()),
            plain=_unchanged,
            read=_unchanged,
            to_arrow=json_text,
            from_arrow=json.loads,
        ),
    )
}
"""The column types of states, by name. `Dialect.types` has the corresponding types of each database."""
KEY_TYPES = tuple(name for name in STATE_TYPES if name != "json")
_OF_CLASS = {STATE_TYPES[name].made: name for name in KEY_TYPES}
_WRITE = {name: each.plain or each.made for name, each in STATE_TYPES.items()}
_READ = {name: each.read or each.made for name, each in STATE_TYPES.items()}
_NONE = type(None)


def type_of(value: Any) -> str | None:
    """Return the column type that fits a key value. Return None if no type fits."""
    made = type(value)
    found = _OF_CLASS.get(made) or next(filter(None, map(_OF_CLASS.get, made.__mro__)), None)
    if found == "timestamptz":
        return "timestamp" if value.tzinfo is None else found
    return "bigint" if found is None and hasattr(value, "__index__") else found


def converted(kind: str, values: Sequence[Any]) -> Sequence[Any]:
    """Convert a value column to a type. None stays None.

    :raises ValueError: a value does not fit the type. `StateType.convert` may also raise TypeError or OverflowError.
    """
    own = STATE_TYPES[kind]
    if own.holds is not None:
        # Check the whole column first. This is nearly always enough, and ten times as fast as
        # checking each value.
        found = set(map(type, values))
        present = [value for value in values if value is not None] if _NONE in found else values
        if not present or (found - {_NONE} == {own.made} and own.holds(present)):
            return values
    fit = own.convert
    return [None if value is None else fit(value) for value in values]


def converted_keys(kind: str, values: Sequence[Any]) -> Sequence[Any]:
    """Convert a key column to a type, as `converted` does. -0.0 becomes 0.0, because both are the same key."""
    fitting = converted(kind, values)
    if kind != "double":
        return fitting
    return [value if value is None else value + 0.0 for value in fitting]


# --- plain forms -------------------------------------------------------------------------------------------------


def to_plain(kind: str, value: Any) -> Any:
    """Convert a value of a column to exact plain JSON. The same value always has the same JSON."""
    return None if value is None else _WRITE[kind](value)


def from_plain(kind: str, plain: Any) -> Any:
    """Read a value that `to_plain` wrote. A number may also be a text, because some stores return text."""
    return None if plain is None else _READ[kind](plain)


# --- sizes -------------------------------------------------------------------------------------------------------

_FIXED = 8


def size_of(kind: str, value: Any) -> int:
    """Return the size of a value: the UTF-8 bytes of a text or JSON text, or the digits of a numeric."""
    size = STATE_TYPES[kind].size
    return _FIXED if value is None or size is None else size(value)


def largest(kind: str, values: Sequence[Any]) -> int:
    """Return an upper bound for the value sizes in a column.

    The bound is quick to compute. For text, it is up to four times too high.
    """
    if kind == "text":
        present = [value for value in values if value is not None] if None in values else values
        return 4 * max(map(len, present), default=0)
    if STATE_TYPES[kind].size is None:
        return _FIXED
    return max((size_of(kind, value) for value in values), default=0)
