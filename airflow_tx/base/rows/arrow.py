"""Convert Python rows and frames to Arrow batches exactly. A value that would change is refused."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from airflow_tx.base.lazy_names import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")

_Row = Mapping[str, Any]
_SHOWN = 200
_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_EARLIEST = dt.date.min.toordinal() - dt.date(1970, 1, 1).toordinal()
_BEYOND = dt.date.max.toordinal() - dt.date(1970, 1, 1).toordinal() + 1
"""The first day after the year 9999, in days since 1970."""
_EXACT: Mapping[type, str] = {
    int: r"int\d+",
    str: "string",
    bool: "bool",
    bytes: "binary",
    dt.date: r"date32\[day\]",
    Decimal: r"decimal128\(.*\)",
}
"""Classes whose values an Arrow type either stores unchanged or refuses, so that no further check is needed."""
_LACKING = b"airflow_tx.lacking"
"""The metadata key of a column that at least one row lacks. The column is NULL in that row, although no None was
given."""
AT_ONCE = 32_768
"""The number of Python rows in one record batch."""


class NoTable(ValueError):
    """Signals that an Arrow table cannot hold some rows unchanged.

    The message is a clause with the row, the column and the value.

    :ivar remedy: how to solve the problem, or "" if the message contains it.
    :ivar passes: whether another try may succeed, for example after a file store did not respond.
    :ivar place: place of the value that the message quotes, or "" if it quotes no value.
    """

    def __init__(
        self, problem: str, remedy: str = "", *, passes: bool = False, place: str = ""
    ) -> None:
        super().__init__(problem)
        self.remedy = remedy
        self.passes = passes
        self.place = place

    @classmethod
    @contextmanager
    def of_libraries(cls) -> Iterator[None]:
        """Convert the errors that libraries raise while they return rows. Errors of other code are raised unchanged.

        :raises NoTable: a library refuses the rows, or cannot read them now.
        """
        try:
            yield
        except BaseException as error:  # a panic in the Rust code of polars is a BaseException
            passes = _passes(error)
            if passes is None:
                raise
            remedy = "Correct what gives these rows, then clear the task."
            raise cls(first_line(error), remedy, passes=passes, place="a row") from error


_RAISED: Mapping[str, Mapping[str, bool]] = {
    "builtins": {"OSError": True},
    "duckdb": {
        "OperationalError": True,
        "InterruptException": True,
        "InternalError": True,
        "FatalException": True,
        "Error": False,
    },
    "polars": {"PolarsError": False},
    "pyo3_runtime": {"PanicException": False},  # a panic in the Rust code of polars
    "pyarrow": {"ArrowCancelled": True, "ArrowMemoryError": True, "ArrowException": False},
    "pandas": {"*": False},
}
"""Whether another try may succeed after an error that a library raises while it returns rows, by library and class."""
_OF_DUCKDB = re.compile(
    r"(?!IO|HTTP|Connection|Out of Memory|INT|FATAL|Trans)[A-Z][A-Za-z -]+ Error: "
)
"""The first words of a permanent DuckDB stream error. pyarrow converts every error of such a stream to an OSError."""


def _passes(error: BaseException) -> bool | None:
    """Return whether another try may be able to read the rows. Return None if no library raised this error."""
    if type(error) is OSError and error.errno is None and _OF_DUCKDB.match(str(error)):
        return False
    named = _RAISED.get(_library(type(error)))
    if named is None:  # the class comes from other code, even if it is a subclass of OSError
        return None
    kinds = type(error).__mro__
    found = (_RAISED.get(_library(kind), {}).get(kind.__name__) for kind in kinds)
    return next((each for each in found if each is not None), named.get("*"))


def _library(kind: type) -> str:
    """Return the name of the library that defines a class. DuckDB's classes are in `_duckdb`."""
    return kind.__module__.partition(".")[0].lstrip("_")


def is_frame(rows: Any) -> bool:
    """Whether rows are a columnar frame, such as a pandas, polars, DuckDB or pyarrow frame."""
    # A polars LazyFrame has only the last attribute. The error that refuses it names its class.
    found = ("__arrow_c_stream__", "__arrow_c_array__", "collect_schema")
    return any(hasattr(rows, name) for name in found)


