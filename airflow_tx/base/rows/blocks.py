"""Read blocks of a file or of messages as record batches.

Arrow is fast. The Python reader is slow, uses `ColumnType`, and defines the correct result. Arrow accepts some texts
that the Python reader refuses, so the bytes and column values from Arrow are checked. The Python reader reads the texts
of a column that fails the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows.types import (
    ArrayType,
    BooleanType,
    ColumnType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    arrow_types_of,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
else:
    np = LazyModule("numpy")
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


class NotProven(Exception):
    """Signals that the Python reader must read a value, since Arrow may read it differently.

    The message gives the reason.
    """


# --- columns of texts ---------------------------------------------------------------------------------------------


# The day 0001-01-01 in days since 1970. Arrow has a year 0, but Python does not.
_FIRST_DAY = -719_162
_FIRST_MOMENT = -62_135_596_800_000_000
_LAST_MOMENT = 253_402_300_799_999_999
# Maximum number of bytes of a decimal number for which Arrow does not overflow silently.
_LONGEST_NUMBER = 37
# Arrow also accepts 0 and 1 as booleans.
_SHORTEST_TRUTH = len("true")
_OF_HOURS = len("2013-01-31 10")
_IN_UTC = len("2013-01-31T10:00:00Z")
_CLOCK = r"[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
_WITHOUT_ZONE = rf"^\d{{4}}-\d{{2}}-\d{{2}}(?:{_CLOCK})?$"
_WITH_ZONE = rf"^\d{{4}}-\d{{2}}-\d{{2}}{_CLOCK}(?:Z|[+-]\d{{2}}:\d{{2}})$"
_WIDEST_ZONE = "+18:00"


def typed_column(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    """Convert a column of texts to its type.

    :param to: the Arrow type of `kind`.
    :raises ValueError: a text is not a value of the type. The message gives the reason.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), to)
    if texts.type == to and not isinstance(kind, StringType):
        return texts  # these are whole numbers, which Arrow has already converted
    try:
        return _PROOFS[type(kind)](texts, kind, to)
    except (NotProven, pa.ArrowException):
        return _by_the_rule(texts, kind, to)


