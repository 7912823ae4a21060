"""Read the files of one batch as record batches, as dicts or with Spark, and find their schema."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import (
    COLUMN_TYPES,
    ColumnType,
    UnfitText,
    arrow_types_of,
    batch_rows,
    check_names,
    column_name,
    columns_of,
    ddl_of,
    found_columns_of,
    nested_columns_of,
    plain_type,
    says_not_null,
    spark_reader,
    typed_batch,
)
from airflow_tx.ledger import digest
from airflow_tx.outputs import batches_in, read_schema
from airflow_tx.sources.api import REFUSED_VALUE, MalformedRow, fails
from airflow_tx.sources.files.rows import CsvRows, JsonRows, RowsOfFile
from airflow_tx.sources.files.schema import (
    LONGEST_SHOWN,
    CsvFormat,
    Misfit,
    check_end,
    check_header,
    check_neutral,
    find_schema,
    has_only,
    named_as_spark,
    opened_bytes,
    opened_text,
    packed,
    unpacked as unpacked,
    with_columns_of,
    with_text,
)
from airflow_tx.sources.files.storage import (
    Content,
    FilePath,
    OtherContent,
    Storage,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, SparkSession, functions as F
else:
    F = LazyModule("pyspark.sql.functions")
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")


# --- records ------------------------------------------------------------------------------------------------------
# Read files as Python dicts without Spark, with the options and schemas of Spark's reader.


def check_options(file_format: str, options: Mapping[str, Any]) -> None:
    """Check that Python and Spark read the files in the same way.

    :raises ValueError: an option is supported only by Spark.
    """
    if file_format == "csv":
        CsvFormat.of(reader_options("csv", options))
    else:
        check_neutral(named_as_spark(options))


def _read_text(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    check_neutral(named_as_spark(options))
    names = list(columns_of(schema)) if schema else ["value"]
    if len(names) != 1:
        raise UnfitText(f"text has one column, and the schema {len(names)}")
    with opened_text(path, "utf-8") as file:
        for line in file:
            yield {names[0]: line.removesuffix("\n")}


def _read_parquet(
    path: FilePath, options: Mapping[str, Any], schema: str | None
) -> Iterator[dict[str, Any]]:
    check_neutral(named_as_spark(options))
    columns = dict.fromkeys(columns_of(schema)) if schema else {}
    first = 0
    with path.open("rb") as file:
        for batch in batches_in(cast("BinaryIO", file)):
            if columns:
                batch = batch.select([name for name in columns if name in batch.schema.names])
            # this raises the same errors as arrow()
            typed_batch(batch, _for_spark(batch.schema), first)
            first += batch.num_rows
            yield from (columns | row for row in batch.to_pylist(maps_as_pydicts="strict"))


def parquet_schema(path: FilePath) -> pa.Schema:
    """Return the columns of a Parquet file with Spark's types."""
    with path.open("rb") as file:
        return _for_spark(read_schema(cast("BinaryIO", file)))


def _for_spark(schema: pa.Schema) -> pa.Schema:
    unsigned = pa.decimal128(20, 0)
    return pa.schema([pa.field(each.name, plain_type(each.type, unsigned)) for each in schema])


def check_declared(path: FilePath, schema: str) -> None:
    """Compare the columns of a Parquet file with the declared columns. Missing and additional columns are permitted.

    :raises Misfit: Spark would convert or refuse the type of a column, or its name differs only in case.
    """
    with path.open("rb") as file:
        found = {field.name: str(field.type) for field in read_schema(cast("BinaryIO", file))}
    spelled = {name.lower(): name for name in found}
    for name, kind in columns_of(schema).items():
        if name in found:
            if found[name] not in (kind.arrow, *kind.takes):
                raise Misfit(
                    f"column {name} has the type {found[name]}, but {kind.ddl} in the schema"
                )
        elif name.lower() in spelled:
            raise Misfit(f"column {spelled[name.lower()]} is spelled {name} in the schema")


