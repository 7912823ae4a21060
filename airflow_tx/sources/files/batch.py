"""The files of one batch: their rows, as record batches, as dicts or by Spark, and the schema they are read with."""

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
# Rows of a file as Python dicts, for tasks that run without Spark; the same options and schema as Spark's.


def check_options(file_format: str, options: Mapping[str, Any]) -> None:
    """Check that files are read alike by Python and Spark; ValueError: an option is only known to Spark."""
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
            typed_batch(batch, _for_spark(batch.schema), first)  # refuses what arrow() refuses
            first += batch.num_rows
            yield from (columns | row for row in batch.to_pylist(maps_as_pydicts="strict"))


def parquet_schema(path: FilePath) -> pa.Schema:
    """Read the columns of a Parquet file, with the types that Spark has for them."""
    with path.open("rb") as file:
        return _for_spark(read_schema(cast("BinaryIO", file)))


def _for_spark(schema: pa.Schema) -> pa.Schema:
    unsigned = pa.decimal128(20, 0)
    return pa.schema([pa.field(each.name, plain_type(each.type, unsigned)) for each in schema])


def check_declared(path: FilePath, schema: str) -> None:
    """Check the columns of a Parquet file against the declared columns; it may have others, and lack some.

    :raises Misfit: one is of a type that Spark would convert or refuse, or has a name in other letters.
    """
    with path.open("rb") as file:
        found = {field.name: str(field.type) for field in read_schema(cast("BinaryIO", file))}
    spelled = {name.lower(): name for name in found}
    for name, kind in columns_of(schema).items():
        if name in found:
            if found[name] not in (kind.arrow, *kind.takes):
                raise Misfit(f"column {name} is {found[name]}, and {kind.ddl} in the schema")
        elif name.lower() in spelled:
            raise Misfit(f"column {spelled[name.lower()]} is called {name} in the schema")


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


_ONLY_SPARKS = re.compile(r" (\S+) \((Geometry|Geography|Variant|Float16)\b")
"""In the schema of a file: types of which pyarrow gives the bytes that store them, or that Spark lacks."""


# Kinds of columns that pyarrow reads.
_SPARK_LACKS = re.compile(
    r"UUID|Interval|Undefined|Time\((?!isAdjustedToUTC=false, timeUnit=micro)"
    r"|Decimal\(precision=(?:39|[4-9]\d|\d{3})"
)
# Types that Arrow notes in a file for itself; to Spark they are numbers.
_ONLY_ARROWS = re.compile(r"duration|extension<arrow\.bool8")


def footer_columns(path: FilePath) -> dict[str, str]:
    """Read the columns of a Parquet file and their types.

    :raises ValueError: it has a type that Spark or pyarrow does not know, or that means another value in one of them;
        or a name twice.
    """
    with path.open("rb") as file:
        opened = pq.ParquetFile(file)
        if (other := _ONLY_SPARKS.search(str(opened.schema))) is not None:
            raise Misfit(
                f"column {other[1]} is {other[2].upper()}, which is another value in Spark than in a @task"
            )
        for column in map(opened.schema.column, range(len(opened.schema))):
            kind = str(column.logical_type)
            if "timeUnit=nanoseconds" in kind:
                raise Misfit(f"column {column.path} has nanoseconds, which Spark does not read")
            if _SPARK_LACKS.match(kind):
                raise Misfit(f"column {column.path} is {kind}, which Spark does not read")
        for field in opened.schema_arrow:
            if _ONLY_ARROWS.search(str(field.type)):
                raise Misfit(f"column {field.name} is {field.type}, which is a number in Spark")
        check_names(opened.schema_arrow.names)
        return {field.name: _one_name(str(field.type)) for field in opened.schema_arrow}


_PER_DAY = {
    "Date": 1,
    "milliseconds": 86_400_000,
    "microseconds": 86_400_000_000,
}
_YEARS = [each.toordinal() - date(1970, 1, 1).toordinal() for each in (date.min, date.max)]


def _is_beyond(path: FilePath) -> bool:
    """Ask whether the statistics of a Parquet file have a day or moment that is not in the years 1 to 9999."""
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
    """Return the same name for types that differ only in how Arrow keeps them in memory."""
    return re.sub(r"\b(?:large_)?(string|binary|list)(?:_view)?\b", r"\1", kind)


# --- batch files --------------------------------------------------------------------------------------------------
# The files of one batch, as its rows are read from them: by Python, or by Spark; and with which schema.


# Read strictly: by Spark's own default a damaged row turns into nulls, and a header is not checked.
# An option that the user gives wins.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "csv": {"header": True, "enforceSchema": False, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


_NUMBERED = "parquet.field.id"
"""The number of a column in the files that Spark writes. A session with Delta reads by it, and not by the name."""
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


