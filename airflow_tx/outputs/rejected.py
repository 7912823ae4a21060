"""Rejected rows, an output of a task's try that has the same columns for every task."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_tx.base.rows import NoTable, dicts_of, shown_value
from airflow_tx.ledger import ASIDE, REJECTED
from airflow_tx.outputs.staging.area import Output, TryDir, refuse, write_digested
from airflow_tx.state import REJECTED_COLUMNS


def check_own_name(where: TryDir, name: str) -> None:
    """Refuse an output name that this package reserves.

    :raises StagingError: the name is reserved.
    """
    if name.startswith(ASIDE):
        remedy = "Use another name. To reject rows, call reject(rows, reason)."
        raise refuse(where, name, "this name is reserved", remedy)


def check_rejects(where: TryDir, reason: Any, *, kept: bool) -> None:
    """Refuse to reject rows if no commit would store them, or if the reason is empty.

    :param reason: a text or a Spark column. Only Spark can check the texts in a column.
    :param kept: whether the commit stores the rows that the task rejects.
    :raises StagingError: the commit would not store the rows, or the reason is empty.
    """
    if not kept:
        remedy = (
            "Set Transaction(..., rejected=DeltaTable(...)), and reject rows before the commit."
        )
        raise refuse(where, REJECTED, "the transaction has no table for rejected rows", remedy)
    if isinstance(reason, str) and not reason.strip():
        remedy = 'Explain what is wrong with the rows: reject(rows, "no amount").'
        raise refuse(where, REJECTED, f"reason = {reason!r} is empty", remedy)


def rejected_rows(where: TryDir, rows: Any, reason: str) -> list[dict[str, str]]:
    """Return rejected rows in the columns of the `rejected` table.

    :param rows: one or several dicts, texts or pandas rows, or a frame of pandas, polars or pyarrow.
    :raises StagingError: the argument has no rows, or they cannot be read now, or the reason is not a text.
    """
    problem = "the argument contains no rows"
    remedy = 'Pass dicts, texts or a frame, and a reason: reject(rows, "no amount").'
    try:
        with NoTable.of_libraries():
            row = _one_row(rows)
            found = map(_a_row, dicts_of(rows)) if row is None else [row]
            task = str(where.task)
            return [row_aside(task, reason, "", content_of_row(row)) for row in found]
    except NoTable as error:
        raise refuse(where, REJECTED, problem, remedy, error) from error
    except (AttributeError, TypeError) as error:
        raise refuse(where, REJECTED, f"{problem} ({error})", remedy) from None


def _one_row(given: Any) -> Any:
    """Return a single row as a dict, text or bytes. A pandas row, a named tuple or a Spark Row is also accepted.

    :return: the row, or None if the argument is not a single row. It may be several rows.
    """
    if isinstance(given, (Mapping, str, bytes)):
        return given
    if isinstance(given, tuple) and hasattr(given, "_asdict"):
        return given._asdict()
    if isinstance(given, tuple) and hasattr(given, "asDict"):
        return given.asDict()
    if not hasattr(given, "to_frame") or not hasattr(given, "isna"):
        return None
    if other := [name for name in given.index if not isinstance(name, str)]:
        raise TypeError(f"a Series with the name {other[0]!r} is a column")
    pairs = zip(given.index, given.tolist(), given.isna(), strict=True)
    return {name: None if missing else value for name, value, missing in pairs}


def _a_row(given: Any) -> Any:
    row = _one_row(given)
    if row is None:
        raise TypeError(f"{shown_value(given)} is not a row")
    return row


def row_aside(task: str, reason: str, where: str, content: str) -> dict[str, str]:
    """Return a rejected or malformed row in the columns of the `rejected` table.

    :param task: the task that has rejected the row, or "" for a malformed row.
    :param reason: the reason for the rejection.
    :param where: the location of the row in its source, or "" if it is unknown.
    :param content: the row, as `content_of_row` writes it.
    """
    values = map(_plain, (task, reason, where, content))
    return dict(zip(REJECTED_COLUMNS, values, strict=True))


def content_of_row(row: Any) -> str:
    """Return a row as JSON. Text is returned unchanged, and bytes that are not UTF-8 become base64."""
    if isinstance(row, str):
        return row
    if isinstance(row, bytes):
        return _text(row)
    if isinstance(row, Mapping):
        row = {_text(name) if isinstance(name, bytes) else name: row[name] for name in row}
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_as_json)
    except ValueError:  # JSON has no NaN, so it becomes a text, as in Spark.
        found = json.loads(json.dumps(row, default=_as_json), parse_constant=str)
        return json.dumps(found, ensure_ascii=False)


def _text(value: bytes) -> str:
    """Convert bytes to text. Bytes that are not UTF-8 become base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # a numpy value
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return _text(value) if isinstance(value, bytes) else str(value)


def _plain(text: str) -> str:
    """Escape characters that a table cannot store: lone surrogates, and NUL, which PostgreSQL refuses."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def stage_rejected(where: TryDir, name: str, rows: Iterable[Mapping[str, str]]) -> Output:
    """Write rejected rows to the folder of a try."""
    import pyarrow as pa  # type: ignore[import-untyped]

    schema = pa.schema([(column, pa.string()) for column in REJECTED_COLUMNS])
    return write_digested(where, name, pa.Table.from_pylist(list(rows), schema))
