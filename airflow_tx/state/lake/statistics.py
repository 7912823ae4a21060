"""Delta's statistics of a file, from its Parquet footer. Pure.

Readers skip files by them, so a bound that is too narrow loses rows without a word. Where a bound is not certain, there
is none. Doubles have none because of NaN, and decimals because some readers parse them as doubles.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

from airflow_tx.state.appended import TXID

INDEXED = 32
"""Columns that have statistics: as many as with Delta's own writers."""
TEXT = 32
"""Characters of a text that are kept."""
_WHOLE = ("byte", "short", "integer", "long")
_EPOCH = date(1970, 1, 1)
_MILLIS = 1000
_MICROS = "timeUnit=microseconds"
_SURROGATES = range(0xD800, 0xE000)

Bounds = tuple[Any, Any]


def statistics(metadata: Any, fields: Sequence[Mapping[str, Any]]) -> str:
    """Make the statistics of a file.

    :param metadata: pyarrow's of its footer.
    :param fields: Spark's fields of the columns in the file.
    """
    # A dot in a name reads like the path of a nested field.
    plain = [each for each in fields if isinstance(each["type"], str) and "." not in each["name"]]
    kinds = {each["name"]: each["type"] for each in plain}
    chosen = [*list(kinds)[:INDEXED], *([TXID] if TXID in kinds else [])]
    found: dict[str, Any] = {
        "numRecords": metadata.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    for number in range(len(metadata.schema)):
        name = metadata.schema.column(number).path
        if name in chosen:
            chunks = [
                metadata.row_group(group).column(number).statistics
                for group in range(metadata.num_row_groups)
            ]
            _add(found, name, bounds_of(kinds[name], metadata.schema.column(number)), chunks)
    return json.dumps(found)


def _add(
    found: dict[str, Any], name: str, bounds: Callable[[Any, Any], Bounds] | None, chunks: list[Any]
) -> None:
    if not all(each is not None and each.has_null_count for each in chunks):
        return
    found["nullCount"][name] = sum(each.null_count for each in chunks)
    # A row group of nulls has no bounds.
    valued = [each for each in chunks if each.num_values]
    if bounds is None or not valued or not all(each.has_min_max for each in valued):
        return
    least = min(each.min_raw for each in valued)
    most = max(each.max_raw for each in valued)
    low, high = bounds(least, most)
    if low is not None:
        found["minValues"][name] = low
    if high is not None:
        found["maxValues"][name] = high


def bounds_of(kind: str, column: Any) -> Callable[[Any, Any], Bounds] | None:
    """Choose how the bounds of a column are written; None: it has none."""
    if kind in _WHOLE:
        return whole_bounds
    if kind == "date":
        return date_bounds
    if kind == "string":
        return text_bounds
    # INT96 has no order, and another unit is not what a Delta table has.
    if kind.startswith("timestamp") and _MICROS in str(column.logical_type):
        return utc_bounds if kind == "timestamp" else local_bounds
    return None


def whole_bounds(least: int, most: int) -> Bounds:
    """Give whole numbers unchanged."""
    return least, most


def date_bounds(least: int, most: int) -> Bounds:
    """Write days since 1970 as dates; one that Python does not have is no bound."""
    return _day(least), _day(most)


def _day(days: int) -> str | None:
    try:
        return (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def utc_bounds(least: int, most: int) -> Bounds:
    """Write microseconds since 1970 in milliseconds, the bounds rounded outwards."""
    return _millis(least // _MILLIS, "Z"), _millis(-(-most // _MILLIS), "Z")


def local_bounds(least: int, most: int) -> Bounds:
    """Write local timestamps as `utc_bounds` does."""
    return _millis(least // _MILLIS, ""), _millis(-(-most // _MILLIS), "")


def _millis(millis: int, zone: str) -> str | None:
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=millis)
    except OverflowError:
        return None
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"


def text_bounds(least: bytes | str, most: bytes | str) -> Bounds:
    """Cut long texts, the upper bound upwards."""
    try:
        low = least.decode() if isinstance(least, bytes) else least
        high = most.decode() if isinstance(most, bytes) else most
    except UnicodeDecodeError:
        return None, None
    return low[:TEXT], high if len(high) <= TEXT else _next(high[:TEXT])


def _next(text: str) -> str | None:
    """Find a text that is greater than each text that begins with this one."""
    for end in range(len(text), 0, -1):
        point = ord(text[end - 1]) + 1
        point = _SURROGATES.stop if point in _SURROGATES else point
        if point <= sys.maxunicode:
            return text[: end - 1] + chr(point)
    return None
