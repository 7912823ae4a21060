"""The columns of files: a source declares them in Spark's DDL, or they are found in the first csv files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from airflow_tx.sources.files.csv_format import CsvFormat
from airflow_tx.sources.files.storage import FilePath

TYPED_ROWS = 100_000
"""Bytes of the first batch that are read to find the types of its columns: all, unless `begin` would take long."""


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "integer", "bigint", "long", "short", "byte"), int
    ),
    **dict.fromkeys(("float", "real", "double"), float),
    **dict.fromkeys(("string", "varchar", "char"), str),
    **dict.fromkeys(("decimal", "numeric", "dec"), Decimal),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), datetime.fromisoformat),
    "boolean": _boolean,
    "date": date.fromisoformat,
}


class Misfit(ValueError):
    """A file that has other columns than its schema, or a value that is not of its column's type.

    :ivar column: the column of the value; None: the columns are others.
    """

    def __init__(self, problem: str, column: str | None = None) -> None:
        super().__init__(problem)
        self.column = column


def declared_types(schema: str) -> dict[str, str]:
    """Read columns and their types of Spark's DDL, such as ``day INT, carrier STRING``, of simple types."""
    columns = {}
    for column in re.split(r",(?![^(<]*[)>])", schema):
        match = re.match(r"\s*(?:`([^`]+)`|(\w+))\s*:?\s+?(\w+)", column)
        kind = match[3].upper() if match else ""
        if match is None or kind.lower() not in _TYPES:
            raise ValueError(
                f"column {column.strip()!r} of the schema has no type that rows without Spark can have"
            )
        columns[match[1] or match[2]] = kind
    return columns


def parse_schema(schema: str) -> dict[str, Callable[[str], Any]]:
    """Read columns and their conversions of Spark's DDL, of simple types."""
    return {name: _TYPES[kind.lower()] for name, kind in declared_types(schema).items()}


def with_text(schema: str, column: str) -> str:
    """Return the schema in which a column is a text, which any value is."""
    return _ddl({**declared_types(schema), column: "STRING"})


def check_header(path: FilePath, options: Mapping[str, Any], schema: str) -> None:
    """Check that a csv file has the columns of a schema.

    :raises Misfit: it has others. A file without a line has none.
    """
    written = CsvFormat.of(options)
    with written.open(path) as reader:
        names: list[str] = next(reader, [])
    expected = list(declared_types(schema))
    if names and written.header:
        check_names(names, expected)
    elif names and len(names) != len(expected):
        raise Misfit(f"the first line has {len(names)} fields, and the schema {len(expected)}")


def check_names(names: Sequence[str], expected: Sequence[str]) -> None:
    """Compare the header of a csv file with the columns of its schema.

    :raises Misfit: they are not the same, in the same order.
    """
    if list(names) == list(expected):
        return
    number = next(
        (n for n, pair in enumerate(zip(names, expected, strict=False)) if pair[0] != pair[1]), None
    )
    if number is not None:
        first = f"column {number + 1} is {names[number]!r} instead of {expected[number]!r}"
    elif len(names) > len(expected):
        first = f"column {names[len(expected)]!r} is new"
    else:
        first = f"column {expected[len(names)]!r} is missing"
    raise Misfit(
        f"header {','.join(names)} does not match the schema, {','.join(expected)}: {first}"
    )


# --- as they are found --------------------------------------------------------------------------------------------
# The rules of Spark's own inference, except for BIGINT and TIMESTAMP_NTZ: a later file may have larger numbers, and a
# time without a zone is the same in every session. A value that some process would not accept is a text.

_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_PATTERNS = {
    "BIGINT": re.compile(r"[+-]?\d{1,18}"),
    "DOUBLE": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN"),
    "DATE": re.compile(_DATE),
    "TIMESTAMP_NTZ": re.compile(
        _DATE + r"([ T]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{3}(\d{3})?)?)?"
    ),
    "BOOLEAN": re.compile(r"true|false", re.IGNORECASE),
}
_WIDER = {("BIGINT", "DOUBLE"): "DOUBLE", ("DATE", "TIMESTAMP_NTZ"): "TIMESTAMP_NTZ"}


def find_schema(paths: Iterable[FilePath], options: Mapping[str, Any]) -> str | None:
    """Find the schema of csv files: the names of their header; texts, or, with `inferSchema`, the types of the values.

    :return: Spark DDL; None if only Spark can find it, or no file has a line.
    :raises ValueError: one is no csv file.
    """
    try:
        written = CsvFormat.of(options)
    except ValueError:
        return None
    names: list[str] = []
    kinds: list[str | None] = []
    left = TYPED_ROWS
    for path in paths:
        with written.open(path) as reader:
            first: list[str] = next(reader, [])
            if first and not names:
                names = first if written.header else [f"_c{number}" for number in range(len(first))]
                kinds = [None] * len(names)
            if names and not written.typed:
                break
            for row in islice(reader if written.header else chain([first], reader), left):
                left -= 1
                for number, text in enumerate(row[: len(kinds)]):
                    if text and text != written.null:
                        kinds[number] = _widened(kinds[number], text)
    if not names or not _are_plain(names):
        return None
    return _ddl({name: kind or "STRING" for name, kind in zip(names, kinds, strict=True)})


def _widened(kind: str | None, text: str) -> str:
    """Return the type that a value of this text has, too."""
    if kind == "STRING" or (kind and _PATTERNS[kind].fullmatch(text)):
        return kind
    own = next((each for each, pattern in _PATTERNS.items() if pattern.fullmatch(text)), "STRING")
    return own if kind is None else _WIDER.get((kind, own), "STRING")


def _are_plain(names: Sequence[str]) -> bool:
    """Ask whether Spark calls columns by these very names."""
    spelled = all(
        re.fullmatch(r"[^`,()<>\ufeff]*[^`,()<>\ufeff\s][^`,()<>\ufeff]*", name) for name in names
    )
    return spelled and len({name.lower() for name in names}) == len(names)


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
