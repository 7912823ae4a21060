"""Rows of Python and frames as Arrow tables, exactly: a value that its column would change is refused with its row."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_Row = Mapping[str, Any]
_SHOWN = 200
_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_EARLIEST = (dt.date.min.toordinal() - dt.date(1970, 1, 1).toordinal()) * _DAY
_BEYOND = (dt.date.max.toordinal() - dt.date(1970, 1, 1).toordinal() + 1) * _DAY
"""The first second after the year 9999."""
_EXACT: Mapping[type, str] = {
    int: "int64",
    str: "string",
    bool: "bool",
    bytes: "binary",
    dt.date: "date32[day]",
}
"""Classes whose values an Arrow type holds as they come: of these, no value is looked at."""


class NoTable(ValueError):
    """Rows that no Arrow table holds unchanged; a clause that names the row, the column and the value."""


def is_frame(rows: Any) -> bool:
    """Whether rows come as columns: of pandas, polars, pyarrow …"""
    return hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")


def table_of(rows: Any) -> pa.Table:
    """Make the table that files of rows are written from, with the same values for each of their readers.

    :param rows: dicts, whose missing keys are NULL, or a frame. Of pandas, an index with a name is a column, and NaN
        is NULL.
    :raises NoTable: a value would be changed, or has a type that a reader does not know.
    """
    import pyarrow as pa

    if not is_frame(rows):
        return readable(exact_table(rows))
    # Of pandas, whose own conversion cuts 1.5 to 1 in a column of objects.
    if hasattr(rows, "reset_index"):
        return readable(_of_pandas(rows))
    try:
        table = pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise NoTable(first_line(error)) from None
    return readable(table)


def exact_table(
    rows: Iterable[_Row],
    types: Mapping[str, pa.DataType] | None = None,
    *,
    decimals: pa.DataType | None = None,
    named: Callable[[pa.DataType], str] = str,
) -> pa.Table:
    """Make an Arrow table of dicts; a key that a row lacks is NULL.

    :param types: the types of known columns; another column has the type that holds its values.
    :param decimals: the type of other columns with decimals; None: as many digits as they have.
    :param named: spells a type, for messages.
    :raises NoTable: a value has not the type of its column.
    """
    import pyarrow as pa

    given = list(rows)
    classes = set(map(type, given))
    if other := [each for each in classes if not issubclass(each, Mapping)]:
        row = next(row for row in given if type(row) in other)
        raise NoTable(f"row {given.index(row)} is {shown_value(row)}, and no dict")
    names = dict.fromkeys(chain.from_iterable(given))
    _check_names(names)
    known = types or {}
    columns = dict[str, Any]()
    for name in names:
        values = [row.get(name) for row in given]
        kind = known.get(name)
        columns[name] = column_of(name, values, kind, decimals=decimals, named=named)
    return pa.table(columns)


def column_of(
    name: str,
    values: Sequence[Any],
    kind: pa.DataType | None = None,
    *,
    decimals: pa.DataType | None = None,
    named: Callable[[pa.DataType], str] = str,
) -> pa.Array:
    """Make a column of values, as `exact_table` does."""
    try:
        return _made(values, kind, decimals)
    except _refusals() as error:
        last: Exception = error
    # The shortest start of the column that is refused ends with a row to blame.
    fine = 0
    refused = len(values)
    while refused - fine > 1:
        middle = (fine + refused) // 2
        try:
            _made(values[:middle], kind, decimals)
            fine = middle
        except _refusals() as error:
            refused, last = middle, error
    row = refused - 1
    value = values[row]
    above = None if kind is not None else _made(values[:row], None, decimals).type
    if kind is not None:
        problem = f"is no {named(kind)}"
    elif str(above) == "null":
        problem = "has no type that a column can have"
    else:
        problem = f"has not the type of the rows above, {named(above)}"
    raise NoTable(f"row {row}: {name} = {shown_value(value)} {problem} ({first_line(last)})")


def shown_value(value: Any) -> str:
    """Show a value in a message, of a reasonable length and in one line."""
    of_arrow = type(value).__module__.startswith("pyarrow")
    text = str(value) if of_arrow else repr(value)
    text = text.replace("\n", " ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def first_line(error: Exception) -> str:
    """Give the first line of an error, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _refusals() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError, AttributeError)


# --- one column of Python values ----------------------------------------------------------------------------------


def _made(
    values: Sequence[Any], kind: pa.DataType | None, decimals: pa.DataType | None
) -> pa.Array:
    import pyarrow as pa

    types = pa.types
    classes = set(map(type, values)) - {type(None)}
    if kind is not None and types.is_floating(kind):
        return _floats(values, classes, kind)
    if Decimal in classes and int in classes:
        # Arrow chooses the digits by the decimals alone.
        values = [Decimal(value) if type(value) is int else value for value in values]
    made = pa.array(values, kind)
    if kind is None and types.is_floating(made.type):
        return _floats(values, classes, pa.float64())
    if kind is None and types.is_decimal(made.type) and decimals is not None:
        made = made.cast(decimals)
    if kind is None and types.is_timestamp(made.type) and made.type.unit != "us":
        made = made.cast(pa.timestamp("us", made.type.tz))
    if len(classes) == 1 and _EXACT.get(*classes) == str(made.type):
        return made
    # Arrow cuts 1.5 down to 1, and a moment to a day, without a word.
    found = made.to_pylist(maps_as_pydicts="strict")
    if (types.is_nested(made.type) or found != values) and not all(
        map(is_same_value, found, values)
    ):
        raise ValueError("it would be changed")
    return made


