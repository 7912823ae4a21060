"""The conversions of `rows.types` as expressions of Spark. A text that is refused fails the query."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_tx.rows.types import (
    DATE,
    INFINITE,
    ZONE,
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
    from pyspark.sql import Column, DataFrame, SparkSession

REFUSED_VALUE = "airflow_tx: no such value: "
"""What begins the message of a query that found a value which is refused."""
_SHOWN = 1000
_CLOCK = "[0-9]{2}:[0-9]{2}"
# The first moment of year 1 and the last one of year 9999, in microseconds since 1970.
_FIRST = -62_135_596_800_000_000
_LAST = 253_402_300_799_999_999


def typed_texts(
    texts: DataFrame, columns: Mapping[str, ColumnType], typed: Collection[str] = ()
) -> DataFrame:
    """Give columns of texts their types; the query fails at a text that is no value of its column's type.

    The query checks every column, also one that it does not use. Its error shows the row, without its free texts: Java
    does not compile a method of more than 8,000 bytes, and a message for each column makes one.

    :param typed: the columns that have their types already, and that a reader checks only if it has to give them.
    """
    from pyspark.sql import functions as F

    if all(kind == StringType("STRING") for kind in columns.values()):
        return texts
    values: list[Column] = []
    checked: list[Column] = []
    problems: list[Column] = []
    for name, kind in columns.items():
        text = F.col(column_name(name))
        value, fits = (text, None) if name in typed else read_text(text, kind)
        values.append(value.alias(name))
        if fits is not None:
            checked.append(text)
            problems.append(F.when(text.isNotNull() & ~fits, F.lit(0)))
    if problems:
        row = F.substring(F.to_json(F.struct(*checked)), 1, _SHOWN)
        refused = F.raise_error(F.concat(F.lit(f"{REFUSED_VALUE}in the row "), row)).cast("boolean")
        texts = texts.where(F.when(F.coalesce(*problems).isNull(), F.lit(True)).otherwise(refused))
    if typed:
        # True of each row. The optimizer does not know that, so that it asks the reader for all of them.
        columns_read = F.xxhash64(*(F.col(column_name(name)) for name in typed))
        texts = texts.where(columns_read.bitwiseAND(F.lit(0)) == 0)
    return texts.select(*values)


def with_columns(rows: DataFrame, found: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """Give rows these columns, in this order; a column that they lack is NULL.

    :param found: the columns of the rows, which a server would be asked for.
    :param columns: and their types.
    """
    from pyspark.sql import functions as F

    if list(found) == list(columns):
        return rows
    known = set(found)
    return rows.select(
        *(
            F.col(column_name(name)) if name in known else F.lit(None).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )


def checked_lines(
    rows: DataFrame,
    spark: SparkSession,
    files: Sequence[str],
    *,
    quote: str,
    utf8: bool,
    whole: bool,
) -> DataFrame:
    """Let a query over csv files fail at a line that Spark's own reader takes for something else.

    It reads the files once more, as lines. A value does not show that its quote was not closed, or that its bytes were
    no UTF-8.

    :param files: as Spark names them.
    :param quote: "" if the files have none.
    :param whole: whether a value may have several lines, so that the quotes of a whole file are counted.
    """
    from pyspark.sql import functions as F

    line = F.col("value")
    problems = []
    if quote:
        count = F.length(line) - F.length(F.replace(line, F.lit(quote), F.lit("")))
        problems.append(F.when(count % 2 == 1, F.lit(f"{REFUSED_VALUE}a quote is not closed")))
        problems.append(
            F.when(
                line.contains(quote) & line.rlike(spaced(quote)),
                F.lit(f"{REFUSED_VALUE}spaces behind a quote"),
            )
        )
    if utf8:
        problems.append(_broken_utf8(line))
    if not problems:
        return rows
    lines = spark.read.format("text").option("wholetext", whole).load(list(files))
    none = lines.where(fails(F.coalesce(*problems), otherwise=False))
    first = rows.schema.fields[0]
    null = F.lit(None).cast(first.dataType).alias(first.name)
    # Spark adds the other columns: for a wide file, thousands of expressions made here take minutes.
    return rows.unionByName(none.select(null), allowMissingColumns=True)


def valid_text(rows: DataFrame) -> DataFrame:
    """Let a query over text files fail at bytes that are no UTF-8, which Spark hands on."""
    from pyspark.sql import functions as F

    (name,) = rows.columns
    return rows.where(fails(_broken_utf8(F.col(column_name(name))), otherwise=True))


def spaced(quote: str) -> str:
    """Return the pattern of spaces between a closing quote and the next separator, which readers read differently."""
    mark = f"\\x{ord(quote):02x}"
    return rf"(?m)(?<!{mark}){mark}[ \t]+(\W|$)"


def column_name(name: str) -> str:
    """Quote the name of a column."""
    return f"`{name.replace('`', '``')}`"


def _broken_utf8(line: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(~F.is_valid_utf8(line), F.lit(f"{REFUSED_VALUE}bytes that are no UTF-8"))


def fails(problem: Column, *, otherwise: bool) -> Column:
    """Let a query fail at a row that has a problem; of other rows the answer is `otherwise`."""
    from pyspark.sql import functions as F

    return F.when(problem.isNotNull(), F.raise_error(problem).cast("boolean")).otherwise(
        F.lit(otherwise)
    )


def read_text(text: Column, kind: ColumnType) -> tuple[Column, Column | None]:
    """Return the value of a text, and whether it is one; None: each text is."""
    from pyspark.sql import functions as F

    if isinstance(kind, StringType):
        return text, None if kind.longest is None else F.length(text) <= kind.longest
    if isinstance(kind, BooleanType):
        word = F.lower(text)
        return word == "true", word.isin("true", "false")
    if isinstance(kind, TimestampType):
        return _moment(text, kind)
    value = text.try_cast(kind.ddl)
    fits = value.isNotNull()
    if isinstance(kind, IntegerType):
        fits &= ~text.contains("\x7f")  # Spark takes it for a blank
    elif isinstance(kind, FloatType):
        word = F.lower(F.trim(text))
        named = word.isin("nan", *INFINITE)
        fits &= named | ((F.abs(value) < float("inf")) & ~word.contains("x"))
    elif isinstance(kind, DecimalType):
        fits &= text.rlike(rf"\A(?=.*[0-9])[+-]?[0-9]*(?:\.[0-9]{{0,{kind.scale}}}0*)?\z")
    elif isinstance(kind, DateType):
        fits &= text.rlike(rf"\A(?!0000){DATE}\z")
    return value, fits


def _moment(text: Column, kind: TimestampType) -> tuple[Column, Column]:
    from pyspark.sql import functions as F

    zone = f"{ZONE}?" if kind.zoned else ""
    utc = "Z?" if kind.zoned else ""
    # Almost every time is written like this. The checks of the other forms take several times as long.
    usual = text.rlike(rf"\A(?!0000){DATE}[T ]{_CLOCK}:[0-9]{{2}}{utc}\z")
    any_form = text.rlike(
        rf"\A(?!0000){DATE}(?:[T ]{_CLOCK}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?{zone})?\z"
    )
    # Spark takes no zone behind minutes, or behind a date.
    with_time = F.regexp_replace(text, rf"\A({DATE})\z", "$1 00:00:00")
    with_seconds = F.regexp_replace(with_time, rf"\A({DATE}[T ]{_CLOCK})(?={zone}\z)", "$1:00")
    full = F.when(usual, text).otherwise(with_seconds)
    if not kind.zoned:
        value = full.try_cast(kind.ddl)
        return value, (usual | any_form) & value.isNotNull()
    has_zone = full.endswith("Z") | F.substring(full, -6, 1).isin("+", "-")
    value = F.when(has_zone, full).otherwise(F.concat(full, F.lit("Z"))).try_cast(kind.ddl)
    # One comparison, since Spark would cast the text once for each.
    within = F.abs(2 * F.unix_micros(value) - (_FIRST + _LAST)) <= _LAST - _FIRST
    return value, (usual | any_form) & F.coalesce(within, F.lit(False))
