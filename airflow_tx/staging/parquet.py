"""Staged Parquet files as Arrow: Spark's INT96 times are moments to the microsecond, of any year that Spark has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def read_schema(opened: BinaryIO) -> pa.Schema:
    """Read the columns of a file and their types, as `batches_in` gives them."""
    return _schema(_open(opened))


def batches_in(opened: BinaryIO, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file.

    :param columns: the wanted ones; None: all columns.
    """
    import pyarrow as pa

    file = _open(opened)
    schema = _schema(file)
    as_it_is = schema == file.schema_arrow
    for batch in file.iter_batches(columns=list(columns) if columns else None):
        wanted = pa.schema(map(schema.field, batch.schema.names))
        yield batch if as_it_is else batch.cast(wanted)


def _open(opened: BinaryIO) -> Any:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    # Arrow's own unit for INT96 ends in 2262, and begins again in 1677.
    return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def _schema(file: Any) -> pa.Schema:
    import pyarrow as pa

    found = file.schema_arrow
    columns = map(file.schema.column, range(len(file.schema)))
    leaves = [each.physical_type for each in columns]
    if "INT96" not in leaves:
        return found
    physical = iter(leaves)
    fields = _with_moments(found, physical)
    return pa.schema(fields, found.metadata)


def _with_moments(fields: Iterable[pa.Field], physical: Iterator[str]) -> list[pa.Field]:
    return [each.with_type(_moments(each.type, physical)) for each in fields]


def _moments(kind: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    """Give the INT96 times in a type their zone: its leaves come in the order of the columns of the file."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        fields = map(kind.field, range(kind.num_fields))
        return pa.struct(_with_moments(fields, physical))
    if types.is_map(kind):
        key = _moments(kind.key_type, physical)
        item = _moments(kind.item_type, physical)
        return pa.map_(key, item)
    if types.is_list(kind):
        item = _moments(kind.value_type, physical)
        return pa.list_(kind.value_field.with_type(item))
    if next(physical) == "INT96":
        return pa.timestamp("us", tz="UTC")
    return kind