# Bytes of a batch whose rows a task reads one by one: Arrow takes longer to be loaded.
_SMALL = 1024 * 1024


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, and how to read them.

    :param for_spark: the same files, as Spark names them.
    :param declared: the schema that the source has been given; `found`: the schema of the first files of its topology.
    :param by_name: the header of a csv file says which column a field has; a column that it lacks is NULL.
    :param rejects: whether rows that do not fit are given as malformed ones.
    :param named: the columns that the names of its folders spell. A file may have the same value in one of its own.
    :param contents: what the files must have that are checked while they are read.
    :param size: of all files, in bytes.
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
        """Read the rows of one of them; malformed ones, too, if they are wanted.

        :raises ValueError: they cannot be read.
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
            raise UnfitText(f"format {self.format!r} is only known to Spark")

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
        """Whether they are csv or JSON files, with no option that only Spark knows."""
        return self._plain_json or self._written is not None

    @cached_property
    def in_blocks(self) -> bool:
        """Whether they are read block by block: csv or JSON files with columns of known types."""
        return self.has_reader and bool(self._kinds)

    @cached_property
    def _kinds(self) -> Mapping[str, ColumnType]:
        """The columns of the schema, if Python has their types."""
        with suppress(ValueError):
            return self._declared_kinds()
        return {}

    def _declared_kinds(self) -> Mapping[str, ColumnType]:
        read: Callable[[str], Mapping[str, ColumnType]] = columns_of
        if self.format == "json":
            read = nested_columns_of if self.declared else found_columns_of
        return read(self.schema) if self.schema else {}

    def _with_named(self, row: Any) -> Any:
        """Add the columns of the folders to a row."""
        for name in self.named:
            if name not in row:
                check_names([*row, name])
        return {
            **row,
            **{name: self._one_value(name, row.get(name), name in row) for name in self.named},
        }

    def _one_value(self, name: str, own: Any, has_own: bool) -> Any:
        """Give the value of a folder's column; ValueError: the file has another one."""
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
            f"column {name} is {str(own)!r:.100}, and {text!r:.100} in the name of its folder",
            place=f"column {name}",
        )

    def arrow_schema(self) -> pa.Schema:
        """Give the columns of their rows, if they are read as record batches.

        :raises ValueError: Python has no such type, or two columns are one.
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
        """Read one of them as record batches.

        :param schema: as `arrow_schema` gives it.
        :param malformed: gets the rows that do not fit, if they are wanted.
        :raises ValueError: it cannot be read. OtherContent: it has another content than the batch.
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
        """Add the columns of the folders to a record batch, and bring it to the types of a schema."""
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
        """Find the schema with which Python reads them; None: only Spark can read them.

        Spark finds the columns of JSON that no one has declared.

        :raises ValueError: a file is not what its format says.
        """
        if self._written is not None:
            return self.schema or find_schema(self.paths[:1], self.options)
        if not self._plain_json or self.schema:
            return self.schema if self._plain_json else None
        # The reader of the rows refuses a line that is no object, and names it.
        found = spark_reader(spark, "json", {**self.options, "mode": "DROPMALFORMED"})
        return found.load(list(self.for_spark)).schema.toDDL()

    def frame(self, spark: SparkSession) -> DataFrame:
        """Give their rows to Spark; ValueError: a file is not what its format says."""
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
        problem = f"{REFUSED_VALUE}column {name} is another one than {text!r:.100}, the name of its folder"
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

        :raises ValueError: it has others than its schema, or than the first file of the batch; or was cut.
        """
        check_end(path)
        if self.format == "parquet":
            if self.schema is None:
                check_footer(path, self.paths[0], self._first_footer)
            elif _columns(self.schema) is not None:
                check_declared(path, self.schema)
            if (self.schema is None or _columns(self.schema) is not None) and _is_beyond(path):
                for _ in _read_parquet(path, {}, self.schema):
                    pass  # until the value that Spark would take
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


def _with_malformed(rows: Iterable[Any], malformed: list[MalformedRow]) -> Iterator[Any]:
    """Give rows, and the malformed ones that reading them finds."""
    for row in rows:
        yield from malformed
        malformed.clear()
        yield row
    yield from malformed


def _valid_text(rows: DataFrame) -> DataFrame:
    """Let a query over text files fail at bytes that are no UTF-8, which Spark hands on."""
    (name,) = rows.columns
    is_valid = F.is_valid_utf8(F.col(column_name(name)))
    problem = F.when(~is_valid, F.lit(f"{REFUSED_VALUE}bytes that are no UTF-8"))
    return rows.where(fails(problem))


def _in_spark(text: str, kind: ColumnType) -> Column:
    """Give the value of a text to Spark; ValueError: it has none."""
    value = kind.of_text(text)
    if kind.ddl == "STRING":
        return F.lit(text)
    # Of a moment, a session would take another one, by its zone.
    return F.lit(value.isoformat() if isinstance(value, date) else str(value)).cast(kind.ddl)


def all_files(parts: Sequence[BatchFiles]) -> BatchFiles:
    """Join the files of several folders; the names of the columns that the folders spell stay."""
    return replace(
        parts[0],
        paths=[path for files in parts for path in files.paths],
        for_spark=[file for files in parts for file in files.for_spark],
        named={name: None for files in parts for name in files.named},
        contents={path: each for files in parts for path, each in files.contents.items()},
    )


# --- executors ----------------------------------------------------------------------------------------------------
# The files of a batch, read by Spark's executors: a file a task, by the same code as in one process.


# In the error of a query: what the Python of the executors has not.
_LACKING = re.compile(
    r"airflow_tx/.*No module named '([\w.]+)|No module named '(airflow_tx|pyarrow)|\[PACKAGE_NOT_INSTALLED\]",
    re.DOTALL,
)


class ReadByExecutors:
    """The files of a batch, which executors read.

    :param schema: the columns of all files, as `BatchFiles.arrow_schema` gives them; `asked`: those to give to Spark.
    """

    def __init__(self, parts: Sequence[BatchFiles], schema: pa.Schema, asked: pa.Schema) -> None:
        self._files = [(files, path) for files in parts for path in files.paths]
        self._schema = schema
        self._asked = asked
        # No value of a row can look like it.
        self._mark = f"airflow_tx {uuid.uuid4().hex}: "

    def frame(self, spark: SparkSession) -> DataFrame:
        """Give their rows to Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        told = (self._files, self._schema, self._asked.names, self._mark)

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from read_in_executor(told, numbers)

        count = len(self._files)
        schema = from_arrow_schema(self._asked, prefer_timestamp_ntz=True)
        return spark.range(0, count, 1, count).mapInArrow(read, schema)

    def cause(self, error: Exception) -> tuple[BatchFiles, FilePath, Exception] | None:
        """Find what an executor met, and in which file; None: the error is about something else."""
        text = str(error)
        if (at := text.find(self._mark)) < 0:
            return None
        number, kind, what = json.JSONDecoder().raw_decode(text, at + len(self._mark))[0]
        return (*self._files[number], _MET[kind](*what))


