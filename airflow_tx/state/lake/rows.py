"""The rows of transactions in the files of a lake table, for another topology that reads them."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import StateError
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import NoTable, column_name, empty_frame, parquet_frame, typed_batch
from airflow_tx.state.api import REJECTED_COLUMNS, TXID
from airflow_tx.state.lake.delta import QUERIED, DeltaStore, Folder, LiveFile, TableVersion
from airflow_tx.state.lake.files import READERS, arrow_type, count_rows, file_rows, is_of
from airflow_tx.state.upstream import (
    UPSTREAM_TXID,
    CommittedTable,
    RejectedFilter,
    TableCounts,
    TableSnapshot,
    check_free,
    owned,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
else:
    pa = LazyModule("pyarrow")


@dataclass(frozen=True)
class VersionSnapshot(TableSnapshot):
    """One version of a table. Its files survive later commits until the retention period ends."""

    at: TableVersion


class CommittedFiles(CommittedTable):
    """Reads a lake table file by file."""

    uri: str
    conn_id: str | None

    @property
    @abstractmethod
    def _store(self) -> DeltaStore: ...

    def connections(self) -> dict[str, str]:
        return {} if self.conn_id is None else {self.conn_id: "aws"}

    def dataset(self) -> Dataset:
        return Dataset.of_folder(self.uri)

    def row_types(self, *, upstream_txid: bool = False) -> dict[str, pa.DataType]:
        return self._types(self._store.load(), upstream_txid=upstream_txid)

    def counts(self, txids: Collection[int]) -> TableCounts:
        store = self._store
        at = store.load()
        wanted = owned(txids)
        none = dict.fromkeys(wanted, 0)
        if at is None:
            return TableCounts(none)
        rows = Counter(none)
        count = partial(_counted, store.folder, txids=wanted)
        with store.reached(), ThreadPoolExecutor(READERS) as pool:
            for found in pool.map(count, _files(store, at, wanted)):
                rows.update(found)
        return TableCounts(dict(rows), VersionSnapshot(at))

    def select_rejected(
        self, wanted: RejectedFilter, most: int, *, counting: bool
    ) -> list[dict[str, Any]]:
        import sqlalchemy as sa

        from airflow_tx.state.sql.rows import rejected_query

        store = self._store
        at = store.load()
        columns = (TXID, *REJECTED_COLUMNS)
        if at is None or at.empty or {*columns}.difference(_names(at)):
            return []
        table = sa.table(QUERIED, *map(sa.column, columns))
        query = rejected_query(table, wanted, most, counting=counting)
        return store.asked(at, str(query.compile(compile_kwargs={"literal_binds": True})))

    def arrow(self, counted: TableCounts, *, upstream_txid: bool = False) -> pa.RecordBatchReader:
        store = self._store
        at = _version(store, counted)
        types = self._types(at, upstream_txid=upstream_txid)
        batches = iter(()) if at is None else self._batches(store, at, counted.rows, types)
        return pa.RecordBatchReader.from_batches(pa.schema(types), batches)

    def frame(self, spark: Any, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        store = self._store
        at = _version(store, counted)
        types = self._types(at, upstream_txid=upstream_txid)
        files = [] if at is None else _files(store, at, counted.rows)
        if at is None or not files:
            return empty_frame(spark, types)
        folder = self.uri.replace("s3://", "s3a://", 1)
        read = parquet_frame(
            spark, at.schema, {f"{folder}/{each.path}": each.partition for each in files}
        )
        numbered = {**dict(zip(types, types, strict=True)), UPSTREAM_TXID: TXID}
        columns = (f"{column_name(numbered[name])} AS {column_name(name)}" for name in types)
        return read.filter(f"{TXID} IN ({', '.join(map(str, counted.rows))})").selectExpr(*columns)

    def _types(self, at: TableVersion | None, *, upstream_txid: bool) -> dict[str, pa.DataType]:
        fields = [] if at is None else at.schema["fields"]
        types = {each["name"]: arrow_type(each["type"]) for each in fields if each["name"] != TXID}
        if upstream_txid:
            check_free(types, self.name)
            types[UPSTREAM_TXID] = pa.int64()
        return types

    def _batches(
        self,
        store: DeltaStore,
        at: TableVersion,
        txids: Collection[int],
        types: Mapping[str, pa.DataType],
    ) -> Iterator[pa.RecordBatch]:
        """Read the files one by one, ordered by their lowest txid. Only one row group is in memory at a time."""
        own = {name: kind for name, kind in types.items() if name != UPSTREAM_TXID}
        # The txid column comes last, so that invalid values in other columns are reported first.
        read = pa.schema({**own, TXID: pa.int64()})
        named = [TXID if name == UPSTREAM_TXID else name for name in types]
        files = sorted(_files(store, at, txids), key=lambda each: (each.least or 0, each.path))
        with store.reached():
            for file in files:
                try:
                    for batch in file_rows(store.folder, file, read.names, txids):
                        rows = typed_batch(batch, read)
                        found = rows.filter(is_of(rows.column(TXID), txids)).select(named)
                        yield found.rename_columns(list(types))
                except NoTable as error:
                    remedy = error.remedy or "Restate the transaction of that row."
                    raise StateError(
                        state=self.name, problem=f"file {file.path}: {error}", remedy=remedy
                    ) from None


def _names(at: TableVersion) -> list[str]:
    return [each["name"] for each in at.schema["fields"]]


def _version(store: DeltaStore, counted: TableCounts) -> TableVersion | None:
    return counted.snapshot.at if isinstance(counted.snapshot, VersionSnapshot) else store.load()


def _files(store: DeltaStore, at: TableVersion, txids: Collection[int]) -> list[LiveFile]:
    return store.files_of(at, txids) if txids else []


def _counted(folder: Folder, file: LiveFile, *, txids: Collection[int]) -> dict[int, int]:
    if file.is_of(txids) and file.least is not None and file.rows is not None:
        return {file.least: file.rows}
    return count_rows(folder, file.path, txids)