def check_footer(path: FilePath, first: FilePath, expected: Mapping[str, str]) -> None:
    """Check that a Parquet file has the same columns as the first file. Spark would read a missing column as NULL.

    :param first: path of the first file of the batch.
    :param expected: columns of the first file.
    :raises Misfit: the file has other columns, or a type that Spark does not read.
    """
    found = footer_columns(path)
    for name in {**expected, **found}:
        kind = found.get(name, "missing")
        wanted = expected.get(name, "missing")
        if kind != wanted:
            raise Misfit(f"column {name} is {kind}, but {wanted} in {first.name} of the same batch")


_ONLY_SPARKS = re.compile(r" (\S+) \((Geometry|Geography|Variant|Float16)\b")
"""The types in the schema of a file that Spark lacks, or for which pyarrow returns only the stored bytes."""


# The types that pyarrow reads and Spark does not read.
_SPARK_LACKS = re.compile(
    r"UUID|Interval|Undefined|Time\((?!isAdjustedToUTC=false, timeUnit=micro)"
    r"|Decimal\(precision=(?:39|[4-9]\d|\d{3})"
)
# The types that Arrow stores as metadata in a file. Spark reads their values as numbers.
_ONLY_ARROWS = re.compile(r"duration|extension<arrow\.bool8")


def footer_columns(path: FilePath) -> dict[str, str]:
    """Return the columns of a Parquet file and their types.

    :raises ValueError: Spark or pyarrow lacks a type, they read a type differently, or a name occurs twice.
    """
    with path.open("rb") as file:
        opened = pq.ParquetFile(file)
        if (other := _ONLY_SPARKS.search(str(opened.schema))) is not None:
            raise Misfit(
                f"column {other[1]} has the type {other[2].upper()}, whose values differ between Spark and a @task"
            )
        for column in map(opened.schema.column, range(len(opened.schema))):
            kind = str(column.logical_type)
            if "timeUnit=nanoseconds" in kind:
                raise Misfit(f"column {column.path} has nanoseconds, which Spark cannot read")
            if _SPARK_LACKS.match(kind):
                raise Misfit(f"column {column.path} has the type {kind}, which Spark cannot read")
        for field in opened.schema_arrow:
            if _ONLY_ARROWS.search(str(field.type)):
                raise Misfit(
                    f"column {field.name} has the type {field.type}, which Spark reads as a number"
                )
        check_names(opened.schema_arrow.names)
        return {field.name: _one_name(str(field.type)) for field in opened.schema_arrow}


_PER_DAY = {
    "Date": 1,
    "milliseconds": 86_400_000,
    "microseconds": 86_400_000_000,
}
_YEARS = [each.toordinal() - date(1970, 1, 1).toordinal() for each in (date.min, date.max)]


def _is_beyond(path: FilePath) -> bool:
    """Return whether a Parquet file's statistics show a date or time outside the years 1 to 9999."""
    with path.open("rb") as file:
        metadata = pq.ParquetFile(file).metadata
    first, last = _YEARS
    for number in range(metadata.num_columns):
        kind = re.search(
            r"^Date|(?<=timeUnit=)mi\w+", str(metadata.schema.column(number).logical_type)
        )
        per_day = _PER_DAY[kind[0]] if kind else 0
        for group in range(metadata.num_row_groups if per_day else 0):
            found = metadata.row_group(group).column(number).statistics
            if found is None or not found.has_min_max:
                continue
            if found.min_raw < first * per_day or found.max_raw >= (last + 1) * per_day:
                return True
    return False


def _one_name(kind: str) -> str:
    """Return one name for all types that differ only in their Arrow memory layout."""
    return re.sub(r"\b(?:large_)?(string|binary|list)(?:_view)?\b", r"\1", kind)


# --- batch files --------------------------------------------------------------------------------------------------
# The files of one batch, which Python or Spark reads.


# Read strictly. By default, Spark turns a damaged row into NULLs and does not check headers. User
# options take precedence.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "csv": {"header": True, "enforceSchema": False, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