def reader_of(rows: Any) -> pa.RecordBatchReader:
    """Convert rows to record batches. All readers of a file that is written from these batches get equal values.

    Frames of all libraries are converted to the same types. Texts, bytes and lists each have one type. Numbers are
    signed, codes become values, and times have microseconds.

    :param rows: dicts, whose missing keys are NULL, or a frame. A named pandas index becomes a column, and pandas NaN
        becomes NULL. A stream is read batch by batch.
    :raises NoTable: a value would change, or a reader does not support its type. The error may occur while the batches
        are read.
    """
    if not is_frame(rows):
        return in_one_form(exact_table(rows, notes=True).to_reader())
    # pandas itself would truncate 1.5 to 1 in an object column.
    if hasattr(rows, "reset_index"):
        table = _of_pandas(rows)
        _check_columns(len(rows), table.column_names)
        return in_one_form(table.to_reader())
    return in_one_form(rows if isinstance(rows, pa.RecordBatchReader) else _of_frame(rows))


def lacking(schema: pa.Schema) -> set[str]:
    """Return the columns that at least one row lacked when `reader_of` read the rows."""
    return {field.name for field in schema if _LACKING in (field.metadata or {})}


def dicts_of(rows: Any) -> Iterable[_Row]:
    """Return rows as dicts. The rows may be a frame."""
    if not is_frame(rows):
        return rows  # type: ignore[no-any-return]
    return (row for batch in reader_of(rows) for row in batch.to_pylist(maps_as_pydicts="strict"))


def reader_of_dicts(
    rows: Iterable[_Row], types: Mapping[str, pa.DataType | None] | None
) -> pa.RecordBatchReader:
    """Read dicts as record batches of a useful size.

    :param types: types of all columns. A column without a declared type gets the type that holds all its values. This
        type is determined after all rows have been read.
    :raises NoTable: see `exact_table`. The error may occur while the batches are read.
    """
    known = {name: kind for name, kind in (types or {}).items() if kind is not None}
    schema = pa.schema(known)
    if types is not None and len(known) == len(types):
        return pa.RecordBatchReader.from_batches(schema, _pages(iter(rows), schema))
    table = exact_table(rows, known)
    for name, kind in (types or {}).items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    return in_one_form(table.to_reader(AT_ONCE))


