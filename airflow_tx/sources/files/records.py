"""Rows of a file as Python dicts, for tasks that run without Spark; the same options and schema as Spark's."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from airflow_tx.sources.files.storage import FilePath

# What changes nothing for rows that are read strictly and typed by a schema only.
_NEUTRAL = {"mode", "enforceschema"}
_CSV = {"header", "sep", "delimiter", "nullvalue", "encoding", "charset", "quote"} | _NEUTRAL


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "integer", "bigint", "long", "short", "byte"), int),
    **dict.fromkeys(("float", "real", "double"), float),
    **dict.fromkeys(("string", "varchar", "char"), str),
    **dict.fromkeys(("decimal", "numeric", "dec"), Decimal),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), datetime.fromisoformat),
    "boolean": _boolean,
    "date": date.fromisoformat,
}


def parse_schema(schema: str) -> dict[str, Callable[[str], Any]]:
    """Read columns and their conversions of Spark's DDL, such as ``day INT, carrier STRING``, of simple types."""
    columns = {}
    for column in re.split(r",(?![^(<]*[)>])", schema):
        match = re.match(r"\s*(?:`([^`]+)`|(\w+))\s*:?\s+?(\w+)", column)
        kind = match[3].lower() if match else ""
        if match is None or kind not in _TYPES:
            raise ValueError(f"column {column.strip()!r} of the schema has no type that rows without Spark can have")
        columns[match[1] or match[2]] = _TYPES[kind]
    return columns


def read_rows(
    path: FilePath, file_format: str, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    """Read one file; ValueError for a format or option that only Spark knows, or a row that does not fit the schema."""
    if file_format == "csv":
        return _read_csv(path, options, schema)
    if file_format == "json":
        return _read_json(path)
    if file_format == "parquet":
        return _read_parquet(path)
    if file_format == "text":
        return _read_text(path, options, schema)
    raise ValueError(f"format {file_format!r} is only known to Spark")


def csv_schema(path: FilePath, options: Mapping[str, Any]) -> str | None:
    """Find the schema that Spark would, strings by the names in the header of a csv file; without a job of its own.

    :return: Spark DDL; None if only Spark can find it.
    :raises ValueError: the header is not one.
    """
    given = _given(options)
    if set(given) - _CSV or not _header(given):
        return None
    with _csv(path, given) as reader:
        names: list[str] = next(reader, [])
    plain = all(re.fullmatch(r"\w+", name) for name in names)
    return ", ".join(f"`{name}` STRING" for name in names) if plain and len(set(names)) == len(names) else None


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name options as Spark compares them; those of its file system do not matter to the rows."""
    return {key.lower(): value for key, value in options.items() if not key.lower().startswith("fs.")}


def _header(given: Mapping[str, Any]) -> bool:
    return str(given.get("header", "false")).lower() == "true"


@contextmanager
def _csv(path: FilePath, given: Mapping[str, Any]) -> Iterator[Any]:
    """Open a csv reader; its own error is no ValueError, and becomes one."""
    encoding, separator = given.get("encoding", given.get("charset", "utf-8")), given.get("delimiter", ",")
    with path.open(newline="", encoding=str(encoding)) as file:
        reader = csv.reader(file, delimiter=given.get("sep", separator), quotechar=given.get("quote", '"'))
        try:
            yield reader
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num} is not csv: {error}") from None


def _read_csv(path: FilePath, options: Mapping[str, Any], schema: str | None) -> Iterator[dict[str, Any]]:
    given = _given(options)
    if unknown := sorted(set(given) - _CSV):
        raise ValueError(f"option {unknown[0]!r} is only known to Spark")
    columns = parse_schema(schema) if schema else {}
    null = given.get("nullvalue", "")
    with _csv(path, given) as reader:
        names = next(reader, []) if _header(given) else list(columns)
        if columns and names and names != list(columns):
            raise ValueError(f"header {','.join(names)} is not that of the schema, {','.join(columns)}")
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(names):
                raise ValueError(f"line {reader.line_num}: {len(fields)} fields, and {len(names)} columns")
            texts = {name: None if text in ("", null) else text for name, text in zip(names, fields, strict=True)}
            yield _typed(texts, columns, reader.line_num)


def _typed(texts: Mapping[str, str | None], columns: Mapping[str, Callable[[str], Any]], line: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            row[name] = columns[name](text) if columns and text is not None else text
        except (ValueError, KeyError, ArithmeticError):
            raise ValueError(f"line {line}: {name} = {text!r} does not fit the schema") from None
    return row


def _read_json(path: FilePath) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON") from None
            yield row


def _read_text(path: FilePath, options: Mapping[str, Any], schema: str | None) -> Iterator[dict[str, Any]]:
    if unknown := sorted(set(_given(options)) - _NEUTRAL):
        raise ValueError(f"option {unknown[0]!r} is only known to Spark")
    names = list(parse_schema(schema)) if schema else ["value"]
    if len(names) != 1:
        raise ValueError(f"text has one column, and the schema {len(names)}")
    # Spark leaves a byte order mark out, too.
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            yield {names[0]: line.removesuffix("\n")}


def _read_parquet(path: FilePath) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with path.open("rb") as file:
        for batch in pq.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
