"""Blocks of a file or of messages as record batches: Arrow reads them, and what is not proven goes to the rule.

The rule is `ColumnType`. Arrow takes some texts that the rule refuses. So each column that Arrow has made is checked as
a whole, by its bytes and its values. The texts of a column that this does not prove are given to the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timezone
from typing import TYPE_CHECKING, Any

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows.types import (
    BooleanType,
    ColumnType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    StringType,
    TimestampType,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
else:
    np = LazyModule("numpy")
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


BLOCK = 8 * 1024 * 1024
"""Bytes of a file that are read at once."""


class NotProven(Exception):
    """Something that Arrow may read otherwise than the rule, which has to read it then; the cause, in few words."""


# --- columns of texts ---------------------------------------------------------------------------------------------


_FIRST_DAY = -719_162
"""0001-01-01 in days since 1970. Arrow has a year 0, and Python has not."""
_FIRST_MOMENT = -62_135_596_800_000_000
_LAST_MOMENT = 253_402_300_799_999_999
_LONGEST_NUMBER = 37
"""Bytes of a number with decimals up to which Arrow does not overflow in silence."""
_SHORTEST_TRUTH = len("true")
"""Arrow takes 0 and 1 for truths as well."""
_OF_HOURS = len("2013-01-31 10")
_IN_UTC = len("2013-01-31T10:00:00Z")
_CLOCK = r"[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
_WITHOUT_ZONE = rf"^\d{{4}}-\d{{2}}-\d{{2}}(?:{_CLOCK})?$"
_WITH_ZONE = rf"^\d{{4}}-\d{{2}}-\d{{2}}{_CLOCK}(?:Z|[+-]\d{{2}}:\d{{2}})$"
_WIDEST_ZONE = "+18:00"


def typed_column(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    """Give a column of texts its type.

    :param to: the type of Arrow that `kind` has.
    :raises ValueError: a text is no value of the type; why, in words.
    """
    if not isinstance(kind, StringType) and texts.null_count == len(texts):
        return pa.nulls(len(texts), to)
    try:
        return _PROOFS[type(kind)](texts, kind, to)
    except (NotProven, pa.ArrowException):
        return _by_the_rule(texts, kind, to)


def _by_the_rule(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    """Let the rule read each distinct text once."""
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
        raise NotProven("a long number")
    if _has(texts, "eE"):
        raise NotProven("an exponent")
    return texts.cast(to)


def _truth(texts: pa.Array, kind: ColumnType, to: pa.DataType) -> pa.Array:
    if pc.min(pc.binary_length(texts)).as_py() < _SHORTEST_TRUTH:
        raise NotProven("a short truth")
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
        raise NotProven("a long text")
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
    """Ask whether all of some times have a zone, or none has; NotProven: Arrow may take another time."""
    sizes = pc.binary_length(texts)
    shortest, longest = (each.as_py() for each in pc.min_max(sizes).values())
    if shortest == longest == _IN_UTC and zoned and _are_in_utc(texts):
        return True
    if zoned and (longest >= _IN_UTC or _has(texts, "Z+")):
        return _all_have_zone(texts)
    if pc.any(pc.or_(pc.equal(sizes, _OF_HOURS), pc.equal(sizes, _IN_UTC))).as_py():
        raise NotProven("a time of hours, or with a zone")
    return False


def _are_in_utc(texts: pa.Array) -> bool:
    """Ask whether times, of 20 characters each, all look like 2013-01-31T10:00:00Z."""
    found = _bytes_of(texts).reshape(-1, _IN_UTC)
    return all(
        bool((found[:, at] == ord(sign)).all()) for at, sign in ((13, ":"), (16, ":"), (19, "Z"))
    )


def _all_have_zone(texts: pa.Array) -> bool:
    if not pc.all(pc.match_substring_regex(texts, _WITH_ZONE)).as_py():
        if pc.all(pc.match_substring_regex(texts, _WITHOUT_ZONE)).as_py():
            return False
        raise NotProven("times with a zone and without")
    zones = pc.utf8_slice_codeunits(texts, -len(_WIDEST_ZONE))
    signed = pc.match_substring_regex(zones, "^[+-]")
    wide = pc.greater(pc.utf8_slice_codeunits(zones, 1), _WIDEST_ZONE[1:])
    if pc.any(pc.and_(signed, wide)).as_py():
        raise NotProven("a wide zone")
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
"""What makes a column of texts, of which one is not NULL; NotProven: Arrow may take texts that the type refuses."""


def _bytes_of(texts: pa.Array) -> Any:
    """Give the bytes of a column of texts, one text behind the other."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if data is None or not data.size:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _has(texts: pa.Array, letters: str) -> bool:
    found = _bytes_of(texts)
    return any(bool((found == ord(letter)).any()) for letter in letters)


# --- rows ---------------------------------------------------------------------------------------------------------


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Give the rows of a record batch as dicts, with the values that `ColumnType` has; moments are in UTC."""
    names = batch.schema.names
    return (
        dict(zip(names, values, strict=True))
        for values in zip(*map(_values, batch.columns), strict=True)
    )


def _values(column: pa.Array) -> list[Any]:
    types = pa.types
    kind = column.type
    if types.is_nested(kind) or types.is_null(kind):
        found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
        return found
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return _numbers(column)
    # Texts, times and decimals come again and again, and making one costs more than finding one.
    coded = column.dictionary_encode()
    known = coded.dictionary
    if types.is_timestamp(kind) and kind.tz is not None:
        naive = known.cast(pa.timestamp("us")).to_pylist()
        values = [each.replace(tzinfo=timezone.utc) for each in naive]
    else:
        values = known.to_pylist()
    values.append(None)
    codes = coded.indices.fill_null(len(values) - 1) if column.null_count else coded.indices
    return list(map(values.__getitem__, codes.to_numpy().tolist()))


def _numbers(column: pa.Array) -> list[Any]:
    if not column.null_count:
        plain: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return plain
    values = _numbers(column.fill_null(pa.scalar(0).cast(column.type)))
    for at in pc.indices_nonzero(column.is_null()).to_pylist():
        values[at] = None
    return values
