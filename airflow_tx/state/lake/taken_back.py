"""The rows that a commit takes out of a table: whole files, and the rows of a transaction in shared files."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_tx.state.appended import TXID, Misfit
from airflow_tx.state.lake.delta import LiveFile
from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.footer import SPARK_SCHEMA, read_footer
from airflow_tx.state.lake.manifest import TableFile
from airflow_tx.state.lake.partitions import folder_of
from airflow_tx.state.lake.schema import FieldJson

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


@dataclass(frozen=True)
class TakenBack:
    """What goes out of a table, and the files that keep the other rows of shared files.

    :param rows: how many rows are gone.
    """

    removed: Sequence[LiveFile] = ()
    kept: Sequence[TableFile] = ()
    rows: int = 0


@dataclass(frozen=True)
class TakeBack:
    """Takes the rows of transactions out of files, with one row group in memory at a time.

    :param into: the folder for the rows of other transactions.
    :param schema: of the table.
    """

    folder: Folder
    txids: Collection[int]
    into: str
    partition_fields: Sequence[FieldJson]
    schema: pa.Schema = field(repr=False)

    def of(self, found: Sequence[LiveFile]) -> TakenBack:
        """Take them out of these live files, which may have some."""
        removed = list[LiveFile]()
        kept = list[TableFile]()
        gone = 0
        for live in found:
            whole = live.is_of(self.txids)
            mine = (live.rows or 0) if whole else count_rows(self.folder, live.path, self.txids)
            if not whole and not mine:
                continue  # the file has transactions before and after, or they are unknown
            if not live.removable:
                raise Misfit(f"deltalake cannot spell the path {live.path}")
            removed.append(live)
            gone += mine
            others = None if whole else self._others(live)
            if others is not None:
                kept.append(others)
        return TakenBack(removed, kept, gone)

    def _others(self, live: LiveFile) -> TableFile | None:
        """Write the rows of the other transactions in a file into one of their own."""
        path = f"{self.into}/{folder_of(live.partition)}{uuid.uuid4().hex}.parquet"
        with self.folder.open(live.path) as opened, self.folder.writing(path) as out:
            self._copy(opened, out, live.partition)
        size = self.folder.listed(self.into)[path]
        with self.folder.open(path) as opened:
            found = read_footer(
                opened,
                path=path,
                size=size,
                partition=live.partition,
                partition_fields=self.partition_fields,
                shared=True,
            )
        return found if found.rows else None

    def _copy(self, opened: Any, out: Any, partition: Collection[str]) -> None:
        import pyarrow.compute as pc  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        file = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        schema = self._written_schema(file.schema_arrow, partition)
        with pq.ParquetWriter(out, schema, coerce_timestamps="us") as writer:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, use_threads=False)
                # Arrow cannot filter the views of texts that deltalake reads from its UPDATE, DELETE and MERGE.
                rows = group.select(schema.names).cast(schema)
                writer.write_table(rows.filter(pc.invert(_is_of(group.column(TXID), self.txids))))

    def _written_schema(self, found: pa.Schema, partition: Collection[str]) -> pa.Schema:
        """Choose the schema of a copy: the columns of the file, in the types of the table.

        INT96 of Spark has no time zone. UPDATE and MERGE of delta-spark leave the partition columns in the files.
        """
        import pyarrow as pa

        fields = [self.schema.field(name) for name in found.names if name not in partition]
        notes = {
            name: note for name, note in (found.metadata or {}).items() if name != SPARK_SCHEMA
        }
        return pa.schema(fields, notes)


def count_rows(folder: Folder, path: str, txids: Collection[int]) -> int:
    """Count the rows of transactions in a file."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with folder.open(path) as opened:
        file = pq.ParquetFile(opened)
        if TXID not in file.schema_arrow.names:
            return 0
        column = file.read(columns=[TXID], use_threads=False).column(TXID)
        return int(pc.sum(_is_of(column, txids)).as_py() or 0)


def _is_of(column: Any, txids: Collection[int]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(column, value_set=pa.array(sorted(txids), pa.int64()))
