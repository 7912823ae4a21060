"""The files that one try has written to a table's folder."""

from __future__ import annotations

import io
import json
import sys
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_tx.base.errors import StateError
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import ColumnType, NoTable, exact_table, readable
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.state.api import TXID, Misfit, staged_folder
from airflow_tx.state.lake.delta import Folder, LiveFile, TableFile, unreached
from airflow_tx.state.lake.schema import (
    DELTA_TYPES,
    Schema,
    check_columns,
    empty_in,
    new_folder,
    nullable,
    of_arrow,
    shown_type,
    struct,
    text_of,
    values_in,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")
    pq = LazyModule("pyarrow.parquet")


# --- statistics ---------------------------------------------------------------------------------------------------
# Delta's statistics of a file, computed from its Parquet footer without I/O.
#
# Readers use the statistics to skip files. So a bound that is too narrow would silently lose rows,
# and uncertain bounds are omitted. Doubles have no bounds because of NaN. Decimals have none
# because some readers parse them as doubles.


INDEXED = 32
"""Maximum number of columns with statistics, the same as for Delta's own writers."""
TEXT = 32
"""Maximum length of texts in the statistics, in characters."""
_WHOLE = ("byte", "short", "integer", "long")
_EPOCH = date(1970, 1, 1)
_MILLIS = 1000
_MICROS = "timeUnit=microseconds"
_SURROGATES = range(0xD800, 0xE000)

Bounds = tuple[Any, Any]


def statistics(metadata: Any, fields: Sequence[Mapping[str, Any]]) -> str:
    """Return a file's Delta statistics as JSON text.

    :param metadata: pyarrow's metadata of the footer.
    :param fields: Spark's fields of the columns in the file.
    """
    # Readers would interpret a name with a dot as the path of a nested field.
    plain = [each for each in fields if isinstance(each["type"], str) and "." not in each["name"]]
    kinds = {each["name"]: each["type"] for each in plain}
    chosen = [*list(kinds)[:INDEXED], *([TXID] if TXID in kinds else [])]
    found: dict[str, Any] = {
        "numRecords": metadata.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    for number in range(len(metadata.schema)):
        name = metadata.schema.column(number).path
        if name in chosen:
            chunks = [
                metadata.row_group(group).column(number).statistics
                for group in range(metadata.num_row_groups)
            ]
            _add(found, name, bounds_of(kinds[name], metadata.schema.column(number)), chunks)
    return json.dumps(found)


def _add(
    found: dict[str, Any], name: str, bounds: Callable[[Any, Any], Bounds] | None, chunks: list[Any]
) -> None:
    if not all(each is not None and each.has_null_count for each in chunks):
        return
    found["nullCount"][name] = sum(each.null_count for each in chunks)
    # A row group with only NULLs has no bounds.
    valued = [each for each in chunks if each.num_values]
    if bounds is None or not valued or not all(each.has_min_max for each in valued):
        return
    least = min(each.min_raw for each in valued)
    most = max(each.max_raw for each in valued)
    low, high = bounds(least, most)
    if low is not None:
        found["minValues"][name] = low
    if high is not None:
        found["maxValues"][name] = high


def bounds_of(kind: str, column: Any) -> Callable[[Any, Any], Bounds] | None:
    """Return the function that converts the bounds of a column. Return None if a column of this type has no bounds."""
    if kind in _WHOLE:
        return whole_bounds
    if kind == "date":
        return date_bounds
    if kind == "string":
        return text_bounds
    # INT96 values are not ordered. All other timestamps in Delta tables are in microseconds.
    if kind.startswith("timestamp") and _MICROS in str(column.logical_type):
        return utc_bounds if kind == "timestamp" else local_bounds
    return None


def whole_bounds(least: int, most: int) -> Bounds:
    """Return the bounds of a column of whole numbers unchanged."""
    return least, most


def date_bounds(least: int, most: int) -> Bounds:
    """Convert bounds in days since 1970 to dates. Omit a bound that Python cannot represent as a date."""
    return _day(least), _day(most)


def _day(days: int) -> str | None:
    try:
        return (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def utc_bounds(least: int, most: int) -> Bounds:
    """Convert bounds in microseconds since 1970 to timestamps in milliseconds.

    Round the lower bound down and the upper bound up.
    """
    return _millis(least // _MILLIS, "Z"), _millis(-(-most // _MILLIS), "Z")


def local_bounds(least: int, most: int) -> Bounds:
    """Return the bounds of local timestamps in milliseconds, rounded as in `utc_bounds`."""
    return _millis(least // _MILLIS, ""), _millis(-(-most // _MILLIS), "")


def _millis(millis: int, zone: str) -> str | None:
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=millis)
    except OverflowError:
        return None
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"


def text_bounds(least: bytes | str, most: bytes | str) -> Bounds:
    """Truncate the bounds of a text column to `TEXT` characters. Round the upper bound up."""
    try:
        low = least.decode() if isinstance(least, bytes) else least
        high = most.decode() if isinstance(most, bytes) else most
    except UnicodeDecodeError:
        return None, None
    return low[:TEXT], high if len(high) <= TEXT else _next(high[:TEXT])


def _next(text: str) -> str | None:
    """Return a text that is greater than every text with this prefix, or None if there is no such text."""
    for end in range(len(text), 0, -1):
        point = ord(text[end - 1]) + 1
        point = _SURROGATES.stop if point in _SURROGATES else point
        if point <= sys.maxunicode:
            return text[: end - 1] + chr(point)
    return None


# --- footer -------------------------------------------------------------------------------------------------------
# The footer of a Parquet file: its columns, rows and statistics. Reading it needs only pyarrow.


SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_OTHER_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def read_footer(
    opened: BinaryIO,
    *,
    path: str,
    size: int,
    partition: Mapping[str, str | None],
    partition_fields: Sequence[Mapping[str, Any]],
    shared: bool = False,
) -> TableFile:
    """Return the description of a file for the manifest.

    :param path: path relative to the table.
    :param partition: value as text, by partition column. These columns are not in the file.
    :param partition_fields: fields of the partition columns in Spark's schema.
    :param shared: whether the file may have rows of several transactions.
    :raises Misfit: the file cannot be part of a Delta table.
    """
    footer = pq.ParquetFile(opened)
    own = _columns(footer)
    names = [each["name"] for each in own["fields"]]
    if both := [name for name in partition if name in names]:
        raise Misfit(
            f"file {path} contains partition column {both[0]}, which belongs only into the names of folders"
        )
    stats = statistics(footer.metadata, own["fields"])
    if not shared:
        check_txid(stats, path)
    whole = nullable(struct([*own["fields"], *map(dict, partition_fields)]))
    text = json.dumps(whole)
    return TableFile(path, size, footer.metadata.num_rows, dict(partition), stats, text)


def check_txid(stats: str, path: str, txid: int | None = None) -> None:
    """Refuse a file unless all of its rows have the same txid.

    :param txid: the expected txid; None for any.
    :raises Misfit: a row has no txid, or another one.
    """
    said = json.loads(stats)
    found = (said["minValues"].get(TXID), said["maxValues"].get(TXID))
    wanted = found[0] if txid is None else txid
    if said["numRecords"] and (
        said["nullCount"].get(TXID) != 0 or wanted is None or found != (wanted, wanted)
    ):
        raise Misfit(
            f"some rows of file {path} lack the txid of their transaction in column {TXID}"
        )


def _columns(footer: Any) -> Schema:
    notes = footer.metadata.metadata or {}
    if any(name in notes for name in _OTHER_CALENDAR):
        raise Misfit(
            "its dates use the calendar from before 1582: set spark.sql.parquet.datetimeRebaseModeInWrite "
            "and spark.sql.parquet.int96RebaseModeInWrite to CORRECTED"
        )
    if SPARK_SCHEMA not in notes:
        return of_arrow(footer.schema_arrow)
    said: Schema = nullable(json.loads(notes[SPARK_SCHEMA]))
    names = [each["name"] for each in said["fields"]]
    if names != footer.schema_arrow.names:
        raise Misfit(
            f"it has the columns {footer.schema_arrow.names}, but Spark's schema in it names {names}"
        )
    return said


# --- files --------------------------------------------------------------------------------------------------------


# Number of footers that are read in parallel. Each footer needs one or two requests to an object
# store.
READERS = 16


def staged_files(
    table: Folder, folder: str, partition_fields: Sequence[Mapping[str, Any]]
) -> list[TableFile]:
    """Return descriptions of the Parquet files in a try's folder.

    Omit files without rows. Only the file footers are read.

    :param folder: path relative to the table.
    :raises Misfit: a file cannot be part of a Delta table.
    """
    found = [(path, size) for path, size in table.listed(folder).items() if _is_data(path, folder)]
    with ThreadPoolExecutor(READERS) as pool:
        described = list(
            pool.map(partial(_described, table, folder, partition_fields), sorted(found))
        )
    return [each for each in described if each.rows]


def staged_schema(listed: Sequence[TableFile]) -> pa.Schema:
    """Return the Arrow schema of staged files. It includes the partition columns, but not the txid column."""
    fields = dict[str, pa.DataType]()
    for each in listed:
        found = json.loads(each.schema)["fields"]
        fields |= {one["name"]: arrow_type(one["type"]) for one in found if one["name"] != TXID}
    return pa.schema(list(fields.items()))


def staged_rows(table: Folder, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the columns of `schema` from a staged file. The values of partition columns come from the path."""
    for batch in file_rows(table, file, schema.names):
        arrays = [batch.column(each.name).cast(each.type) for each in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def file_rows(
    table: Folder,
    file: TableFile | LiveFile,
    names: Sequence[str],
    txids: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """Read columns of a file, with the types from the file. Partition columns are texts.

    :param txids: transactions whose rows are read; empty for all rows. Row groups without rows of these transactions
        are skipped.
    """
    with table.open(file.path) as opened:
        parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        # delta-spark's UPDATE and MERGE leave the partition columns in the files.
        present = set(parquet.schema_arrow.names).difference(file.partition)
        own = [name for name in names if name in present]
        # Read each row group in a separate iteration, because Arrow keeps prefetched data until an
        # iteration ends.
        groups = [[number] for number in _groups(parquet.metadata, txids)]
        for batch in chain.from_iterable(
            parquet.iter_batches(row_groups=group, columns=own) for group in groups
        ):
            # A file has one value per partition column. The cast converts the text as Delta does.
            for name in file.partition:
                texts = pa.array([file.partition[name]] * batch.num_rows, pa.string())
                batch = batch.append_column(name, texts)
            yield batch


def _groups(metadata: Any, txids: Collection[int]) -> Iterator[int]:
    """Yield the numbers of the row groups that may have rows of these transactions."""
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    for group in range(metadata.num_row_groups):
        found = TXID in paths and metadata.row_group(group).column(paths.index(TXID)).statistics
        if not txids or not found or not found.has_min_max:
            yield group
        elif any(found.min <= txid <= found.max for txid in txids):
            yield group


def count_rows(table: Folder, path: str, txids: Collection[int]) -> dict[int, int]:
    """Count the rows of these transactions in a file, per transaction. Omit transactions without rows."""
    with table.open(path) as opened:
        file = pq.ParquetFile(opened)
        if TXID not in file.schema_arrow.names:
            return {}
        column = file.read(columns=[TXID], use_threads=False).column(TXID)
    found = pc.value_counts(column.filter(is_of(column, txids)))
    return {each["values"]: each["counts"] for each in found.to_pylist()}


def is_of(column: Any, txids: Collection[int]) -> Any:
    """Return, for each value of a txid column, whether it is one of these txids."""
    return pc.is_in(column, value_set=pa.array(sorted(txids), pa.int64()))


def _is_data(path: str, folder: str) -> bool:
    *folders, name = path.removeprefix(f"{folder}/").split("/")
    # The name of a partition folder may begin with _, too. It has a "=", unlike Spark's temporary
    # folders.
    unfinished = any(each.startswith("_") and "=" not in each for each in folders)
    return name.endswith(".parquet") and name[0] not in "_." and not unfinished


def _described(
    table: Folder, folder: str, fields: Sequence[Mapping[str, Any]], found: tuple[str, int]
) -> TableFile:
    path, size = found
    inner = path.removeprefix(f"{folder}/").rpartition("/")[0]
    with table.open(path) as opened:
        return read_footer(
            opened, path=path, size=size, partition=values_in(inner), partition_fields=fields
        )


# --- python rows --------------------------------------------------------------------------------------------------
# Write the rows of Python tasks as files of a table. The committer writes one Parquet file per
# partition.


_Row = Mapping[str, Any]
_DECIMAL = "decimal(38,18)"
"""The type of Decimal columns. Spark uses the same type for Python's Decimal."""


def write_python_rows(
    state: Any, rows: Sequence[_Row], attempt: TransactionAttempt
) -> list[dict[str, Any]]:
    """Write rows to files in a table's folder, and return the manifest entries of these files.

    Each column gets the type that it has in the table.

    :param state: the table.
    :raises StateError: the rows do not fit the table, or its folder cannot be written.
    """
    if not rows:
        return []
    options = state.options()
    try:
        table = as_arrow(rows, state.table_schema())
        fields = of_arrow(table.schema)["fields"]
        check_columns(fields, state.partition_by)
        files = Folder(state.uri, options)
        # Each try of the committer writes to its own folder.
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
    """Create an Arrow table from rows.

    :param schema: Spark's schema of the table; None if there is no table yet.
    :raises Misfit: a value does not have the type of its column.
    """
    fields = () if schema is None else schema["fields"]
    known = {each["name"]: arrow_type(each["type"]) for each in fields}
    try:
        table = readable(exact_table(rows, known, decimals=arrow_type(_DECIMAL), named=_spelled))
    except NoTable as error:
        raise Misfit(str(error)) from None
    # A column without values has no known type, so it is omitted. Readers see NULL.
    unknown = [each.name for each in table.schema if pa.types.is_null(each.type)]
    return table.drop_columns(unknown) if unknown else table


def _spelled(kind: pa.DataType) -> str:
    try:
        return shown_type(of_arrow(pa.schema([("", kind)]))["fields"][0]["type"])
    except Misfit:
        return str(kind)


def arrow_type(kind: Any) -> pa.DataType:
    """Convert a type of Spark's schema to its Arrow type."""
    if not isinstance(kind, str):
        return _nested(kind)
    return (DELTA_TYPES.get(kind) or ColumnType.named(kind)).arrow_type()


def _nested(kind: Mapping[str, Any]) -> pa.DataType:
    if kind["type"] == "array":
        return pa.list_(arrow_type(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    return pa.struct([(each["name"], arrow_type(each["type"])) for each in kind["fields"]])


def _parts(
    table: pa.Table, partition_by: Sequence[str], txid: int
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Divide rows by partition. Drop the partition columns and add the txid column."""
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
