"""Messages of queues and logs as rows: a text or the columns of a JSON object each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.base.rows import (
    ColumnType,
    ddl_of,
    nested_columns_of,
    object_values,
    parsed_object,
    python_frame,
    says_not_null,
)
from airflow_tx.outputs import content_of_row
from airflow_tx.sources.api import MalformedRow

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from airflow_tx.sources.api import Source


# --- message ------------------------------------------------------------------------------------------------------


def parsed_message(raw: bytes, columns: Mapping[str, ColumnType] | None) -> Any:
    """Parse a message.

    :param columns: of the JSON object that it is; None: it is a text.
    :raises ValueError: it is not; why, in words.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None
    return text if columns is None else object_values(parsed_object(text, exact=True), columns)


def malformed_message(raw: Any, error: ValueError, where: str) -> MalformedRow:
    """Describe a message that is not of its columns.

    :param raw: its bytes, or fields of bytes.
    :param error: as `parsed_message` raised it.
    """
    column, found, rest = str(error).partition(" = ")
    # Without the value, and without the place in the message: rows with one reason are counted together.
    reason = f"{column}: {rest.rpartition(': ')[2]}" if found else column.partition(" (")[0]
    return MalformedRow(content_of_row(raw), reason, where)


def declared_columns(
    source: Source, option: str, schema: str | None
) -> dict[str, ColumnType] | None:
    """Read the columns of messages that are JSON objects; None: they are texts.

    :param option: the argument of the source that declares them.
    :raises SourceError: one has a type that no JSON value has.
    """
    if schema is None:
        return None
    if says_not_null(schema):
        remedy = "Leave it out, and check the output: check(..., rows=)."
        raise source.refused(f"{option} says NOT NULL, which no reader checks", remedy)
    try:
        return nested_columns_of(schema)
    except ValueError as error:
        raise source.refused(f"{option}: {error}", f"Correct {option}, or leave it out.") from None


def message_ddl(columns: Mapping[str, ColumnType]) -> str:
    """Write the type of a message that is a JSON object."""
    return f"STRUCT<{ddl_of({name: kind.ddl for name, kind in columns.items()})}>"


def spark_and_arrow(spark: SparkSession, ddl: str) -> tuple[StructType, pa.Schema]:
    """Read the columns of rows, as Spark and as Arrow name them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    struct = python_frame(spark, [], ddl).schema
    return struct, to_arrow_schema(struct, timezone="UTC")


# --- row numbers --------------------------------------------------------------------------------------------------
# A row that a person names by its number.


def is_number_within(what: str, start: int, end: int) -> bool:
    """Ask whether a person typed a number from `start` on and below `end`."""
    return what.isdecimal() and start <= int(what) < end


def is_number_below(what: str, end: int) -> bool | None:
    """Ask whether a person typed a number below `end`; None: it is no number."""
    return int(what) < end if what.isdecimal() else None
