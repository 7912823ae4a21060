"""Rows of Python tasks as files of a table: one Parquet file a partition, written by the committer."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StateError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.state.lake.delta import unreached
from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.footer import read_footer
from airflow_tx.state.lake.manifest import TXID, staged_folder
from airflow_tx.state.lake.partitions import check_columns, folder_of, text_of
from airflow_tx.state.lake.schema import Misfit, of_arrow, shown_type

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_Row = Mapping[str, Any]
_DECIMAL = "decimal(38,18)"
"""The type that Spark gives to a Decimal of Python, too."""
_FLOATING = ("double", "float")
_ARROW = {
    "binary": "binary",
    "boolean": "bool",
    "byte": "int8",
    "date": "date32",
    "double": "double",
    "float": "float",
    "integer": "int32",
    "long": "int64",
    "short": "int16",
    "string": "string",
}


def write_python_rows(
    state: Any, rows: Sequence[_Row], attempt: TransactionAttempt
) -> list[dict[str, Any]]:
    """Write rows into the folder of a table; returns the entries of their files.

    A column takes the type that it has in the table.

    :param state: the table.
    :raises StateError: the rows do not fit it, or its folder cannot be written.
    """
    options = state.options()
    try:
        table = as_arrow(rows, state.table_schema())
        fields = of_arrow(table.schema)["fields"]
        check_columns(fields, state.partition_by)
        files = Folder(state.uri, options)
        # Another try of the committer writes into another folder.
        folder = staged_folder(attempt, uuid.uuid4().hex)
        own = [each for each in fields if each["name"] in state.partition_by]
        return [
            _write(files, f"{folder}/{folder_of(partition)}", partition, part, own)
            for partition, part in _parts(table, state.partition_by, attempt.txid)
        ]
    except Misfit as error:
        remedy = "Change what the task returns, then clear it."
        raise StateError(state=state.name, problem=str(error), remedy=remedy) from None
    except OSError as error:
        raise unreached(error, state=state.name, uri=state.uri, options=options) from None


def as_arrow(rows: Sequence[_Row], schema: Mapping[str, Any] | None) -> pa.Table:
    """Make an Arrow table of rows.

    :param schema: Spark's schema of the table that they are for; None: there is no table yet.
    :raises Misfit: a value has not the type of its column.
    """
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    known = {} if schema is None else {each["name"]: each["type"] for each in schema["fields"]}
    columns = dict[str, Any]()
    for name in names:
        values = [row.get(name) for row in rows]
        column = _column(name, values, known.get(name))
        # The type of a column without values is unknown. Readers see NULL where a file lacks the column.
        if column is not None:
            columns[name] = column
    return pa.table(columns)


def _column(name: str, values: list[Any], kind: Any) -> Any:
    import pyarrow as pa

    try:
        if kind in _FLOATING:
            return _floats(values, kind)
        found = pa.array(values, None if kind is None else arrow_type(kind))
        if kind is None and pa.types.is_null(found.type):
            return None
        if kind is None and pa.types.is_decimal(found.type):
            found = found.cast(arrow_type(_DECIMAL))
        if pa.types.is_floating(found.type):
            return _floats(values, "double")
        # Arrow cuts 1.5 down to 1, and a moment to a day, without a word.
        if not _is_same(found, values):
            raise ValueError("a value would be changed")
        return found
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
        wanted = "no one type" if kind is None else f"not the type {shown_type(kind)}"
        reason = str(error).splitlines()[0]
        raise Misfit(f"the values of column {name} have {wanted} ({reason})") from None


def _floats(values: list[Any], kind: str) -> Any:
    """Make floating numbers of numbers alone: Arrow reads texts, and takes True for 1."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    given = pa.array(values)
    types = pa.types
    if not (
        types.is_floating(given.type) or types.is_integer(given.type) or types.is_null(given.type)
    ):
        raise ValueError(f"a value is {given.type}")
    if any(isinstance(each, bool) for each in values):
        raise ValueError("a value is True or False")
    made = given.cast(arrow_type(kind))
    if types.is_floating(given.type) and not pc.is_inf(made).equals(pc.is_inf(given)):
        raise ValueError("a value is too great")
    return made


def _is_same(made: Any, values: list[Any]) -> bool:
    import pyarrow as pa

    found = made.to_pylist(maps_as_pydicts="strict")
    if found != values:
        return False
    # 1 equals True: within a list, Arrow makes 1.0 of it.
    return not pa.types.is_nested(made.type) or _truths(found) == _truths(values)


def _truths(value: Any) -> int:
    """Count the booleans in a value."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, dict):
        return sum(map(_truths, value.values()))
    return sum(map(_truths, value)) if isinstance(value, list) else 0


def arrow_type(kind: Any) -> pa.DataType:
    """Translate a type of Spark's schema."""
    import pyarrow as pa

    if not isinstance(kind, str):
        return _nested(kind)
    if kind == "timestamp":
        return pa.timestamp("us", tz="UTC")
    if kind == "timestamp_ntz":
        return pa.timestamp("us")
    if kind.startswith("decimal"):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return pa.type_for_alias(_ARROW[kind])


def _nested(kind: Mapping[str, Any]) -> pa.DataType:
    import pyarrow as pa

    if kind["type"] == "array":
        return pa.list_(arrow_type(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    return pa.struct([(each["name"], arrow_type(each["type"])) for each in kind["fields"]])


def _parts(
    table: pa.Table, partition_by: Sequence[str], txid: int
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Divide rows by their partition; the columns of the partition are left out."""
    import pyarrow as pa

    rows_of = dict[tuple[str | None, ...], list[int]]()
    columns = [map(text_of, table.column(name).to_pylist()) for name in partition_by]
    keys = zip(*columns, strict=True) if columns else iter([()] * table.num_rows)
    for number, key in enumerate(keys):
        rows_of.setdefault(key, []).append(number)
    kept = table.drop_columns(list(partition_by)) if partition_by else table
    for key, numbers in rows_of.items():
        part = kept.take(pa.array(numbers, pa.int64()))
        txids = pa.array([txid] * len(numbers), pa.int64())
        yield dict(zip(partition_by, key, strict=True)), part.append_column(TXID, txids)


def _write(
    files: Folder,
    folder: str,
    partition: Mapping[str, str | None],
    rows: pa.Table,
    fields: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    sink = io.BytesIO()
    pq.write_table(rows, sink, coerce_timestamps="us", use_deprecated_int96_timestamps=False)
    content = sink.getvalue()
    path = f"{folder.rstrip('/')}/part-{uuid.uuid4().hex}.parquet"
    with files.writing(path) as out:
        out.write(content)
    entry = read_footer(
        sink, path=path, size=len(content), partition=partition, partition_fields=fields
    )
    return entry.to_row()
