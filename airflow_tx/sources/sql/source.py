"""The SQL sources. A transaction takes a table's next rows, by id or by time. This module is fast to import.

Modules that need SQLAlchemy are imported only when a batch is decided or read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ConfigError, PartitionUnavailable
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import WHOLE, Loss, TransactionAttempt
from airflow_tx.sources.api import Batch, EmittedRows, Json, RowTypes, TransactionalSource
from airflow_tx.sources.partitions import Gone, LimitedSource, LogDecision, LogSource
from airflow_tx.sources.sql.spec import PATIENCE, ROWS_PER_READ, SETTLE, SqlSpec, checked_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.sources.sql.shard import JdbcRows, Shard


# --- source -------------------------------------------------------------------------------------------------------


class SqlRows(LimitedSource):
    """The base class of the SQL sources. It has their arguments, and reads the rows of a batch from one table.

    :param order_by: column with unique, growing values, such as ``"id"``, or a time column and a unique column, such as
        ``["updated_at", "id"]``.
    :param columns: columns to read, or None for all columns.
    :param settle: minimum age of a row in seconds, by its time column. No effect if an id alone orders the rows.
    :param patience: seconds that `begin` waits for running transactions that may still commit an earlier row. After
        this time, it takes no row, and logs the transactions.
    :param rows_per_read: number of rows in a range. Spark reads the ranges in parallel.

    The other parameters are the same as for `LimitedSource`. Use `kind` ``transactional`` if rows are only ever added.
    """

    always_written: ClassVar[tuple[str, ...]] = (
        "order_by",
        "columns",
        "settle",
        "patience",
        "rows_per_read",
        "kind",
    )
    in_repr: ClassVar[tuple[str, ...] | None] = ("table", "tables", "order_by", "kind")

    def __init__(
        self,
        *,
        order_by: str | Sequence[str] = "id",
        columns: Sequence[str] | None = None,
        settle: float = SETTLE,
        patience: float = PATIENCE,
        rows_per_read: int = ROWS_PER_READ,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        name = type(self).__name__
        self.spec = SqlSpec.checked(
            name,
            order_by=order_by,
            columns=columns,
            settle=settle,
            patience=patience,
            rows_per_read=rows_per_read,
        )
        self.normalize(order_by=self.spec.order_by)

    @cached_property
    def _read(self) -> list[JdbcRows]:
        return []

    def close(self) -> None:
        while self._read:
            self._read.pop().close()

    def dataset_of(self, conn_id: str, table: str) -> Dataset:
        """Return the dataset of one table, which is also the dataset of a state in this table."""
        from airflow_tx.state import SqlTable

        return SqlTable(conn_id, table=table).dataset()

    def accept(self) -> Remedy:
        """Return the remedy for rows that belong to no batch."""
        return (
            "Correct the table, for example move late rows to ids at the end. Or accept the loss: "
        ) + self.command("accept-loss")

    def shard(
        self, conn_id: str, table: str, *, partition: str | None = None, txid: int | None = None
    ) -> Shard:
        """Return the reader of one table.

        :param txid: transaction whose rows are read, for errors.
        """
        from airflow_tx.sources.sql.database import TableErrors
        from airflow_tx.sources.sql.shard import Shard

        errors = TableErrors(
            repr(self), conn_id, partition, self.command("replay", txid, "--changed-rows")
        )
        return Shard(conn_id, table, self.spec, errors, what=type(self).__name__)

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        """Return whether the rows of one table include an id or a time. Return None if only the database can tell."""
        from airflow_tx.sources.sql.table import Rows

        return Rows.from_json(metadata, len(self.spec.order_by)).contains(what, self.zone)

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        """Return whether the source has taken all rows of one table up to an id or a time. Return None if unknown."""
        from airflow_tx.sources.sql.table import TablePosition

        return TablePosition.from_json(position, len(self.spec.order_by)).reaches(what, self.zone)

    def rows_of(self, shard: Shard, metadata: Json, spark: SparkSession | None) -> EmittedRows:
        """Read exactly the decided rows. This process reads SQLite itself, even for Spark."""
        from airflow_tx.base.rows import JDBC_DATABASES
        from airflow_tx.sources.sql.shard import JdbcRows

        if spark is None or shard.database.kind not in JDBC_DATABASES:
            return shard.rows(metadata)
        read = JdbcRows(shard, shard.parsed(metadata))
        self._read.append(read)
        return read.frame(spark)

    def types_of(self, shards: Iterable[Shard]) -> RowTypes:
        """Return the column types of several tables. The type is None for a column whose types differ."""
        found: dict[str, Any] = {}
        for shard in shards:
            for name, kind in shard.row_types().items():
                found[name] = kind if found.get(name, kind) == kind else None
        return found


class SqlSource(SqlRows, TransactionalSource):
    """A source that reads a table of PostgreSQL, MySQL, MariaDB or SQLite. Each row is in exactly one batch.

    Database transactions may commit in a different order than their ids. The source finds the open transactions that
    may still commit an earlier row, and waits for them. It ends a batch only where no earlier row can appear any more.
    See docs/sql_source.md for the conditions and limits.

    :param conn_id: Airflow connection of type postgres, mysql or sqlite.
    :param table: "table" or "schema.table".

    The other parameters are the same as for `SqlRows`.
    """

    def __init__(self, conn_id: str, table: str, **options: Any) -> None:
        name = type(self).__name__
        self.conn_id = checked_text(name, "conn_id", conn_id, "orders_db")
        self.table = checked_text(name, "table", table, "orders")
        super().__init__(**options)

    def connections(self) -> dict[str, str]:
        return {self.conn_id: "postgres"}

    def datasets(self) -> list[Dataset]:
        return [self.dataset_of(self.conn_id, self.table)]

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        decision = LogDecision(
            {WHOLE: self._shard()}, {WHOLE: position}, self.limit, LogDecision.sizes
        )
        taken = decision.take(WHOLE)
        if isinstance(taken, Gone):
            raise self.gone_refused([taken], taken.description, self.accept())
        if taken is None:
            return None
        return Batch(taken.metadata, taken.position, taken.count, decision.reason(taken.count or 0))

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes:
        return self.types_of([self._shard(attempt.txid)])

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        return self.rows_of(self._shard(attempt.txid), metadata, spark)

    def decide_again(self, attempt: TransactionAttempt, metadata: Json) -> Json:
        return self._shard().again(metadata)

    def contains(self, metadata: Json, what: str) -> bool | None:
        return self.partition_contains(WHOLE, metadata, what)

    def reaches(self, position: Json, what: str) -> bool | None:
        return self.partition_reaches(WHOLE, position, what)

    def backlog(self, position: Json) -> int:
        return self._shard().backlog(position)

    def losses(self, position: Json) -> list[Loss]:
        gone = self._shard().gone(position)
        return [] if gone is None else [gone.loss(WHOLE, position)]

    def lacks(self, position: Json) -> str | None:
        return self._shard().lacks(position)

    def _shard(self, txid: int | None = None) -> Shard:
        return self.shard(self.conn_id, self.table, txid=txid)


# --- shards -------------------------------------------------------------------------------------------------------
# Rows from several SQL tables, or from one table on several servers. Each table is a partition with
# a position.


class PartitionedSqlSource(SqlRows, LogSource):
    """A `SqlSource` for several tables with the same columns. Every table on every connection is a partition.

    A partition is named ``<conn_id>.<table>``. You can add partitions at any time. If a partition cannot be reached, or
    its table is missing, a transactional source fails. An opaque source omits the partition, and later resumes at its
    position. The limits apply to the entire batch, and the partitions share them evenly.

    :param conn_ids: one or several Airflow connections.
    :param tables: one or several tables.

    The other parameters are the same as for `SqlRows`.
    """

    def __init__(
        self, conn_ids: str | Sequence[str], tables: str | Sequence[str], **options: Any
    ) -> None:
        name = type(self).__name__
        self.conn_ids = _listed(name, "conn_ids", conn_ids, "shard_1")
        self.tables = _listed(name, "tables", tables, "orders")
        super().__init__(**options)
        self.normalize(conn_ids=self.conn_ids, tables=self.tables)

    def connections(self) -> dict[str, str]:
        return dict.fromkeys(self.conn_ids, "postgres")

    def datasets(self) -> list[Dataset]:
        return [self.dataset_of(*table) for table in self._tables().values()]

    def partitions(self) -> list[str]:
        return list(self._tables())

    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, Shard]:
        return {partition: self.shard_of(partition) for partition in self.partitions()}

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, Remedy]:
        return "; ".join(
            f"partition {name}: {each.description}" for name, each in gone.items()
        ), self.accept()

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes:
        names = sorted(cast("Mapping[str, Json]", metadata) or self._tables())
        return self.types_of(self.shard_of(name, attempt.txid) for name in names)

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        return self.rows_of(self.shard_of(partition, attempt.txid), metadata, spark)

    def decide_partition_again(
        self, attempt: TransactionAttempt, partition: str, metadata: Json
    ) -> Json:
        return self.shard_of(partition).again(metadata)

    def shard_of(self, partition: str, txid: int | None = None) -> Shard:
        """Return the reader of a partition.

        :param txid: transaction whose rows are read, for errors.
        :raises PartitionUnavailable: the source no longer has this partition.
        """
        table = self._tables().get(partition)
        if table is None:
            reason = "the conn_ids and tables of the source no longer contain it"
            raise PartitionUnavailable(partition=partition, source=repr(self), reason=reason)
        return self.shard(*table, partition=partition, txid=txid)

    def _tables(self) -> dict[str, tuple[str, str]]:
        return {
            f"{conn_id}.{table}": (conn_id, table)
            for conn_id in self.conn_ids
            for table in self.tables
        }


def _listed(source: str, option: str, names: str | Sequence[str], example: str) -> list[str]:
    given = [names] if isinstance(names, str) else list(names)
    if not given or len(set(map(repr, given))) < len(given):
        remedy = f'Give names, each once, such as ["{example}"].'
        raise ConfigError(option=f"{option} of {source}", value=names, remedy=remedy)
    return [checked_text(source, option, name, example) for name in given]
