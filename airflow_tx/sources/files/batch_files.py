"""The files of one batch, as its rows are read from them: by Python, or by Spark; and with which schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from airflow_tx.protocol.json_text import digest
from airflow_tx.rows.nested import found_columns_of, nested_columns_of
from airflow_tx.rows.spark import (
    REFUSED_VALUE,
    checked_lines,
    typed_texts,
    valid_text,
    with_columns,
)
from airflow_tx.rows.spark_json import lines_of_objects
from airflow_tx.rows.types import ColumnType, IntegerType, columns_of, ddl_of
from airflow_tx.sources.files.csv_format import CsvFormat, has_only, named_as_spark
from airflow_tx.sources.files.records import (
    check_declared,
    check_footer,
    first_keys,
    footer_columns,
    read_rows,
)
from airflow_tx.sources.files.schema import (
    LONGEST_SHOWN,
    Misfit,
    check_header,
    find_schema,
    packed,
    with_columns_of,
    with_text,
)
from airflow_tx.sources.files.storage import FilePath, Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Read strictly: by Spark's own default a damaged row turns into nulls, and a header is not checked.
# An option that the user gives wins.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "csv": {"header": True, "enforceSchema": False, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


_SPARK_CANNOT = re.compile(
    rf"\[(FAILED_READ_FILE|MALFORMED_RECORD|MALFORMED_CSV)[^\n]*"
    # A plan that an error shows has these words, too.
    rf"|\[USER_RAISED_EXCEPTION\] {re.escape(REFUSED_VALUE)}[^\n]*"
)


def said_by_spark(error: Exception) -> str | None:
    """Return what the error of a query says of a file that Spark cannot read; None: it is about something else."""
    found = _SPARK_CANNOT.search(str(error))
    return found[0].rstrip(".") if found else None


def reader_options(file_format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that files are read with."""
    return {**_DEFAULTS.get(file_format, {}), **options}


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, and how to read them.

    :param for_spark: the same files, as Spark names them.
    :param declared: the schema that the source has been given; `found`: the schema of the first files of its topology.
    :param by_name: the header of a csv file says which column a field has; a column that it lacks is NULL.
    """

    paths: Sequence[FilePath]
    for_spark: Sequence[str]
    format: str
    options: Mapping[str, Any] = field(hash=False)
    declared: str | None
    found: str | None
    by_name: bool

    @property
    def schema(self) -> str | None:
        return self.declared or self.found

    def rows(self, path: FilePath) -> Iterator[dict[str, Any]]:
        """Read the rows of one of them; ValueError: they cannot be read."""
        return read_rows(path, self.format, self.options, self.schema, by_name=self.by_name)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Give their rows to Spark; ValueError: a file is not what its format says."""
        schema = self.schema
        if schema is None and self.format == "csv":
            schema = find_schema(self.paths[:1], self.options)
        written = self._written
        columns = None if written is None else _columns(schema)
        if written is not None and columns is not None:
            return self._strict_csv(spark, written, columns)
        reader = spark.read.format(self.format).options(**self.options)
        if schema:
            reader = reader.schema(schema)
        rows = reader.load(list(self.for_spark))
        if self._plain_json:
            return self._strict_json(spark, rows)
        return valid_text(rows) if self.format == "text" else rows

    def _strict_json(self, spark: SparkSession, rows: DataFrame) -> DataFrame:
        schema = self.schema
        try:
            columns = nested_columns_of(schema) if schema else found_columns_of(rows.schema.toDDL())
        except ValueError:
            return rows
        lines = spark.read.format("text").load(list(self.for_spark))
        keys = first_keys(self.paths[0]) if self.paths else ()
        return lines_of_objects(lines, columns, keys)

    def _strict_csv(
        self, spark: SparkSession, written: CsvFormat, columns: Mapping[str, ColumnType]
    ) -> DataFrame:
        # A typed column of Spark's reader rounds decimals; an escape other than the quote is not RFC 4180.
        options = {
            **self.options,
            "enforceSchema": True,  # headers are compared before
            "columnPruning": False,
            "escape": written.quote or "\\",
            "unescapedQuoteHandling": "RAISE_ERROR",
            "emptyValue": written.null,
            "inferSchema": False,
            "maxColumns": max(20_480, len(columns) + 1),
        }
        is_plain = all(map(written.is_plain, self.paths))
        kinds = {
            name: kind.ddl if is_plain and isinstance(kind, IntegerType) else "STRING"
            for name, kind in columns.items()
        }
        texts = [
            with_columns(
                spark.read.options(**options)
                .schema(ddl_of({name: kinds[name] for name in names}))
                .csv(files),
                names,
                kinds,
            )
            for names, files in self._by_columns(columns).items()
        ]
        rows = typed_texts(
            reduce(lambda first, second: first.union(second), texts),
            columns,
            typed=[name for name, kind in kinds.items() if kind != "STRING"],
        )
        if is_plain:
            return rows
        return checked_lines(
            rows,
            spark,
            self.for_spark,
            quote=written.quote,
            utf8=written.utf8,
            whole=written.several,
        )

    def _by_columns(self, columns: Iterable[str]) -> Mapping[Sequence[str], list[str]]:
        """Return the files, as Spark names them, by the columns of their fields."""
        if not self.by_name:
            return {tuple(columns): list(self.for_spark)}
        found: dict[Sequence[str], list[str]] = {}
        for path, file in zip(self.paths, self.for_spark, strict=True):
            found.setdefault(tuple(self._header(path)), []).append(file)
        return found

    def _header(self, path: FilePath) -> Sequence[str]:
        assert self.schema is not None
        return check_header(path, self.options, self.schema, by_name=self.by_name)

    @property
    def _plain_json(self) -> bool:
        """Whether they are JSON files that Python can read, too."""
        return self.format == "json" and has_only(named_as_spark(self.options))

    @property
    def _written(self) -> CsvFormat | None:
        """How they are written, if they are csv files that Python can read, too."""
        if self.format != "csv":
            return None
        try:
            return CsvFormat.of(self.options)
        except ValueError:
            return None

    def check_columns(self, path: FilePath) -> None:
        """Check the columns of a file: Spark does not mind new ones of which a job reads none.

        :raises Misfit: it has others than its schema, or than the first file of the batch.
        """
        if self.format == "parquet":
            if self.schema is None:
                check_footer(path, self.paths[0], self._first_footer)
            elif _columns(self.schema) is not None:
                check_declared(path, self.schema)
        if self._written is None:
            return
        if self.schema:
            self._header(path)
        else:
            find_schema([path], self.options)

    @cached_property
    def _first_footer(self) -> Mapping[str, str]:
        return footer_columns(self.paths[0])

    def misfit(self, message: str) -> tuple[FilePath, ValueError] | None:
        """Find the value that Spark could not read in a file; None if only Spark can find it."""
        for path in [path for path in self.paths if path.name in message] or self.paths:
            try:
                for _ in self.rows(path):
                    pass
            except Misfit as error:
                return path, error
            except ValueError as error:
                return (path, error) if self._plain_json or self._written else None
            except OSError:
                return None
        return None

    def declarable(self, path: FilePath, error: Exception) -> str | None:
        """Return the arguments of a source for which a misfit is none, also in the files before this one."""
        written = self._written
        if written is None or not self.schema or not isinstance(error, Misfit):
            return None
        if error.column is not None:
            return None if self.declared else _argument(with_text(self.schema, error.column))
        if not written.header:
            return None
        with suppress(ValueError, OSError):
            schema = with_columns_of(path, self.options, self.schema)
            given = "" if schema == self.declared else f"{_argument(schema)}, "
            return f"{given}missing_columns='null'" if schema else None
        return None


