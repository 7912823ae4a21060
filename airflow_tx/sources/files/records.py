"""Rows of a file as Python dicts, for tasks that run without Spark; the same options and schema as Spark's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO, cast

from airflow_tx.rows.json_objects import parsed_object
from airflow_tx.rows.nested import nested_columns_of
from airflow_tx.rows.types import ColumnType, DecimalType, StringType, columns_of
from airflow_tx.sources.files.csv_format import (
    CsvFormat,
    check_neutral,
    named_as_spark,
    opened_text,
)
from airflow_tx.sources.files.schema import Misfit, check_first
from airflow_tx.sources.files.storage import FilePath
from airflow_tx.staging.parquet import batches_in, read_schema

_TYPES: Mapping[str, list[str]] = {
    "int8": ["TINYINT", "SMALLINT", "INT", "BIGINT"],
    "int16": ["SMALLINT", "INT", "BIGINT"],
    "int32": ["INT", "BIGINT"],
    "int64": ["BIGINT"],
    "float": ["FLOAT", "DOUBLE"],
    "double": ["DOUBLE"],
    "bool": ["BOOLEAN"],
    "string": ["STRING"],
    "large_string": ["STRING"],
    "string_view": ["STRING"],
    "date32[day]": ["DATE"],
    "timestamp[ms, tz=UTC]": ["TIMESTAMP"],
    "timestamp[us, tz=UTC]": ["TIMESTAMP"],
    "timestamp[ms]": ["TIMESTAMP_NTZ"],
    "timestamp[us]": ["TIMESTAMP_NTZ"],
}
"""The types of a schema that a column of a Parquet file may have, by its type in Arrow: none changes a value."""

_TEXT = StringType("STRING")


def read_rows(
    path: FilePath,
    file_format: str,
    options: Mapping[str, Any],
    schema: str | None,
    *,
    by_name: bool,
) -> Iterator[dict[str, Any]]:
    """Read one file; ValueError for a format or option that only Spark knows, or a row that does not fit the schema.

    :param by_name: the header of a csv file says which column a field has; a column that it lacks is NULL.
    """
    if file_format == "csv":
        return _read_csv(path, options, schema, by_name)
    if file_format == "json":
        return _read_json(path, options, schema)
    if file_format == "parquet":
        return _read_parquet(path, options, schema)
    if file_format == "text":
        return _read_text(path, options, schema)
    raise ValueError(f"format {file_format!r} is only known to Spark")


def _read_csv(
    path: FilePath, options: Mapping[str, Any], schema: str | None, by_name: bool
) -> Iterator[dict[str, Any]]:
    written = CsvFormat.of(options)
    columns = columns_of(schema) if schema else {}
    with written.open(path) as reader:
        first = written.first(reader)
        if not first:
            return
        names: Sequence[str] = written.names(first)
        if columns:
            names = check_first(written, first, list(columns), by_name=by_name)
        typed = {name: columns[name] for name in names if columns.get(name, _TEXT) != _TEXT}
        lacking = dict.fromkeys(columns) if columns and list(names) != list(columns) else None
        for fields in reader if written.header else chain([first], reader):
            if not fields:
                continue
            if len(fields) != len(names):
                raise ValueError(
                    f"line {reader.line_num}: {len(fields)} fields, and {len(names)} columns"
                )
            row: dict[str, Any] = {
                name: None if text in ("", written.null) else text
                for name, text in zip(names, fields, strict=True)
            }
            for name, kind in typed.items():
                text = row[name]
                if text is not None:
                    try:
                        row[name] = kind.of_text(text)
                    except ValueError as error:
                        raise _misfit(kind, name, text, reader.line_num, error) from None
            yield {**lacking, **row} if lacking else row


def _misfit(kind: ColumnType, name: str, value: Any, line: int, error: ValueError) -> Misfit:
    problem = f"{value!r:.100} does not fit the schema ({name} {kind.ddl}): {error}"
    return Misfit(f"line {line}: {name} = {problem}", name)


def _read_json(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    check_neutral(named_as_spark(options))
    columns = nested_columns_of(schema) if schema else None
    with opened_text(path, "utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip(" \t\r\n"):
                continue
            try:
                row = parsed_object(line, exact=columns is not None)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            if columns is None:
                yield row
                continue
            for name, kind in columns.items():
                try:
                    row[name] = None if row.get(name) is None else kind.of_json(row[name])
                except ValueError as error:
                    raise _misfit(kind, name, row[name], number, error) from None
            yield {name: row[name] for name in columns}


def first_keys(path: FilePath) -> tuple[str, ...]:
    """Return the keys of the first object of a JSON file, in their order; none if it cannot be read."""
    with suppress(ValueError, OSError), opened_text(path, "utf-8") as file:
        return next((tuple(parsed_object(line, exact=False)) for line in file if line.strip()), ())
    return ()


def _read_text(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    check_neutral(named_as_spark(options))
    names = list(columns_of(schema)) if schema else ["value"]
    if len(names) != 1:
        raise ValueError(f"text has one column, and the schema {len(names)}")
    with opened_text(path, "utf-8") as file:
        for line in file:
            yield {names[0]: line.removesuffix("\n")}


def _read_parquet(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    import pyarrow as pa  # type: ignore[import-untyped]

    check_neutral(named_as_spark(options))
    columns = dict.fromkeys(columns_of(schema)) if schema else {}
    with path.open("rb") as file:
        for batch in batches_in(cast("BinaryIO", file)):
            if columns:
                batch = batch.select([name for name in columns if name in batch.schema.names])
            try:
                yield from (columns | row for row in batch.to_pylist())
            except (pa.ArrowException, OverflowError) as error:
                raise ValueError(f"a value is none that Python has: {error}") from None


def check_declared(path: FilePath, schema: str) -> None:
    """Check the columns of a Parquet file against the declared columns; it may have others, and lack some.

    :raises Misfit: one is of a type that Spark would convert or refuse, or has a name in other letters.
    """
    with path.open("rb") as file:
        found = {field.name: str(field.type) for field in read_schema(cast("BinaryIO", file))}
    spelled = {name.lower(): name for name in found}
    for name, kind in columns_of(schema).items():
        if name in found:
            types = _TYPES.get(found[name], [])
            if kind.ddl not in types and found[name] != _decimal_name(kind):
                raise Misfit(f"column {name} is {found[name]}, and {kind.ddl} in the schema")
        elif name.lower() in spelled:
            raise Misfit(f"column {spelled[name.lower()]} is called {name} in the schema")


def _decimal_name(kind: ColumnType) -> str:
    """Return what Arrow calls a type with decimals."""
    if not isinstance(kind, DecimalType):
        return ""
    return f"decimal128({kind.precision}, {kind.scale})"


def check_footer(path: FilePath, first: FilePath, expected: Mapping[str, str]) -> None:
    """Check the columns of a Parquet file: Spark reads a column that it does not find as NULL.

    :param first: the first file of the batch, and `expected`: its columns.
    :raises Misfit: it has others, or times in nanoseconds, which Spark does not read.
    """
    found = footer_columns(path)
    for name in {**expected, **found}:
        kind = found.get(name, "missing")
        wanted = expected.get(name, "missing")
        if kind != wanted:
            raise Misfit(
                f"column {name} is {kind}, and {wanted} in {first.name}, which is in the same batch"
            )


def footer_columns(path: FilePath) -> dict[str, str]:
    """Read the columns of a Parquet file and their types.

    :raises Misfit: it has times in nanoseconds, which Spark does not read.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with path.open("rb") as file:
        opened = pq.ParquetFile(file)
        for column in map(opened.schema.column, range(len(opened.schema))):
            if "timeUnit=nanoseconds" in str(column.logical_type):
                raise Misfit(f"column {column.path} has nanoseconds, which Spark does not read")
        return {field.name: _one_name(str(field.type)) for field in opened.schema_arrow}


def _one_name(kind: str) -> str:
    """Return the same name for types that differ only in how Arrow keeps them in memory."""
    return re.sub(r"\b(?:large_)?(string|binary|list)(?:_view)?\b", r"\1", kind)
