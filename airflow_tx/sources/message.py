"""Parse messages from queues and logs. A message is a text, or a JSON object with declared columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import (
    ColumnType,
    NotProven,
    UnfitText,
    ddl_of,
    nested_columns_of,
    object_values,
    objects_batch,
    parsed_object,
    reader_of_dicts,
    says_not_null,
)
from airflow_tx.outputs import content_of_row
from airflow_tx.sources.api import MalformedRow, Source, without_malformed

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


def parsed_message(raw: bytes, columns: Mapping[str, ColumnType] | None) -> Any:
    """Parse a message.

    :param raw: bytes of the message.
    :param columns: columns of a JSON object, or None for a text.
    :raises ValueError: the message does not fit its columns. The error text gives the reason.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        message = f"it is not UTF-8 ({error.reason} at byte {error.start})"
        raise UnfitText(message, reason="it is not UTF-8") from None
    return text if columns is None else object_values(parsed_object(text, exact=True), columns)


def message_column(
    raws: Sequence[bytes | None], columns: Mapping[str, ColumnType] | None, to: pa.DataType
) -> pa.Array:
    """Parse many messages with Arrow in one call.

    :param raws: bytes of each message, or None for a message without content.
    :param columns: columns of a JSON object, or None for a text.
    :param to: type of the Arrow array.
    :raises NotProven: `parsed_message` may read a message differently, or refuse it.
    """
    given = pa.array(raws, pa.binary())
    if columns is None:
        try:
            return given.cast(to)
        except pa.ArrowException as error:
            raise NotProven(str(error)) from None
    there = [raw for raw in raws if raw is not None]
    block = b"\n".join(there)
    if block.count(b"\n") != max(len(there) - 1, 0):
        raise NotProven("a message with several lines")
    found = objects_batch(block, columns).to_struct_array()
    if len(found) != len(there):
        raise NotProven("an empty message")
    if given.null_count:
        at = pc.cumulative_sum(given.is_valid().cast(pa.int64()))
        found = found.take(pc.if_else(given.is_valid(), pc.subtract(at, 1), None))
    return found


def message_batches(
    make: Callable[[], pa.RecordBatch],
    rows: Iterable[Any],
    types: Mapping[str, pa.DataType],
    malformed: list[MalformedRow],
) -> Iterable[pa.RecordBatch]:
    """Build a record batch with Arrow. If Arrow may read the messages differently, use rows parsed in Python.

    :param make: function that builds the batch with Arrow, or raises NotProven.
    :param rows: rows parsed in Python, as a fallback for NotProven.
    :param malformed: list to which malformed rows are added.
    """
    try:
        return [make()]
    except NotProven:
        read: Iterable[pa.RecordBatch] = reader_of_dicts(without_malformed(rows, malformed), types)
        return read


def malformed_message(raw: Any, error: ValueError, where: str) -> MalformedRow:
    """Create the malformed row from a message that does not fit its columns.

    :param raw: bytes of the message, or a mapping from fields to bytes.
    :param error: error that `parsed_message` raised.
    :param where: place of the message in its source.
    """
    # The reason omits the value, since rows with the same reason are counted together.
    return MalformedRow(content_of_row(raw), UnfitText.reason_of(error), where)


def declared_columns(
    source: Source, option: str, schema: str | None
) -> dict[str, ColumnType] | None:
    """Return the declared columns of JSON messages. Return None if the messages are texts.

    :param option: name of the argument that declares the columns, for the error.
    :param schema: Spark DDL, or None for texts.
    :raises SourceError: JSON cannot represent the type of a column, or the schema has NOT NULL.
    """
    if schema is None:
        return None
    if says_not_null(schema):
        remedy = "Leave it out, and check the output: check(..., rows=)."
        raise source.refused(f"{option} declares NOT NULL, which no reader checks", remedy)
    try:
        return nested_columns_of(schema)
    except ValueError as error:
        raise source.refused(f"{option}: {error}", f"Correct {option}, or leave it out.") from None


def message_ddl(columns: Mapping[str, ColumnType]) -> str:
    """Return the Spark type of a message that is a JSON object."""
    return f"STRUCT<{ddl_of({name: kind.ddl for name, kind in columns.items()})}>"
