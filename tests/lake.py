"""Staged files for tests of tables, as tasks write them; and a table that takes rows like other states."""

from __future__ import annotations

import io
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import QueryBuilder

from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.state import DeltaTable
from airflow_tx.state.api import TXID, Grant, staged_folder
from airflow_tx.state.lake.delta import Folder, TableFile
from airflow_tx.state.lake.files import read_footer
from airflow_tx.state.lake.schema import of_arrow, text_of


def staged(table: DeltaTable, attempt: TransactionAttempt, rows: pa.Table) -> list[dict[str, Any]]:
    """Write rows as a task of an attempt does, a file a partition, and return the manifest."""
    whole = rows.append_column(TXID, pa.array([attempt.txid] * len(rows), pa.int64()))
    folder = staged_folder(attempt, uuid.uuid4().hex)
    keys = list(table.partition_by)
    if not keys:
        return [_file(table, folder, whole, {}).to_row()] if len(rows) else []
    fields = [each for each in of_arrow(rows.schema)["fields"] if each["name"] in keys]
    found = list[TableFile]()
    for values in whole.select(keys).group_by(keys).aggregate([]).to_pylist():
        mine = whole.filter(pa.array([all(row[key] == values[key] for key in keys) for row in whole.to_pylist()]))
        partition = {key: text_of(values[key]) for key in keys}
        found.append(_file(table, folder, mine.drop_columns(keys), partition, fields))
    return [each.to_row() for each in found]


def read_back(uri: str, options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Read a table as anybody does, by deltalake's own engine: pyarrow's threads may outlive a test run."""
    table = deltalake.DeltaTable(uri, storage_options=dict(options or {}))
    found = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    return list(pa.table(found.read_all()).to_pylist())


def _file(
    table: DeltaTable,
    folder: str,
    rows: pa.Table,
    partition: Mapping[str, str | None],
    fields: Sequence[Mapping[str, Any]] = (),
) -> TableFile:
    inside = "".join(f"{name}={value}/" for name, value in partition.items())
    path = f"{folder}/{inside}{uuid.uuid4().hex}.parquet"
    sink = io.BytesIO()
    pq.write_table(rows, sink, coerce_timestamps="us")
    content = sink.getvalue()
    with Folder(table.uri, table.options()).writing(path) as out:
        out.write(content)
    return read_footer(sink, path=path, size=len(content), partition=partition, partition_fields=fields)


def summed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the rows of a table by key, as a state with values has them."""
    sums = Counter[str]()
    for row in rows:
        sums[row["key"]] += row["n"]
    return [{"key": key, "n": n} for key, n in sorted(sums.items())]


class SummedTable(DeltaTable):
    """A table that stages the rows that it is given, and reads its rows as sums: a state with values, for suites."""

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        return super().raise_and_write(grant, self._staged(grant, rows))

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        return super().write(grant, self._staged(grant, rows), chunk=chunk, complete=complete)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        return summed(super().read())

    def _staged(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
        return staged(self, grant.attempt, pa.Table.from_pylist(list(rows), schema))