def _argument(schema: str | None) -> str:
    if schema is None or len(schema) <= LONGEST_SHOWN:
        return f"schema={schema!r}"
    return f"schema={schema[:LONGEST_SHOWN]!r}... with all {len(columns_of(schema))} columns"


def _columns(schema: str | None) -> dict[str, ColumnType] | None:
    """Return the columns of a schema whose types Python has, too."""
    with suppress(ValueError):
        return columns_of(schema) if schema else None
    return None


def recorded_schema(
    storage: Storage, options: Mapping[str, Any], positions: Iterable[Any], metadata: Iterable[Any]
) -> dict[str, str] | None:
    """Return the schema of csv files that was found before; else the schema of this batch's files.

    A position keeps it, and with which options it was found: others may mean another one.

    :param positions: before the batch; `metadata`: of the batch, of each folder.
    :return: None: it cannot be found here.
    """
    found_with = digest(named_as_spark(options))
    for position in positions:
        known: dict[str, str] | None = (position or {}).get("schema")
        if known is not None and known["options"] == found_with:
            return known
    paths = (
        storage.path(each["folder"]) / file["name"] for each in metadata for file in each["files"]
    )
    with suppress(ValueError, OSError):  # the reader of the rows reports the error
        columns = find_schema(paths, reader_options("csv", options))
        return {"columns": packed(columns), "options": found_with} if columns else None
    return None