def _floats(values: Sequence[Any], classes: set[type], kind: pa.DataType) -> pa.Array:
    """Make floating numbers of numbers alone: Arrow reads texts, and takes True for 1."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    given = pa.array(values)
    types = pa.types
    if not (
        types.is_floating(given.type) or types.is_integer(given.type) or types.is_null(given.type)
    ):
        raise ValueError(f"it is {given.type}")
    if any(issubclass(each, bool) or each.__name__ == "bool" for each in classes):
        raise ValueError("it is True or False")
    made = given.cast(kind)
    if types.is_floating(given.type) and not pc.is_inf(made).equals(pc.is_inf(given)):
        raise ValueError("it is too great")
    return made


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "bool"


def is_same_value(made: Any, given: Any) -> bool:
    """Compare a value of a column with the value that it was made of."""
    if hasattr(given, "tolist"):
        given = given.tolist()  # of numpy
    if isinstance(made, dict):
        return (
            isinstance(given, Mapping)
            and made.keys() >= given.keys()
            and all(is_same_value(made[key], given.get(key)) for key in made)
        )
    if isinstance(made, list):
        return (
            isinstance(given, (list, tuple))
            and len(made) == len(given)
            and all(map(is_same_value, made, given))
        )
    if isinstance(made, float) and isinstance(given, float) and math.isnan(given):
        return math.isnan(made)
    if isinstance(made, dt.datetime) and isinstance(given, dt.datetime):
        # Two datetimes of zones with summer time are never equal in an hour that comes twice.
        if (made.tzinfo is None) != (given.tzinfo is None):
            return False
        return _moment(made) == _moment(given)
    # 1 equals True: within a list, Arrow makes 1.0 of it.
    return bool(made == given) and _is_truth(made) == _is_truth(given)


def _moment(value: dt.datetime) -> dt.datetime:
    return value if value.tzinfo is None else value.astimezone(dt.timezone.utc)


# --- frames -------------------------------------------------------------------------------------------------------


def _of_pandas(frame: Any) -> pa.Table:
    import pyarrow as pa

    try:
        frame = _with_index(frame)
    except ValueError as error:
        raise NoTable(first_line(error)) from None
    names = list(frame.columns)
    _check_names(names)
    columns = dict[str, Any]()
    for name in names:
        series = frame[name]
        try:
            if series.dtype == object:
                pairs = zip(series.tolist(), series.isna(), strict=True)
                values = [None if missing else value for value, missing in pairs]
                columns[name] = column_of(name, values)
            else:
                columns[name] = pa.array(series, from_pandas=True)
        except NoTable:
            raise
        except _refusals() as error:
            raise NoTable(f"column {name}: {first_line(error)}") from None
    return pa.table(columns)


def _with_index(frame: Any) -> Any:
    """Make columns of an index that has a name, and leave out another one."""
    unnamed = [level for level, name in enumerate(frame.index.names) if name is None]
    if len(unnamed) == frame.index.nlevels:
        return frame.reset_index(drop=True)
    if unnamed:
        frame = frame.reset_index(level=unnamed, drop=True)
    return frame.reset_index()


def _check_names(names: Collection[Any]) -> None:
    if other := [name for name in names if not isinstance(name, str)]:
        raise NoTable(f"the column name {other[0]!r} is no text")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise NoTable(f"column {twice} comes twice")


def readable(table: pa.Table) -> pa.Table:
    """Bring times to microseconds, which all readers of the files have, and refuse what one of them does not know."""
    import pyarrow as pa

    _check_names(table.column_names)
    for at, field in enumerate(table.schema):
        if problem := _unknown(field.type):
            raise NoTable(f"column {field.name} has the type {field.type}, {problem}")
        if pa.types.is_timestamp(field.type):
            column = _in_microseconds(field.name, table.column(at))
            table = table.set_column(at, field.with_type(column.type), column)
    return table


def _unknown(kind: pa.DataType) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_duration(kind) or types.is_interval(kind):
        return "which Spark reads as a number"
    if isinstance(kind, pa.BaseExtensionType):
        return "which Spark reads as bytes"
    if types.is_struct(kind) and not kind.num_fields:
        return "which no file has"
    if not types.is_nested(kind):
        return ""
    fields = map(kind.field, range(kind.num_fields))
    return next(filter(None, (_unknown(each.type) for each in fields)), "")


def _in_microseconds(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = column.type.unit
    count = column.cast(pa.int64())
    if unit != "ns":  # which ends in 2262
        early = pc.less(count, _EARLIEST * _A_SECOND[unit])
        outside = pc.or_(early, pc.greater_equal(count, _BEYOND * _A_SECOND[unit]))
        _refuse_first(name, count, outside, f"{unit} since 1970 is not in the years 1 to 9999")
        return column if unit == "us" else column.cast(pa.timestamp("us", column.type.tz))
    made = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    cut = pc.not_equal(made.cast(column.type), column)
    _refuse_first(name, column, cut, "has nanoseconds, which would be cut")
    return made


def _refuse_first(name: str, column: Any, wrong: Any, problem: str) -> None:
    import pyarrow.compute as pc

    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise NoTable(f"row {row}: {name} = {shown_value(column[row])} {problem}")