_NUMBERED = "parquet.field.id"
"""The metadata key for column numbers in files that Spark writes. A session with Delta matches columns by number."""
_SPARK_CANNOT = re.compile(
    rf"\[(FAILED_READ_FILE|MALFORMED_RECORD|MALFORMED_CSV)[^\n]*"
    # A query's error may also contain its plan, in which REFUSED_VALUE does not have this prefix.
    rf"|\[USER_RAISED_EXCEPTION\] {re.escape(REFUSED_VALUE)}[^\n]*"
)


def said_by_spark(error: Exception) -> str | None:
    """Return the part of a query's error that names an unreadable file, or None if there is another cause."""
    found = _SPARK_CANNOT.search(str(error))
    return found[0].rstrip(".") if found else None


def reader_options(file_format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source's options, with strict defaults."""
    return {**_DEFAULTS.get(file_format, {}), **options}


# Up to this size in bytes, a task reads rows one by one, since loading Arrow would take longer.
_SMALL = 1024 * 1024


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, and how to read them.

    :param paths: files of the batch.
    :param for_spark: Spark's names of the same files.
    :param format: format of the files.
    :param options: options of Spark's reader.
    :param declared: schema that the source declares.
    :param found: schema of the topology's first files.
    :param by_name: whether to match the fields of a csv file to columns by its header. A missing column is then NULL.
    :param rejects: whether to yield malformed rows instead of raising an error.
    :param named: values of columns that folder names define. A file may also have such a column, with the same value.
    :param contents: expected content of the files that are checked during reading.
    :param size: size of all files in bytes.
    """

    paths: Sequence[FilePath]
    for_spark: Sequence[str]
    format: str
    options: Mapping[str, Any] = field(hash=False)
    declared: str | None
    found: str | None
    by_name: bool
    rejects: bool = False
    named: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    contents: Mapping[FilePath, Content] = field(default_factory=dict, hash=False)
    size: int = 0

    @property
    def schema(self) -> str | None:
        return self.declared or self.found

    def rows(self, path: FilePath) -> Iterator[Any]:
        """Read the rows of one file. If `rejects` is set, also return the malformed rows.

        :raises ValueError: the rows cannot be read.
        """
        malformed: list[MalformedRow] = []
        self._declared_kinds()
        if self.in_blocks and self.size > _SMALL:
            batches = self.batches(path, self.arrow_schema(), malformed)
            rows: Iterator[Any] = chain.from_iterable(map(batch_rows, batches))
        else:
            rows = self._plain_rows(path, malformed)
            rows = map(self._with_named, rows) if self.named else rows
        return _with_malformed(rows, malformed) if self.rejects else rows

    def _plain_rows(self, path: FilePath, malformed: list[MalformedRow]) -> Iterator[Any]:
        """Read rows one by one."""
        content = self.contents.get(path)
        if self.format == "parquet":
            yield from _read_parquet(path, self.options, self.schema)
        elif self.format == "text":
            yield from _read_text(path, self.options, self.schema)
        elif self.format == "csv":
            written = CsvFormat.of(self.options)
            with opened_text(path, written.encoding, newline="", content=content) as lines:
                yield from self._csv(path, written, malformed).rows(lines)
        elif self.format == "json":
            check_neutral(named_as_spark(self.options))
            with opened_text(path, "utf-8", content=content) as lines:
                yield from self._json(path, malformed).rows(lines)
        else:
            raise UnfitText(f"only Spark can read the format {self.format!r}")

    def _csv(self, path: FilePath, written: CsvFormat, malformed: list[MalformedRow]) -> CsvRows:
        return CsvRows(
            path,
            self._kinds,
            malformed if self.rejects else None,
            written=written,
            by_name=self.by_name,
            named=self.named.keys(),
        )

    def _json(self, path: FilePath, malformed: list[MalformedRow]) -> JsonRows:
        return JsonRows(path, self._kinds, malformed if self.rejects else None)

    @property
    def has_reader(self) -> bool:
        """Whether the files are csv or JSON, without options that only Spark supports."""
        return self._plain_json or self._written is not None

    @cached_property
    def in_blocks(self) -> bool:
        """Whether the files are read in blocks. They must be csv or JSON, with columns of known types."""
        return self.has_reader and bool(self._kinds)

    @cached_property
    def _kinds(self) -> Mapping[str, ColumnType]:
        """The columns of the schema, or no columns if Python lacks one of their types."""
        with suppress(ValueError):
            return self._declared_kinds()
        return {}

    def _declared_kinds(self) -> Mapping[str, ColumnType]:
        read: Callable[[str], Mapping[str, ColumnType]] = columns_of
        if self.format == "json":
            read = nested_columns_of if self.declared else found_columns_of
        return read(self.schema) if self.schema else {}

    def _with_named(self, row: Any) -> Any:
        """Add the folder columns to a row."""
        for name in self.named:
            if name not in row:
                check_names([*row, name])
        return {
            **row,
            **{name: self._one_value(name, row.get(name), name in row) for name in self.named},
        }

    def _one_value(self, name: str, own: Any, has_own: bool) -> Any:
        """Return the value of a column defined by the folder name.

        :param own: value of the column in the file.
        :param has_own: whether the file has the column.
        :raises ValueError: the file has a different value.
        """
        text = self.named[name]
        kind = self._kinds.get(name)
        if own is None and (kind or not has_own or text is None):
            return text if kind is None or text is None else kind.of_text(text)
        with suppress(ValueError):
            if own is not None and text is not None:
                held = (kind or ColumnType.of_value(own)).of_text(text)
                if held == own:
                    return own
        raise UnfitText(
            f"column {name} contains {str(own)!r:.100}, but the name of its folder says {text!r:.100}",
            place=f"column {name}",
        )

    def arrow_schema(self) -> pa.Schema:
        """Return the columns of the record batches.

        :raises ValueError: Python lacks a type, or two columns have the same name.
        """
        if self.format == "parquet" and not self.schema:
            schema = parquet_schema(self.paths[0])
        else:
            kinds = self._kinds if self.in_blocks else columns_of(self.schema or "")
            schema = pa.schema(arrow_types_of(kinds))
        for name in sorted(self.named.keys() - set(schema.names)):
            schema = schema.append(pa.field(name, pa.string()))
        check_names(schema.names)
        return schema

    def batches(
        self, path: FilePath, schema: pa.Schema, malformed: list[MalformedRow]
    ) -> Iterator[pa.RecordBatch]:
        """Read one file as record batches.

        :param schema: result of `arrow_schema`.
        :param malformed: list to which malformed rows are added if `rejects` is set.
        :raises ValueError: the file cannot be read.
        :raises OtherContent: the content of the file differs from the metadata of the batch.
        """
        first = 0
        for batch in self._own_batches(path, malformed):
            if not self.in_blocks or self.named:
                batch = self._with_named_columns(batch, schema, first)
            yield batch
            first += batch.num_rows

    def _own_batches(
        self, path: FilePath, malformed: list[MalformedRow]
    ) -> Iterator[pa.RecordBatch]:
        if not self.in_blocks:
            check_neutral(named_as_spark(self.options))
            with path.open("rb") as file:
                yield from batches_in(cast("BinaryIO", file))
            return
        written = self._written
        rows: RowsOfFile = (
            self._json(path, malformed) if written is None else self._csv(path, written, malformed)
        )
        with opened_bytes(path, self.contents.get(path)) as file:
            yield from rows.batches(file)

    def _with_named_columns(
        self, batch: pa.RecordBatch, schema: pa.Schema, first: int
    ) -> pa.RecordBatch:
        """Add the folder columns to a record batch, and convert it to a schema's types."""
        has_own = {name: name in batch.schema.names for name in self.named}
        for name in (name for name, own in has_own.items() if not own):
            batch = batch.append_column(name, pa.nulls(batch.num_rows, schema.field(name).type))
        batch = typed_batch(batch, schema, first)
        for name, own in has_own.items():
            at = schema.get_field_index(name)
            column = batch.column(at)
            values = {
                each: self._one_value(name, each, own) for each in column.unique().to_pylist()
            }
            if None in values:
                column = column.fill_null(pa.scalar(values[None], column.type))
            batch = batch.set_column(at, schema.field(at), column)
        return batch

    def schema_for_python(self, spark: SparkSession) -> str | None:
        """Return the schema for reading the files in Python. Return None if only Spark can read them.

        Spark infers the columns of JSON files without a declared schema.

        :raises ValueError: a file does not have the declared format.
        """
        if self._written is not None:
            return self.schema or find_schema(self.paths[:1], self.options)
        if not self._plain_json or self.schema:
            return self.schema if self._plain_json else None
        # Ignore malformed lines here. The reader of the rows raises an error that names them.
        found = spark_reader(spark, "json", {**self.options, "mode": "DROPMALFORMED"})
        return found.load(list(self.for_spark)).schema.toDDL()

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return a DataFrame of the rows.

        :raises ValueError: a file does not have the declared format.
        """
        rows = self._frame(spark)
        for name in self.named:
            rows = self._with_named_in_spark(rows, name)
        return rows

    def _with_named_in_spark(self, rows: DataFrame, name: str) -> DataFrame:
        text = self.named[name]
        if name not in rows.columns:
            check_names([*rows.columns, name])
            return rows.withColumn(name, F.lit(text).cast("string"))
        kind = self._kinds.get(name)
        own = F.col(column_name(name))
        same = own.isNull()
        value = None
        if text is not None:
            found = {name: rows.schema[name].dataType.simpleString()}
            with nullcontext() if kind else suppress(ValueError):
                value = _in_spark(text, kind or columns_of(ddl_of(found))[name])
            equal = F.lit(False) if value is None else own.eqNullSafe(value)
            same = equal if kind is None else equal | same
        problem = (
            f"{REFUSED_VALUE}column {name} differs from {text!r:.100} in the name of its folder"
        )
        checked = rows.where(fails(F.when(~same, F.lit(problem))))
        if kind is None or value is None:
            return checked
        return checked.withColumn(name, F.coalesce(own, value))

    def _frame(self, spark: SparkSession) -> DataFrame:
        opened = spark_reader(spark, self.format, self.options)
        if self.schema:
            opened = opened.schema(self.schema)
        rows = opened.load(list(self.for_spark))
        if _NUMBERED in rows.schema.json():
            rows = opened.schema(rows.schema.toDDL()).load(list(self.for_spark))
        return _valid_text(rows) if self.format == "text" else rows

    @property
    def _plain_json(self) -> bool:
        """Whether the files are JSON that Python can also read."""
        return self.format == "json" and has_only(named_as_spark(self.options))

    @property
    def _written(self) -> CsvFormat | None:
        """The csv format of the files, or None if the files are not csv or only Spark can read them."""
        if self.format != "csv":
            return None
        try:
            return CsvFormat.of(self.options)
        except ValueError:
            return None

    def check_columns(self, path: FilePath) -> None:
        """Check a file's columns, since Spark would ignore new columns that a job does not read.

        :raises ValueError: the columns differ from the schema or from the first file, or the file is truncated.
        """
        check_end(path)
        if self.format == "parquet":
            if self.schema is None:
                check_footer(path, self.paths[0], self._first_footer)
            elif _columns(self.schema) is not None:
                check_declared(path, self.schema)
            if (self.schema is None or _columns(self.schema) is not None) and _is_beyond(path):
                for _ in _read_parquet(path, {}, self.schema):
                    pass  # raises an error for values outside these years, which Spark would accept
        if self._written is None:
            return
        if self.schema:
            check_header(path, self.options, self.schema, by_name=self.by_name)
        else:
            find_schema([path], self.options)

    @cached_property
    def _first_footer(self) -> Mapping[str, str]:
        return footer_columns(self.paths[0])

    def declarable(self, path: FilePath, error: Exception) -> str | None:
        """Return source arguments that would accept the misfit file and all earlier files, or None."""
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


def _with_malformed(rows: Iterable[Any], malformed: list[MalformedRow]) -> Iterator[Any]:
    """Yield the rows, including malformed rows found during the read."""
    for row in rows:
        yield from malformed
        malformed.clear()
        yield row
    yield from malformed


def _valid_text(rows: DataFrame) -> DataFrame:
    """Add a check to a query over text files. It fails on invalid UTF-8, which Spark would accept."""
    (name,) = rows.columns
    is_valid = F.is_valid_utf8(F.col(column_name(name)))
    problem = F.when(~is_valid, F.lit(f"{REFUSED_VALUE}bytes that are not UTF-8"))
    return rows.where(fails(problem))


def _in_spark(text: str, kind: ColumnType) -> Column:
    """Return a Spark column with the value of a text.

    :raises ValueError: the text is not of this type.
    """
    value = kind.of_text(text)
    if kind.ddl == "STRING":
        return F.lit(text)
    # Write times in ISO format with their time zone. Sessions would interpret a time without a zone
    # in their own time zone.
    return F.lit(value.isoformat() if isinstance(value, date) else str(value)).cast(kind.ddl)


def all_files(parts: Sequence[BatchFiles]) -> BatchFiles:
    """Merge the files of several folders into one object, with the names but not the values of the folder columns."""
    return replace(
        parts[0],
        paths=[path for files in parts for path in files.paths],
        for_spark=[file for files in parts for file in files.for_spark],
        named={name: None for files in parts for name in files.named},
        contents={path: each for files in parts for path, each in files.contents.items()},
    )


# --- executors ----------------------------------------------------------------------------------------------------
# Spark's executors read the files of a batch, one per Spark task, with the same code as a single
# process.


# Matches a query's error if the executors' Python lacks a package.
_LACKING = re.compile(
    r"airflow_tx/.*No module named '([\w.]+)|No module named '(airflow_tx|pyarrow)|\[PACKAGE_NOT_INSTALLED\]",
    re.DOTALL,
)


class ReadByExecutors:
    """Reads the files of a batch in Spark's executors.

    :param parts: the files of each folder.
    :param schema: columns of all files, from `BatchFiles.arrow_schema`.
    :param asked: requested columns of the DataFrame.
    """

    def __init__(self, parts: Sequence[BatchFiles], schema: pa.Schema, asked: pa.Schema) -> None:
        self._files = [(files, path) for files in parts for path in files.paths]
        self._schema = schema
        self._asked = asked
        # The text that marks an error. It is random, so that no value of a row can contain it.
        self._mark = f"airflow_tx {uuid.uuid4().hex}: "

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return a DataFrame of the rows."""
        from pyspark.sql.pandas.types import from_arrow_schema

        told = (self._files, self._schema, self._asked.names, self._mark)

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from read_in_executor(told, numbers)

        count = len(self._files)
        schema = from_arrow_schema(self._asked, prefer_timestamp_ntz=True)
        return spark.range(0, count, 1, count).mapInArrow(read, schema)

    def cause(self, error: Exception) -> tuple[BatchFiles, FilePath, Exception] | None:
        """Return the file and the error that an executor found, or None if the query's error has another cause."""
        text = str(error)
        if (at := text.find(self._mark)) < 0:
            return None
        number, kind, what = json.JSONDecoder().raw_decode(text, at + len(self._mark))[0]
        return (*self._files[number], _MET[kind](*what))


_MET: Mapping[str, type[Exception]] = {
    each.__name__: each for each in (Misfit, UnfitText, OtherContent, OSError, ValueError)
}


def read_in_executor(told: Any, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the files with these numbers in an executor.

    The argument `told` contains the files, the schema, the requested column names, and the text that marks an error.
    """
    listed, schema, names, mark = told
    for number in (each for batch in numbers for each in batch.column(0).to_pylist()):
        files, path = listed[number]
        try:
            for batch in files.batches(path, schema, []):
                yield batch.select(names)
        except (OSError, ValueError, OtherContent) as error:
            kind = next(name for name, each in _MET.items() if isinstance(error, each))
            what: list[Any] = [str(error)]
            if isinstance(error, UnfitText):
                what += [error.column if isinstance(error, Misfit) else error.reason, error.place]
            if isinstance(error, OtherContent):
                what = [error.found]
            raise RuntimeError(mark + json.dumps([number, kind, what])) from None


def lacking_in_executors(error: Exception) -> str | None:
    """Return the package that the executors' Python lacks, from a query's error, or None if none is missing."""
    found = _LACKING.search(str(error))
    return (found[1] or found[2] or "pyarrow") if found else None


# --- schema -------------------------------------------------------------------------------------------------------


def _argument(schema: str | None) -> str:
    if schema is None or len(schema) <= LONGEST_SHOWN:
        return f"schema={schema!r}"
    return f"schema={schema[:LONGEST_SHOWN]!r}... with all {len(columns_of(schema))} columns"


def _columns(schema: str | None) -> Mapping[str, ColumnType] | None:
    """Return the columns of a schema, or None if there is no schema or Python lacks one of its types."""
    with suppress(ValueError):
        return columns_of(schema) if schema else None
    return None


def declared_types(file_format: str, schema: str | None) -> dict[str, Any] | None:
    """Return the Arrow types of the columns of files.

    Return None if no schema is declared, or only Spark has one of the types.
    """
    if file_format == "text":
        schema = schema or "value STRING"
    with suppress(ValueError):
        read = nested_columns_of if file_format == "json" else columns_of
        return arrow_types_of(read(schema)) if schema else None
    return None


def recorded_schema(
    storage: Storage, options: Mapping[str, Any], positions: Iterable[Any], metadata: Iterable[Any]
) -> dict[str, str] | None:
    """Return the schema of csv files, from a position or inferred from the files of this batch.

    A position also has a digest of the options, since other options may lead to another schema.

    :param positions: position in each folder before the batch.
    :param metadata: metadata of the batch, for each folder.
    :return: the schema, or None if it cannot be inferred here.
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


# --- arguments ----------------------------------------------------------------------------------------------------


def no_rule(file_format: str, schema: str | None) -> str | None:
    """Return a remedy if a schema has a constraint that no reader checks, or None if it has none."""
    if says_not_null(schema):
        return (
            'Leave out NOT NULL, and check the output: check("ids", output, rows="id IS NOT NULL").'
        )
    if file_format == "parquet" and schema is not None:
        with suppress(ValueError):
            for name, kind in columns_of(schema).items():
                if kind.ddl == "STRING" and kind not in COLUMN_TYPES.values():
                    return (
                        f"No reader checks the length of {name} in Parquet files. Make it STRING."
                    )
    return None


def no_missing_columns(
    how: str, file_format: str, options: Mapping[str, Any], schema: str | None
) -> str | None:
    """Return a remedy if the argument `missing_columns` is unusable, or None if it is usable."""
    if how != "null":
        return "Use 'refuse' or 'null'."
    if file_format == "json":
        return "Leave it out: with a schema, a field that a JSON object lacks is NULL."
    if file_format != "csv":
        return "Leave it out: it is for csv files."
    if schema is None:
        return "Declare the columns, such as schema='day INT, carrier STRING'."
    try:
        columns_of(schema)
        written = CsvFormat.of(reader_options("csv", options))
    except ValueError as error:
        return f"Leave it out: {error}."
    return None if written.header else "Leave it out: the files have no header."


def no_own_reader(file_format: str, options: Mapping[str, Any], schema: str | None) -> str:
    """Return a remedy if the package's own readers cannot read the files, or "" if they can.

    Only these readers can reject rows, or run in executors.
    """
    if file_format not in ("csv", "json"):
        return "Leave it out: it is for csv and json files."
    if file_format == "json" and schema is None:
        return "Declare the columns, such as schema='day INT, carrier STRING'."
    try:
        check_options(file_format, options)
        if schema is not None:
            (columns_of if file_format == "csv" else nested_columns_of)(schema)
    except ValueError as error:
        return f"Leave it out: {error}."
    return ""


def no_executors(
    file_format: str,
    options: Mapping[str, Any],
    schema: str | None,
    *,
    read_by: str,
    conn_id: str | None,
    rejects: bool,
) -> str:
    """Return a remedy if Spark's executors cannot read the files, or "" if they can."""
    if read_by != "executors":
        return "Use 'client' or 'executors'."
    if conn_id is not None:
        return "Leave it out: executors have no Airflow connections."
    if rejects:
        return "Leave out read_by or malformed: only the client can keep rejected rows."
    return no_own_reader(file_format, options, schema)
