"""Messages of queues and logs as rows: a text or a JSON object each, and rows as Arrow for Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.errors import FailedBatch


def parsed_message(raw: bytes, *, objects: bool) -> Any:
    """Parse a message.

    :param objects: whether it is a JSON object, rather than a text.
    :raises ValueError: it is not; why, in words.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None
    if not objects:
        return text
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is a JSON {type(found).__name__}, not an object")
    return found


def arrow_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: pa.Schema,
    unreadable: Callable[[Mapping[str, Any], str], FailedBatch],
) -> pa.RecordBatch:
    """Make one record batch of rows.

    :param unreadable: makes the error for a row that does not fit the columns.
    """
    import pyarrow as pa

    misfits = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        return pa.RecordBatch.from_pylist(rows, schema=columns)
    except misfits:
        for row in rows:
            try:
                pa.RecordBatch.from_pylist([row], schema=columns)
            except misfits as error:
                raise unreadable(row, f"it does not fit the schema ({error})") from None
        raise
