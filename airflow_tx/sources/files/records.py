"""Rows of a file as Python dicts, for tasks that run without Spark; the same options and schema as Spark's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_tx.sources.files.csv_format import NEUTRAL_OPTIONS, CsvFormat, named_as_spark
from airflow_tx.sources.files.schema import Misfit, check_names, declared_types, parse_schema
from airflow_tx.sources.files.storage import FilePath


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


def _read_csv(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    written = CsvFormat.of(options)
    types = declared_types(schema) if schema else {}
    conversions = (
        {name: convert for name, convert in parse_schema(schema).items() if convert is not str}
        if schema
        else {}
    )
    with written.open(path) as reader:
        names = next(reader, []) if written.header else list(types)
        if types and names:
            check_names(names, list(types))
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(names):
                raise ValueError(
                    f"line {reader.line_num}: {len(fields)} fields, and {len(names)} columns"
                )
            row: dict[str, Any] = {}
            for name, text in zip(names, fields, strict=True):
                convert = conversions.get(name)
                try:
                    row[name] = (
                        None if text in ("", written.null) else convert(text) if convert else text
                    )
                except (ValueError, KeyError, ArithmeticError):
                    found = f"line {reader.line_num}: {name} = {text!r}"
                    problem = f"{found} does not fit the schema ({name} {types[name]})"
                    raise Misfit(problem, name) from None
            yield row


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


def _read_text(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    if unknown := sorted(set(named_as_spark(options)) - NEUTRAL_OPTIONS):
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
