"""The columns of files: a source declares them in Spark's DDL, or they are found in the first csv files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from airflow_tx.rows.types import columns_of, ddl_of
from airflow_tx.sources.api import pack, unpack
from airflow_tx.sources.files.csv_format import CsvFormat
from airflow_tx.sources.files.storage import FilePath

TYPED_ROWS = 100_000
"""Bytes of the first batch that are read to find the types of its columns: all, unless `begin` would take long."""

LONGEST_SHOWN = 1_000
"""Characters of a header or a schema that an error shows."""


LONG = 10_000
"""Characters above which the ledger keeps a schema packed: metadata and position of each batch hold it."""
_PACKED = "zlib:"


class Misfit(ValueError):
    """A file that has other columns than its schema, or a value that is not of its column's type.

    :ivar column: the column of the value; None: the columns are others.
    """

    def __init__(self, problem: str, column: str | None = None) -> None:
        super().__init__(problem)
        self.column = column


def packed(schema: str) -> str:
    """Return the form in which the ledger keeps a schema."""
    return schema if len(schema) <= LONG or "\0" in schema else _PACKED + pack([schema])


def unpacked(kept: str | None) -> str | None:
    """Return the schema that `packed` made this form of."""
    if kept is None or not kept.startswith(_PACKED):
        return kept
    return "".join(unpack(kept.removeprefix(_PACKED)))


def with_columns_of(path: FilePath, options: Mapping[str, Any], schema: str) -> str | None:
    """Return the schema with the new columns of a csv file behind its own; None: they have no names."""
    found = find_schema([path], options)
    if found is None:
        return None
    known = columns_of(schema)
    new = {name: kind.ddl for name, kind in columns_of(found).items() if name not in known}
    return f"{schema}, {ddl_of(new)}" if new else schema


def with_text(schema: str, column: str) -> str:
    """Return the schema in which a column is a text, which any value is."""
    kinds = {name: kind.ddl for name, kind in columns_of(schema).items()}
    return ddl_of({**kinds, column: "STRING"})


def check_header(
    path: FilePath, options: Mapping[str, Any], schema: str, *, by_name: bool
) -> Sequence[str]:
    """Check that a csv file has the columns of a schema, and return the columns of its fields.

    :param by_name: the header says which column a field has; the file may lack others.
    :raises Misfit: it has others. A file without a line has none.
    """
    written = CsvFormat.of(options)
    expected = list(columns_of(schema))
    with written.open(path) as reader:
        first = written.first(reader)
    return check_first(written, first, expected, by_name=by_name) if first else expected


def check_first(
    written: CsvFormat, first: list[str], expected: Sequence[str], *, by_name: bool
) -> Sequence[str]:
    """Compare the first line of a csv file with the columns of its schema, and return the columns of its fields.

    :raises Misfit: they are not the same, in the same order; or, `by_name`, one is not in the schema.
    """
    if not written.header:
        if len(first) != len(expected):
            raise Misfit(f"the first line has {len(first)} fields, and the schema {len(expected)}")
        return expected
    names = written.names(first)
    known = set(expected) if by_name else set()
    new = next((name for name in names if name not in known), None)
    if new is None or names == expected:
        return names
    difference = f"column {new!r} is new" if by_name else _difference(names, expected)
    raise Misfit(
        f"header {_shown(names)} does not match the schema, {_shown(expected)}: {difference}"
    )


def _difference(names: Sequence[str], expected: Sequence[str]) -> str:
    for number, (name, other) in enumerate(zip(names, expected, strict=False), 1):
        if name != other:
            return f"column {number} is {name!r} instead of {other!r}"
    if len(names) > len(expected):
        return f"column {names[len(expected)]!r} is new"
    return f"column {expected[len(names)]!r} is missing"


def _shown(names: Sequence[str]) -> str:
    text = ",".join(names)
    return (
        text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... of {len(names)} columns"
    )


# --- as they are found --------------------------------------------------------------------------------------------
# The rules of Spark's own inference, except for BIGINT and TIMESTAMP_NTZ: a later file may have larger numbers, and a
# time without a zone is the same in every session. A value that some process would not accept is a text.

_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_PATTERNS = {
    "BIGINT": re.compile(r"[+-]?[0-9]{1,18}"),
    "DOUBLE": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN", re.ASCII),
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
            first = written.first(reader)
            if first and not names:
                names = written.names(first)
                kinds = [None] * len(names)
            if names and not written.typed:
                break
            for row in islice(reader if written.header else chain([first], reader), left):
                left -= 1
                for number, text in enumerate(row[: len(kinds)]):
                    if text and text != written.null:
                        kinds[number] = _widened(kinds[number], text)
    if not names or not all(name.strip() for name in names):
        return None
    return ddl_of({name: kind or "STRING" for name, kind in zip(names, kinds, strict=True)})


def _widened(kind: str | None, text: str) -> str:
    """Return the type that a value of this text has, too."""
    if kind == "STRING" or (kind and _PATTERNS[kind].fullmatch(text)):
        return kind
    own = next((each for each, pattern in _PATTERNS.items() if pattern.fullmatch(text)), "STRING")
    return own if kind is None else _WIDER.get((kind, own), "STRING")