_MET: Mapping[str, type[Exception]] = {
    each.__name__: each for each in (Misfit, UnfitText, OtherContent, OSError, ValueError)
}


def read_in_executor(told: Any, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the files of some numbers."""
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
    """Return the package that the Python of the executors lacks, by the error of a query; None: it lacks none."""
    found = _LACKING.search(str(error))
    return (found[1] or found[2] or "pyarrow") if found else None


# --- schema -------------------------------------------------------------------------------------------------------


def _argument(schema: str | None) -> str:
    if schema is None or len(schema) <= LONGEST_SHOWN:
        return f"schema={schema!r}"
    return f"schema={schema[:LONGEST_SHOWN]!r}... with all {len(columns_of(schema))} columns"


def _columns(schema: str | None) -> Mapping[str, ColumnType] | None:
    """Return the columns of a schema whose types Python has, too."""
    with suppress(ValueError):
        return columns_of(schema) if schema else None
    return None


def declared_types(file_format: str, schema: str | None) -> dict[str, Any] | None:
    """Give the types that Arrow has for the rows of files; None: no one has declared them, or only Spark has them."""
    if file_format == "text":
        schema = schema or "value STRING"
    with suppress(ValueError):
        read = nested_columns_of if file_format == "json" else columns_of
        return arrow_types_of(read(schema)) if schema else None
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


# --- arguments ----------------------------------------------------------------------------------------------------


def no_rule(file_format: str, schema: str | None) -> str | None:
    """Say which rule of a schema no reader checks; None: it has none."""
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
    """Say why columns that a file lacks cannot be NULL; None: they can be."""
    if how != "null":
        return "Say 'refuse' or 'null'."
    if file_format == "json":
        return "Leave it out: with a schema, a field that a JSON object lacks is NULL."
    if file_format != "csv":
        return "Leave it out: it is for csv files."
    if schema is None:
        return "Give the columns, too, such as schema='day INT, carrier STRING'."
    try:
        columns_of(schema)
        written = CsvFormat.of(reader_options("csv", options))
    except ValueError as error:
        return f"Leave it out: {error}."
    return None if written.header else "Leave it out: the files have no header."


def no_own_reader(file_format: str, options: Mapping[str, Any], schema: str | None) -> str:
    """Say why rows cannot be kept aside, or read by executors; "": they can be."""
    if file_format not in ("csv", "json"):
        return "Leave it out: it is for csv and json files."
    if file_format == "json" and schema is None:
        return "Give the columns, too, such as schema='day INT, carrier STRING'."
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
    """Say why Spark's executors cannot read the files; "": they can."""
    if read_by != "executors":
        return "Say 'client' or 'executors'."
    if conn_id is not None:
        return "Leave it out: executors have no Airflow connections."
    if rejects:
        return "Leave it out, or malformed: only the client keeps rows aside."
    return no_own_reader(file_format, options, schema)
