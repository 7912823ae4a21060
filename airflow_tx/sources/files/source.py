"""Files by name, of a folder or of each of several: the next few new ones are a transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from airflow_tx.errors import PartitionUnavailable
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, EmittedRows, Json, SourceKind, TransactionalSource
from airflow_tx.sources.files.base import FolderSource
from airflow_tx.sources.files.storage import below
from airflow_tx.sources.partitioned import PartitionedTransactionalSource
from airflow_tx.staging.files import Listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class FileSource(FolderSource, TransactionalSource):
    """New files by name: a transaction is the next `files_per_batch` of them, or as many as there are.

    The metadata of a batch holds the folder and each file's name, size and digest; a file that is gone or changed after
    its batch was fixed is an error. Move files in whole: one that still grows when it is taken counts as changed.

    ``kind="transactional"``: files are taken in the order of their names, so they must arrive in it. One that comes
    when a greater name has been taken is never read, and `begin` warns of it every time (see `late_files`).

    ``kind="opaque"``: every file that was not taken yet is taken, with any name. A replay takes what is there then:
    a file that vanished is left out until it is back. All names ever taken are remembered, 2 to 5 bytes each.
    """

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        taken = self._position(position)
        folder = self._root()
        listing = self._listing(folder)
        if not listing and position is None and self.kind is SourceKind.TRANSACTIONAL:
            where = below(folder, self._storage.pattern)
            raise self.refused(f"no file matches {where}", "Correct the glob, or put a file there.")
        batch = self._next(folder, listing, taken)
        if batch is None or (schema := self._schema([position], [batch.metadata])) is None:
            return batch
        metadata = cast("Any", batch.metadata)
        after = cast("Any", batch.position)
        return replace(
            batch,
            metadata={**metadata, "schema": schema["columns"]},
            position={**after, "schema": schema},
        )

    def late_files(self, position: Json) -> list[str]:
        """List the names that sort before `position` and were never taken: they came too late, and will not be read.

        :raises SourceError: the folder is missing.
        """
        taken = self._position(position)
        if self.kind is not SourceKind.TRANSACTIONAL:
            return []
        return taken.late(self._listing(self._root()))

    def backlog(self, position: Json) -> int:
        return len(self._new(self._listing(self._root()), self._position(position)))

    def _listing(self, folder: str) -> dict[str, Listed]:
        with self._listable(folder):
            return self._files(folder, self._storage.pattern)


class PartitionedFileSource(PartitionedTransactionalSource, FolderSource):
    """Like `FileSource`, for a glob with wildcards in its folders, such as ``data/orders/*/*.csv``.

    Every folder that matches is a partition: a transaction is the next `files_per_batch` files of each. A folder may
    come at any time; what ``kind`` says of files holds within each folder. A folder that gave files and is gone stops
    a transactional source with the reason; an opaque one leaves it out, and takes it up again at its position.

    As Spark does, a folder called ``region=eu`` gives its rows a column ``region`` (of text).
    """

    def _check_glob(self, path_glob: str) -> None:
        if not any(character in path_glob.rpartition("/")[0] for character in "*?["):
            remedy = (
                "Put a wildcard into its folders, such as data/orders/*/*.csv, or use FileSource."
            )
            raise self.unusable("path_glob", path_glob, remedy)

    def partitions(self) -> list[str]:
        folder = self._root()
        pattern = self._storage.pattern.rpartition("/")[0]
        with self._listable(folder):
            found = self._storage.folders(folder, pattern)
        if not found:
            log.warning("%r: no folder matches %s.", self, below(folder, pattern))
        return found

    # One schema for all folders: thousands of them would not fit into one record with it.

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        batch = super().decide(attempt, position)
        positions = self.partition_positions(position)
        if batch is None:
            return None
        metadata = cast("Any", batch.metadata)
        after = cast("Any", batch.position)
        schema = self._schema(positions.values(), metadata.values())
        if schema is None:
            return batch
        first = min(metadata)
        keeper = next(
            (name for name, each in positions.items() if each.get("schema") == schema), first
        )
        return replace(
            batch,
            metadata={**metadata, first: {**metadata[first], "schema": schema["columns"]}},
            position={
                name: {**each, "schema": schema} if name == keeper else each
                for name, each in after.items()
            },
        )

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if isinstance(metadata, dict):
            parts: Any = metadata
            found = [each["schema"] for each in parts.values() if "schema" in each]
            metadata = (
                {name: {**each, "schema": found[0]} for name, each in parts.items()}
                if found
                else metadata
            )
        return super().emit_batch(attempt, metadata, spark)

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, position: Json
    ) -> Batch | None:
        folder = below(self._root(), partition)
        try:
            listing = self._in(folder) if self._storage.is_folder(folder) else None
        except OSError as error:
            reason = f"folder {folder} cannot be listed ({error.strerror or error})"
            raise PartitionUnavailable(
                partition=partition, source=repr(self), reason=reason
            ) from error
        if listing is None:
            raise PartitionUnavailable(
                partition=partition, source=repr(self), reason=f"folder {folder} is gone"
            )
        return self._next(folder, listing, self._position(position))

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        return f"of each folder {self._limits()}"

    def backlog(self, position: Json) -> int:
        positions = self.partition_positions(position)
        root = self._root()
        count = 0
        for name in self.partitions():
            folder = below(root, name)
            with self._listable(folder):
                count += len(self._new(self._in(folder), self._position(positions.get(name))))
        return count

    def _in(self, folder: str) -> Mapping[str, Listed]:
        return self._files(folder, self._storage.pattern.rpartition("/")[2])

    def decide_partition_again(
        self, attempt: TransactionAttempt, partition: str, metadata: Json
    ) -> Json:
        return FolderSource.decide_again(self, attempt, metadata)

    def changed_since(self, metadata: Any) -> str | None:
        found = (FolderSource.changed_since(self, each) for each in metadata.values())
        return "; ".join(filter(None, found)) or None

    def partition_refuses_again(self, partition: str, metadata: Json) -> str | None:
        return FolderSource.refuses_again(self, metadata)

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        return FolderSource.contains(self, metadata, what)

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        return FolderSource.reaches(self, position, what)

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        rows = FolderSource.emit_batch(self, attempt, metadata, spark)
        columns = _columns(partition)
        if spark is None:
            return _with(columns, rows)  # type: ignore[arg-type]
        from pyspark.sql.functions import lit

        for name, value in columns.items():
            rows = rows.withColumn(name, lit(value).cast("string"))  # type: ignore[union-attr]
        return rows


def _columns(partition: str) -> dict[str, str | None]:
    """Read the columns that the names of folders spell, as Hive does."""
    columns: dict[str, str | None] = {}
    for part in Path(partition).parts:
        name, equals, value = part.partition("=")
        if name and equals:
            columns[unquote(name)] = None if value == _HIVE_NULL else unquote(value)
    return columns


def _with(
    columns: Mapping[str, str | None], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        yield {**row, **columns}