def _by_the_rule(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    """Read each distinct text once with the Python reader, and reuse the result for equal texts."""
    coded = texts.dictionary_encode()
    values = [kind.of_text(text) for text in coded.dictionary.to_pylist()]
    return pa.array(values, to).take(coded.indices)


def _whole(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    if _has(texts, "xX"):
        raise NotProven("hexadecimal digits")
    return texts.cast(to)


def _broken(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    made = texts.cast(to)
    if not pc.all(pc.is_finite(made)).as_py():
        raise NotProven("a number that is not finite")
    return made


def _decimal(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    if pc.max(pc.binary_length(texts)).as_py() > _LONGEST_NUMBER:
        raise NotProven("a number of too many characters")
    if _has(texts, "eE"):
        raise NotProven("an exponent")
    return texts.cast(to)


def _truth(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    if pc.min(pc.binary_length(texts)).as_py() < _SHORTEST_TRUTH:
        raise NotProven("a boolean shorter than 'true'")
    return texts.cast(to)


def _day(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    made = texts.cast(to)
    if pc.min(made.cast(pa.int32())).as_py() < _FIRST_DAY:
        raise NotProven("a year before 1")
    return made


def _text(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    assert isinstance(kind, StringType)
    longest = None if kind.longest is None else pc.max(pc.utf8_length(texts)).as_py()
    if longest is not None and longest > kind.longest:
        raise NotProven("a text longer than its type")
    return texts


def _moment(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    assert isinstance(kind, TimestampType)
    has_zone = _has_zone(texts.drop_null(), zoned=kind.zoned)
    made = texts.cast(pa.timestamp("us", "UTC" if has_zone else None))
    count = made.cast(pa.int64())
    first, last = pc.min_max(count).values()
    if first.as_py() < _FIRST_MOMENT or last.as_py() > _LAST_MOMENT:
        raise NotProven("a year before 1 or after 9999")
    return made if made.type == to else count.cast(to)


def _has_zone(texts: pa.Array, *, zoned: bool) -> bool:
    """Return whether the times have a time zone.

    Raise NotProven if only some do, or if Arrow may read a different time.
    """
    sizes = pc.binary_length(texts)
    shortest, longest = (each.as_py() for each in pc.min_max(sizes).values())
    if shortest == longest == _IN_UTC and zoned and _are_in_utc(texts):
        return True
    if zoned and (longest >= _IN_UTC or _has(texts, "Z+")):
        return _all_have_zone(texts)
    if pc.any(pc.or_(pc.equal(sizes, _OF_HOURS), pc.equal(sizes, _IN_UTC))).as_py():
        raise NotProven("a time without minutes, or with a zone")
    return False


def _are_in_utc(texts: pa.Array) -> bool:
    """Return whether all times have 20 characters in the form 2013-01-31T10:00:00Z."""
    found = _bytes_of(texts).reshape(-1, _IN_UTC)
    return all(
        bool((found[:, at] == ord(sign)).all()) for at, sign in ((13, ":"), (16, ":"), (19, "Z"))
    )


def _all_have_zone(texts: pa.Array) -> bool:
    if not pc.all(pc.match_substring_regex(texts, _WITH_ZONE)).as_py():
        if pc.all(pc.match_substring_regex(texts, _WITHOUT_ZONE)).as_py():
            return False
        raise NotProven("some times have a zone and some have none")
    zones = pc.utf8_slice_codeunits(texts, -len(_WIDEST_ZONE))
    signed = pc.match_substring_regex(zones, "^[+-]")
    wide = pc.greater(pc.utf8_slice_codeunits(zones, 1), _WIDEST_ZONE[1:])
    if pc.any(pc.and_(signed, wide)).as_py():
        raise NotProven("a zone of more than 18 hours")
    return True


_Proof = Callable[["pa.Array", ColumnType, "pa.DataType"], "pa.Array"]
_PROOFS: Mapping[type[ColumnType], _Proof] = {
    IntegerType: _whole,
    FloatType: _broken,
    DecimalType: _decimal,
    BooleanType: _truth,
    DateType: _day,
    TimestampType: _moment,
    StringType: _text,
}
"""The conversions of text columns, by type. A column must have at least one value. A conversion raises NotProven if
Arrow may accept texts that the type refuses.
"""


def _bytes_of(texts: pa.Array) -> Any:
    """Return the bytes of all texts in a column, without separators."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if data is None or not data.size:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _has(texts: pa.Array, letters: str) -> bool:
    found = _bytes_of(texts)
    return any(bool((found == ord(letter)).any()) for letter in letters)


# --- json ---------------------------------------------------------------------------------------------------------
# The Python reader uses `parsed_object` with exact numbers, and `ColumnType.of_json`. Arrow accepts
# more texts: several objects in a line, an object in several lines, invalid UTF-8, ``NaN``, and
# numbers out of range. The bytes of a block are therefore checked first, and then the values of
# each column.


_LARGEST = 2**30
"""Maximum number of bytes that Arrow reads in one call."""
_BEFORE = r"[:\[,][ \t]*"
_NO_NUMBER = rf"{_BEFORE}-?(?:NaN|Inf)"
_MINUS_ZERO = rf"{_BEFORE}-0[ \t,\]}}]"
_EXPONENT = rf'{_BEFORE}-?[0-9.]+[eE]|"[+-]?[0-9.]+[eE][0-9+-]+"|\\u00(?:2[bBdDeE]|3[0-9]|[46]5)'
"""A number with an exponent, in a text or not, or an escaped character that may be part of a number."""
# Python does not parse integers of more than 4,300 digits.
_MOST_DIGITS = 1000
# Maximum number of opening brackets in a line. Python reads about 1,000 nested brackets, and Arrow
# crashes at 50,000.
_MOST_BRACKETS = 500
_FIRST_LINES = 16
_MOST_LINES = 2048
# A piece may have this number of keys more than the previous piece, and a quarter of the keys.
_NEW_KEYS = 128


class _OtherKeys(Exception):
    """Signals that an object has a key that was not requested."""


def objects_batch(block: bytes, columns: Mapping[str, ColumnType]) -> pa.RecordBatch:
    """Read lines that are empty or contain one JSON object.

    :param block: complete lines. The last line may lack its line end.
    :raises NotProven: the Python reader may read the lines differently, or refuse one.
    """
    asked = pa.schema([(name, _asked(kind)) for name, kind in columns.items()])
    block = _checked(block)
    first, last = _lines(block)
    if not len(first):
        return pa.RecordBatch.from_pylist([], schema=pa.schema(arrow_types_of(columns)))
    if any("DECIMAL(" in kind.ddl for kind in columns.values()) and _matches(block, _EXPONENT):
        raise NotProven("an exponent")
    try:
        return _typed(_read(block, len(first), asked, others="error"), columns, block)
    except _OtherKeys:
        _check_others(block, first, last)
        tables = _beside_others(block, first, last, asked)
        found = [_typed(table, columns, block) for table in tables]
        return pa.Table.from_batches(found).combine_chunks().to_batches()[0]


def _asked(kind: ColumnType) -> pa.DataType:
    """Return the type with which Arrow's reader must read a column."""
    if isinstance(kind, MapType):
        raise NotProven("a map")
    if isinstance(kind, ArrayType):
        return pa.list_(_asked(kind.element))
    if isinstance(kind, StructType):
        return pa.struct([(name, _asked(each)) for name, each in kind.fields])
    if isinstance(kind, (DateType, TimestampType)):
        return pa.string()
    if isinstance(kind, DecimalType):
        # The reader pads decimals with zeros, but does not check whether the digits fit.
        return pa.decimal256(kind.precision, kind.scale)
    return kind.arrow_type()


# --- json: bytes -------------------------------------------------------------------------------------------------


def _checked(block: bytes) -> bytes:
    """Return the block with one-character line ends."""
    if len(block) > _LARGEST:
        raise NotProven("a line longer than the limit")
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
            raise NotProven("bytes that are not UTF-8") from None
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
        if b"\r" in block:
            raise NotProven("a line end other than LF or CRLF")
    return block


def _lines(block: bytes) -> tuple[Any, Any]:
    """Check that each non-empty line starts and ends with a brace.

    Inside an object, no line ends between a closing and an opening brace. If there are as many objects as lines, each
    line has exactly one object.
    """
    raw = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(raw == ord("\n"))
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(raw))
    first = np.concatenate(([0], ends[:-1] + 1))
    is_full = first < ends
    first = first[is_full]
    last = ends[is_full] - 1
    if not ((raw[first] == ord("{")).all() and (raw[last] == ord("}")).all()):
        raise NotProven("a line that does not begin and end with a brace")
    return first, last


def _check_others(block: bytes, first: Any, last: Any) -> None:
    """Raise NotProven if Arrow may misread the value of a key that was not requested."""
    longest = (last - first).max()
    if _matches(block, _NO_NUMBER):
        raise NotProven("a number that is not finite")
    if longest > _MOST_DIGITS and _matches(block, f"[0-9]{{{_MOST_DIGITS}}}"):
        raise NotProven("a number of too many digits")
    if longest > _MOST_BRACKETS:
        raw = np.frombuffer(block, np.uint8)
        opens = (raw == ord("{")) | (raw == ord("["))
        if np.add.reduceat(opens, first, dtype=np.int64).max() > _MOST_BRACKETS:
            raise NotProven("many brackets")


def _matches(block: bytes, pattern: str) -> bool:
    return bool(pc.match_substring_regex(pa.array([block], pa.large_binary()), pattern)[0].as_py())


# --- json: values ------------------------------------------------------------------------------------------------


def _read(block: bytes, lines: int, asked: pa.Schema, *, others: str) -> pa.Table:
    """Read lines of JSON objects with Arrow.

    :param others: Arrow's setting for keys that were not requested. If Arrow ignores such keys, it does not find
        duplicates.
    """
    from pyarrow import json

    try:
        table = json.read_json(
            pa.BufferReader(block),
            json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            json.ParseOptions(explicit_schema=asked, unexpected_field_behavior=others),
        )
    except pa.ArrowException as error:
        if "unexpected field" in str(error):
            raise _OtherKeys from None
        raise NotProven(str(error)) from None
    if table.num_rows != lines:
        raise NotProven("the number of objects differs from the number of lines")
    return table


def _beside_others(block: bytes, first: Any, last: Any, asked: pa.Schema) -> Iterator[pa.Table]:
    """Read objects with unrequested keys piece by piece, since Arrow reserves space for each key on each line."""
    at = known = 0
    lines = _FIRST_LINES
    while at < len(first):
        ends = last[at : at + lines]
        table = _read(block[first[at] : ends[-1] + 1], len(ends), asked, others="infer")
        keys = _keys(pa.struct(list(table.schema)))
        if at and 4 * (keys - known) > known + _NEW_KEYS:
            raise NotProven("too many new keys in later lines")
        yield table
        known = keys
        at += len(ends)
        lines = min(2 * lines, _MOST_LINES)


def _keys(kind: pa.DataType) -> int:
    """Count the keys of a type, including keys of nested types."""
    return sum(1 + _keys(kind.field(at).type) for at in range(kind.num_fields))


def _typed(table: pa.Table, columns: Mapping[str, ColumnType], block: bytes) -> pa.RecordBatch:
    types = arrow_types_of(columns)
    try:
        values = [
            _proven(table.column(name).combine_chunks(), kind, types[name], block)
            for name, kind in columns.items()
        ]
    except (ValueError, pa.ArrowException) as error:
        raise NotProven(str(error)) from None
    return pa.RecordBatch.from_arrays(values, schema=pa.schema(types))


def _proven(found: pa.Array, kind: ColumnType, to: pa.DataType, block: bytes) -> pa.Array:
    """Convert a value from Arrow's reader to the type of its column.

    Raise ValueError or ArrowException if the type has no such value.
    """
    if isinstance(kind, ArrayType):
        values = _proven(found.values, kind.element, to.value_type, block)
        return pa.ListArray.from_arrays(found.offsets, values, to, mask=found.is_null())
    if isinstance(kind, StructType):
        fields = list(to)
        values = [
            _proven(found.field(name), each, field.type, block)
            for (name, each), field in zip(kind.fields, fields, strict=True)
        ]
        return pa.StructArray.from_arrays(values, fields=fields, mask=found.is_null())
    if isinstance(kind, FloatType):
        return _number(found, block)
    if isinstance(kind, DecimalType):
        return found.cast(to)
    if isinstance(kind, (DateType, TimestampType)):
        return typed_column(found, kind, to)
    if isinstance(kind, StringType) and kind.longest is not None:
        return typed_column(found, kind, to)
    return found


def _number(found: pa.Array, block: bytes) -> pa.Array:
    if not pc.all(pc.is_finite(found), min_count=0).as_py():
        raise NotProven("a number that is not finite")
    bits = found.type.bit_width
    has_minus_zero = pc.any(pc.equal(found.view(f"int{bits}"), -(2 ** (bits - 1)))).as_py()
    # The Python reader reads the whole number -0 as 0.0.
    if has_minus_zero and _matches(block, _MINUS_ZERO):
        raise NotProven("a whole number that is -0")
    return found
