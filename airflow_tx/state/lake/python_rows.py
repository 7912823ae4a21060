"""Rows of Python tasks as files of a table: one Parquet file a partition, written by the committer."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StateError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.rows.arrow import NoTable, exact_table, readable
from airflow_tx.state.appended import TXID, Misfit, staged_folder
from airflow_tx.state.lake.delta import unreached
from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.footer import read_footer
from airflow_tx.state.lake.partitions import check_columns, empty_in, new_folder, text_of
from airflow_tx.state.lake.schema import of_arrow, shown_type

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_Row = Mapping[str, Any]
_DECIMAL = "decimal(38,18)"
"""The type that Spark gives to a Decimal of Python, too."""
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
    if not rows:
        return []
    options = state.options()
    try:
        table = as_arrow(rows, state.table_schema())
        fields = of_arrow(table.schema)["fields"]
        check_columns(fields, state.partition_by)
        files = Folder(state.uri, options)
        # Another try of the committer writes into another folder.
        folder = staged_folder(attempt, uuid.uuid4().hex)
        own = [each for each in fields if each["name"] in state.partition_by]
        parts = list(_parts(table, state.partition_by, attempt.txid))
        folders = [f"{folder}/{new_folder(partition)}" for partition, _ in parts]
        return [
            _write(files, into, partition, part, own)
            for into, (partition, part) in zip(folders, parts, strict=True)
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

    fields = () if schema is None else schema["fields"]
    known = {each["name"]: arrow_type(each["type"]) for each in fields}
    try:
        table = readable(exact_table(rows, known, decimals=arrow_type(_DECIMAL), named=_spelled))
    except NoTable as error:
        raise Misfit(str(error)) from None
    # The type of a column without values is unknown. Readers see NULL where a file lacks the column.
    unknown = [each.name for each in table.schema if pa.types.is_null(each.type)]
    return table.drop_columns(unknown) if unknown else table


def _spelled(kind: pa.DataType) -> str:
    import pyarrow as pa

    try:
        return shown_type(of_arrow(pa.schema([("", kind)]))["fields"][0]["type"])
    except Misfit:
        return str(kind)


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
    values = {name: table.column(name).to_pylist() for name in partition_by}
    if empty := [name for name, column in values.items() if "" in column]:
        raise Misfit(empty_in(empty[0]))
    columns = [map(text_of, column) for column in values.values()]
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
