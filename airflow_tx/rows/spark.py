"""The conversions of `rows.types` as expressions of Spark. A text that is refused fails the query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_tx.rows.types import (
    DATE,
    INFINITE,
    MOMENT,
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
_SHOWN = 80


def typed_texts(texts: DataFrame, columns: Mapping[str, ColumnType]) -> DataFrame:
    """Give columns of texts their types; the query fails at a text that is no value of its column's type.

    The query checks every column, also one that it does not use.
    """
    from pyspark.sql import functions as F

    if all(kind == StringType("STRING") for kind in columns.values()):
        return texts
    values: list[Column] = []
    problems: list[Column] = []
    for name, kind in columns.items():
        text = F.col(column_name(name))
        value, fits = read_text(text, kind)
        values.append(value.alias(name))
        if fits is not None:
            found = F.concat(
                F.lit(f"{REFUSED_VALUE}{name} {kind.ddl} = "), F.substring(text, 1, _SHOWN)
            )
            problems.append(F.when(text.isNotNull() & ~fits, found))
    if problems:
        texts = texts.where(fails(F.coalesce(*problems), otherwise=True))
    return texts.select(*values)


def with_columns(texts: DataFrame, names: Iterable[str]) -> DataFrame:
    """Give texts these columns, in this order; a column that they lack is NULL."""
    from pyspark.sql import functions as F

    wanted = list(names)
    if texts.columns == wanted:
        return texts
    found = set(texts.columns)
    return texts.select(
        *(
            F.col(column_name(name)) if name in found else F.lit(None).cast("string").alias(name)
            for name in wanted
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

    form = rf"\A(?!0000){MOMENT}\z"
    plain_form = text.rlike(form)
    # Spark takes no zone behind minutes.
    text = F.regexp_replace(text, rf"\A({DATE}[T ][0-9]{{2}}:[0-9]{{2}})(?={ZONE}?\z)", "$1:00")
    if not kind.zoned:
        value = text.try_cast(kind.ddl)
        return value, value.isNotNull() & plain_form
    has_zone = text.rlike(rf":.*{ZONE}\z")
    in_utc = F.when(text.contains(":"), F.concat(text, F.lit("Z"))).otherwise(
        F.concat(text, F.lit(" 00:00:00Z"))
    )
    value = F.when(has_zone, text).otherwise(in_utc).try_cast(kind.ddl)
    within = value.between(
        F.lit("0001-01-01 00:00:00Z").cast("timestamp"),
        F.lit("9999-12-31 23:59:59.999999Z").cast("timestamp"),
    )
    alone = rf"\A(?!0000){DATE}[ T][0-9:.]+{ZONE}\z"
    plain = F.when(has_zone, text.rlike(alone) & text.rlike(rf"\A{MOMENT}{ZONE}\z")).otherwise(
        plain_form
    )
    return value, value.isNotNull() & within & plain