def _pages(rows: Iterator[_Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = 0
    while page := list(islice(rows, AT_ONCE)):
        if other := set().union(*page).difference(schema.names):
            raise NoTable(f"column {min(other)} is not one of {', '.join(schema.names)}")
        columns = [
            column_of(field.name, _column(page, field.name), field.type, first=first)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        first += len(page)


def _column(rows: Sequence[_Row], name: str) -> list[Any]:
    if set(map(type, rows)) <= {dict}:
        with suppress(KeyError):
            return list(map(itemgetter(name), rows))
    return [row.get(name) for row in rows]


def exact_table(
    rows: Iterable[_Row],
    types: Mapping[str, pa.DataType] | None = None,
    *,
    decimals: pa.DataType | None = None,
    named: Callable[[pa.DataType], str] = str,
    notes: bool = False,
) -> pa.Table:
    """Create an Arrow table from dicts. If a row lacks a key, its value is NULL.

    :param types: types of the known columns. Any other column gets the type that holds all its values.
    :param decimals: type of the other decimal columns, or None to infer it from the digits of the values.
    :param named: function that formats a type for messages.
    :param notes: whether to mark a column that at least one row lacks.
    :raises NoTable: a value does not have the type of its column.
    """
    given = list(rows)
    classes = set(map(type, given))
    if other := [each for each in classes if not issubclass(each, Mapping)]:
        row = next(row for row in given if type(row) in other)
        place = f"row {given.index(row)}"
        raise NoTable(f"{place} is {shown_value(row)}, not a dict", place=place)
    names = dict.fromkeys(chain.from_iterable(given))
    _check_names(names)
    _check_columns(len(given), names)
    known = types or {}
    columns = dict[str, Any]()
    for name in names:
        values = _column(given, name)
        kind = known.get(name)
        columns[name] = column_of(name, values, kind, decimals=decimals, named=named)
    made = pa.table(columns)
    if not notes or set(map(len, given)) == {len(names)}:
        return made
    missing = {name for name in names if any(name not in row for row in given)}
    noted = [
        field.with_metadata({_LACKING: b""}) if field.name in missing else field
        for field in made.schema
    ]
    return made.cast(pa.schema(noted))


def _check_columns(rows: int, names: Collection[str]) -> None:
    # Arrow does not count the rows of a table that has no columns.
    if rows and not names:
        raise NoTable(f"{rows} rows have no columns")


def shown_value(value: Any) -> str:
    """Format a value for a message, in one line of limited length."""
    of_arrow = type(value).__module__.startswith("pyarrow")
    text = str(value) if of_arrow else repr(value)
    text = text.replace("\n", " ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if there is no message."""
    return (str(error) or type(error).__name__).splitlines()[0]


# --- one column of Python values ----------------------------------------------------------------------------------


def column_of(
    name: str,
    values: Sequence[Any],
    kind: pa.DataType | None = None,
    *,
    decimals: pa.DataType | None = None,
    named: Callable[[pa.DataType], str] = str,
    first: int = 0,
) -> pa.Array:
    """Create a column from values, with the rules of `exact_table`.

    :param first: number of the first row.
    """
    try:
        return _made(values, kind, decimals)
    except _refusals() as error:
        last: Exception = error
    # The shortest prefix of the column that Arrow refuses ends with the row that causes the error.
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
        problem = f"is not a value of type {named(kind)}"
    elif str(above) == "null":
        problem = "has no type that a column can have"
    else:
        problem = f"does not have the type of the rows above, {named(above)}"
    place = f"row {first + row}: {name}"
    told = f"{place} = {shown_value(value)} {problem} ({first_line(last)})"
    raise NoTable(told, place=place)


def _refusals() -> tuple[type[Exception], ...]:
    return (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError, AttributeError)


def _made(
    values: Sequence[Any], kind: pa.DataType | None, decimals: pa.DataType | None
) -> pa.Array:
    types = pa.types
    classes = set(map(type, values)) - {type(None)}
    if kind is not None and types.is_floating(kind):
        return _floats(values, classes, kind)
    if Decimal in classes and int in classes:
        # Arrow chooses the precision only from the decimal values.
        values = [Decimal(value) if type(value) is int else value for value in values]
    made = pa.array(values, kind)
    if kind is None and types.is_floating(made.type):
        return _floats(values, classes, pa.float64())
    if kind is None and types.is_decimal(made.type) and decimals is not None:
        made = made.cast(decimals)
    if kind is None and types.is_timestamp(made.type) and made.type.unit != "us":
        made = made.cast(pa.timestamp("us", made.type.tz))
    if len(classes) == 1 and re.fullmatch(_EXACT.get(classes.pop(), ""), str(made.type)):
        return made
    # Arrow silently truncates 1.5 to 1, and a timestamp to a day.
    found = made.to_pylist(maps_as_pydicts="strict")
    if (types.is_nested(made.type) or found != values) and not all(
        map(is_same_value, found, values)
    ):
        raise ValueError("the value would change")
    return made


def _floats(values: Sequence[Any], classes: set[type], kind: pa.DataType) -> pa.Array:
    """Create a floating-point array from numbers only. Arrow would also parse texts, and convert True to 1."""
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
        raise ValueError("the value is too large")
    if int in classes and types.is_float32(kind):
        pairs = zip(values, made.to_pylist(), strict=True)
        if any(type(value) is int and value != found for value, found in pairs):
            raise ValueError("it has more digits than the type")
    return made


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "bool"


def is_same_value(made: Any, given: Any) -> bool:
    """Return whether a value in a column equals the original value."""
    if hasattr(given, "tolist"):
        given = given.tolist()  # this is a numpy value
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
        # In the hour that occurs twice, datetimes in time zones with daylight saving time are never
        # equal.
        if (made.tzinfo is None) != (given.tzinfo is None):
            return False
        return _moment(made) == _moment(given)
    # 1 equals True. In a list, Arrow converts True to 1.0.
    return bool(made == given) and _is_truth(made) == _is_truth(given)


def _moment(value: dt.datetime) -> dt.datetime:
    return value if value.tzinfo is None else value.astimezone(dt.timezone.utc)


# --- frames -------------------------------------------------------------------------------------------------------


def _of_pandas(frame: Any) -> pa.Table:
    try:
        frame = _with_index(frame)
    except ValueError as error:
        raise NoTable(first_line(error), place="a row") from None
    names = list(frame.columns)
    _check_names(names)
    columns = dict[str, Any]()
    for name in names:
        series = frame[name]
        try:
            if series.dtype == object:
                pairs = zip(series.tolist(), series.isna(), strict=True)
                values = [None if missing else value for value, missing in pairs]
                made = column_of(name, values)
            else:
                made = pa.array(series, from_pandas=True)
            columns[name] = _without_nan(made)
        except NoTable:
            raise
        except _refusals() as error:
            raise NoTable(f"column {name}: {first_line(error)}", place=f"column {name}") from None
    return pa.table(columns)


def _without_nan(column: Any) -> Any:
    """Replace NaN with NULL, also in lists and structs. In columns of pandas and Arrow, NULL and NaN differ."""
    floating = [values for values, _ in _leaves(column, None) if pa.types.is_floating(values.type)]
    if not any(pc.any(pc.is_nan(_single(values))).as_py() for values in floating):
        return column
    if pa.types.is_floating(column.type):
        column = _single(column)
        return pc.if_else(pc.is_nan(column), None, column)
    return pa.array(map(_nan_as_none, column.to_pylist()), column.type)


def _single(column: Any) -> Any:
    """Convert half-precision floats to a precision that Arrow can compute with."""
    return column.cast(pa.float32()) if pa.types.is_float16(column.type) else column


def _nan_as_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _nan_as_none(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_nan_as_none, value))
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_index(frame: Any) -> Any:
    """Convert a named index to columns. Drop an unnamed index."""
    unnamed = [level for level, name in enumerate(frame.index.names) if name is None]
    if len(unnamed) == frame.index.nlevels:
        return frame.reset_index(drop=True)
    if unnamed:
        frame = frame.reset_index(level=unnamed, drop=True)
    return frame.reset_index()


def _check_names(names: Collection[Any]) -> None:
    if other := [name for name in names if not isinstance(name, str)]:
        raise NoTable(f"the column name {other[0]!r} is not a text")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise NoTable(f"column {twice} occurs twice")


def _of_frame(frame: Any) -> pa.RecordBatchReader:
    if not hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "__arrow_c_array__"):
        name = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        raise NoTable(f"a {name} is lazy and has no rows yet", "Call .collect() first.")
    # Values of type Object are memory addresses of this process.
    types = getattr(frame, "schema", {}) if type(frame).__module__.startswith("polars.") else {}
    for name in [name for name, kind in types.items() if str(kind) == "Object"]:
        remedy = f"Cast it, such as .map_elements(str, return_dtype=polars.String) of {name}."
        raise NoTable(f"column {name} has the type Object of polars", remedy)
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(frame)
        return pa.table(frame).to_reader()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise NoTable(first_line(error), place="a row") from None


# --- one form -----------------------------------------------------------------------------------------------------
# Libraries use different Arrow types for the same values. For texts, polars has views and pandas
# has category codes. Files, digests and Spark use only one type for each kind of value.


_PLAIN: Mapping[str, str] = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
    "halffloat": "float",
    "string_view": "string",
    "large_string": "string",
    "binary_view": "binary",
    "large_binary": "binary",
    "date64[ms]": "date32[day]",
}
_GREATEST = 2**63 - 1
_MOST_DIGITS = 38


def in_one_form(given: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Convert record batches to the types that all readers support. Other types are refused.

    :raises NoTable: a type or a value is refused. The error may occur while the batches are read.
    """
    _check_names(given.schema.names)
    for field in given.schema:
        if problem := _unknown(field.type):
            raise NoTable(f"column {field.name} has the type {field.type}, {problem}")
    schema = pa.schema(map(_plain_field, given.schema))
    return pa.RecordBatchReader.from_batches(schema, _plain_batches(given, schema))


def readable(table: pa.Table) -> pa.Table:
    """Convert a table like `in_one_form`."""
    return in_one_form(table.to_reader()).read_all()


def _plain_batches(given: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = 0
    with NoTable.of_libraries():
        for batch in given:
            if batch.num_rows and not schema.names:
                raise NoTable(f"{batch.num_rows} rows have no columns")
            yield typed_batch(batch, schema, first)
            first += batch.num_rows


def _plain_field(field: pa.Field, unsigned: pa.DataType | None = None) -> pa.Field:
    kind = plain_type(field.type, unsigned)
    same = kind == field.type or pa.types.is_timestamp(kind)
    if same or _LACKING in (field.metadata or {}):
        return field.with_type(kind)
    # Drop the library's metadata, which still names the original type.
    return pa.field(field.name, kind, field.nullable)


def plain_type(kind: pa.DataType, unsigned: pa.DataType | None = None) -> pa.DataType:
    """Return the type that all readers use for the values of a type.

    :param unsigned: the type for unsigned 64-bit numbers, or None for a signed type.
    """
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type, unsigned)
    if types.is_uint64(kind) and unsigned is not None:
        return unsigned
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_decimal(kind):
        most = min(kind.precision, _MOST_DIGITS)
        return pa.decimal128(most, min(kind.scale, most))
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        fields = map(kind.field, range(kind.num_fields))
        return pa.struct([_plain_field(each, unsigned) for each in fields])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type, unsigned), plain_type(kind.item_type, unsigned))
    if types.is_nested(kind) and hasattr(kind, "value_field"):
        return pa.list_(_plain_field(kind.value_field, unsigned))
    known = _PLAIN.get(str(kind))
    return kind if known is None else pa.type_for_alias(known)


def typed_batch(batch: pa.RecordBatch, schema: pa.Schema, first: int = 0) -> pa.RecordBatch:
    """Convert a record batch to a schema's types. A missing column is NULL.

    :param first: number of the first row.
    :raises NoTable: a value does not fit its type.
    """
    known = set(batch.schema.names)
    columns = [
        _plain_column(field, batch.column(field.name), first)
        if field.name in known
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_column(field: pa.Field, column: pa.Array, first: int) -> pa.Array:
    name = field.name
    kind = column.type
    _check_values(name, column, first, unsigned="decimal128(20, 0)" in str(field.type))
    if kind == field.type:
        return column
    try:
        with suppress(pa.ArrowException):
            return _decoded(column).cast(field.type)
        # A slice shares the buffers of the whole column, whose other values may not fit.
        return _decoded(column.take(pa.array(range(len(column))))).cast(field.type)
    except pa.ArrowException as error:
        problem = f"column {name} has the type {kind}, which cannot become {field.type} ({first_line(error)})"
        raise NoTable(
            problem, f"Cast {name} to {field.type} in the task.", place=f"column {name}"
        ) from None


def _decoded(column: pa.Array) -> pa.Array:
    """Return the values of a column of codes or views. Arrow's cast cannot convert such a column."""
    types = pa.types
    kind = column.type
    if types.is_run_end_encoded(kind):
        return pc.run_end_decode(column)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
        ends = pc.cumulative_sum(lengths)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pa.ListArray.from_arrays(offsets, column.flatten(), mask=column.is_null())
    if not types.is_dictionary(kind):
        return column
    values = _decoded(column.dictionary)
    if str(values.type).endswith("_view"):
        values = values.cast(plain_type(values.type))
    return values.take(column.indices)


def _unknown(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_duration(kind) or types.is_interval(kind):
        return "which Spark reads as a number"
    if isinstance(kind, pa.BaseExtensionType):
        return "which Spark reads as bytes"
    if types.is_struct(kind) and not kind.num_fields:
        return "which no file can store"
    if types.is_dictionary(kind):
        return _unknown(kind.value_type)
    if not types.is_nested(kind):
        return ""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    if types.is_struct(kind) and len({each.name for each in fields}) < len(fields):
        return "which has two fields with one name"
    return next(filter(None, (_unknown(each.type) for each in fields)), "")


def _check_values(name: str, column: pa.Array, first: int, *, unsigned: bool) -> None:
    """Raise an error if Python or Spark cannot represent a value in a column, at any nesting depth.

    :param unsigned: whether readers accept all unsigned 64-bit numbers.
    """
    for values, rows in _leaves(column, None):
        if pa.types.is_decimal(values.type) or pa.types.is_time(values.type):
            try:
                values.validate(full=True)
            except pa.ArrowException as error:
                raise NoTable(
                    f"column {name}: {first_line(error)}", place=f"column {name}"
                ) from None
        shown, wrong, problem = _outside(values, unsigned=unsigned)
        at = pc.index(wrong, True).as_py()
        if at >= 0:
            row = first + (at if rows is None else rows[at].as_py())
            place = f"row {row}: {name}"
            raise NoTable(f"{place} = {shown_value(shown[at])} {problem}", place=place)
    if "map<" in str(column.type):
        for row, value in enumerate(column, first):
            try:
                value.as_py(maps_as_pydicts="strict")
            except KeyError:
                place = f"row {row}: {name}"
                told = f"{place} = {shown_value(value)} is a map with a duplicate key"
                raise NoTable(told, place=place) from None


def _leaves(column: pa.Array, rows: pa.Array | None) -> Iterator[tuple[pa.Array, pa.Array | None]]:
    """Yield the values inside the lists, structs and maps of a column.

    :param rows: row number of each value, or None if each value is its own row. The row numbers are yielded in the same
        form.
    """
    types = pa.types
    column = _decoded(column)
    kind = column.type
    if types.is_nested(kind) and column.null_count:
        # A NULL list may still contain values.
        valid = pc.indices_nonzero(column.is_valid())
        column = column.take(valid)
        rows = valid if rows is None else rows.take(valid)
    if types.is_struct(kind):
        for child in column.flatten():
            yield from _leaves(child, rows)
    elif types.is_map(kind):
        for child in (column.keys, column.items):
            yield from _leaves(pa.ListArray.from_arrays(column.offsets, child), rows)
    elif types.is_fixed_size_list(kind):
        yield from _leaves(column.cast(pa.list_(kind.value_type)), rows)
    elif types.is_list(kind) or types.is_large_list(kind):
        of_list = pc.list_parent_indices(column)
        yield from _leaves(column.flatten(), of_list if rows is None else rows.take(of_list))
    else:
        yield column, rows


def _outside(values: pa.Array, *, unsigned: bool) -> tuple[pa.Array, pa.Array, str]:
    """Return the values for the error message, a mask that marks the wrong values, and the reason."""
    types = pa.types
    kind = values.type
    if types.is_uint64(kind) and not unsigned:
        beyond = pc.greater(values, pa.scalar(_GREATEST, kind))
        return (
            values,
            beyond,
            f"is greater than {_GREATEST}, the greatest whole number in Spark",
        )
    if types.is_decimal(kind) and kind.precision > _MOST_DIGITS:
        beyond = Decimal(10) ** (_MOST_DIGITS - kind.scale)
        wrong = pc.greater_equal(pc.abs(values), pa.scalar(beyond, pa.decimal256(76, kind.scale)))
        return (
            values,
            wrong,
            f"has more digits than {plain_type(kind)}, the largest decimal type in Spark",
        )
    if not (types.is_timestamp(kind) or types.is_date(kind) or types.is_time64(kind)):
        return values, pa.array([], pa.bool_()), ""
    count = values.cast(pa.int32() if types.is_date32(kind) else pa.int64())
    unit = {"date32[day]": "days", "date64[ms]": "ms"}.get(str(kind)) or kind.unit
    if unit == "ns":  # 64-bit nanoseconds end in the year 2262
        cut = pc.not_equal(pc.multiply(pc.divide(count, 1000), 1000), count)
        return values, cut, "has nanoseconds, which would be cut"
    a_day = 1 if unit == "days" else _DAY * _A_SECOND[unit]
    early = pc.less(count, _EARLIEST * a_day)
    beyond = pc.greater_equal(count, _BEYOND * a_day)
    return count, pc.or_(early, beyond), f"{unit} since 1970 is not in the years 1 to 9999"
