"""Rows of a SQL table, by id or by time: each batch is the next ones.

Importing this costs little: what needs SQLAlchemy is loaded when a batch is decided or read.
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
    """The common part of the sources of SQL tables: their arguments, and the rows of a batch of one table.

    :param order_by: a column whose values grow and are unique, such as ``"id"``; or a time and such a column:
        ``["updated_at", "id"]``.
    :param columns: the columns of the rows; None: all.
    :param settle: minimum age in seconds of a row's time before it is taken; no meaning for an id alone.
    :param patience: seconds that `begin` waits for running transactions that may still commit a row before the last
        one that is there. After that it takes no row, and names what it waited for.
    :param rows_per_read: Spark reads a batch in ranges of so many rows, in parallel.

    The other parameters are the same as of `LimitedSource`: `kind` is ``transactional`` for rows that are only ever
    added.
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
        """Name the place of one table, as a state of the same table names it."""
        from airflow_tx.state import SqlTable

        return SqlTable(conn_id, table=table).dataset()

    def accept(self) -> Remedy:
        """Word what a person can do about rows that are in no batch."""
        return (
            "Correct the table, if these rows can be counted elsewhere or given ids that come "
            "last; or accept it: "
        ) + self.command("accept-loss")

    def shard(
        self, conn_id: str, table: str, *, partition: str | None = None, txid: int | None = None
    ) -> Shard:
        """Make the reader of one table.

        :param txid: of the transaction whose rows are read.
        """
        from airflow_tx.sources.sql.database import TableErrors
        from airflow_tx.sources.sql.shard import Shard

        errors = TableErrors(
            repr(self), conn_id, partition, self.command("replay", txid, "--changed-rows")
        )
        return Shard(conn_id, table, self.spec, errors, what=type(self).__name__)

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        """Whether an id or a time is within the rows of one table; None if only the database can tell."""
        from airflow_tx.sources.sql.table import Rows

        return Rows.from_json(metadata, len(self.spec.order_by)).contains(what, self.zone)

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        """Whether all rows of one table up to an id or a time were taken; None if only the database can tell."""
        from airflow_tx.sources.sql.table import TablePosition

        return TablePosition.from_json(position, len(self.spec.order_by)).reaches(what, self.zone)

    def rows_of(self, shard: Shard, metadata: Json, spark: SparkSession | None) -> EmittedRows:
        """Read exactly the decided rows; rows of SQLite come through this process, not by Spark."""
        from airflow_tx.base.rows import JDBC_DATABASES
        from airflow_tx.sources.sql.shard import JdbcRows

        if spark is None or shard.database.kind not in JDBC_DATABASES:
            return shard.rows(metadata)
        read = JdbcRows(shard, shard.parsed(metadata))
        self._read.append(read)
        return read.frame(spark)

    def types_of(self, shards: Iterable[Shard]) -> RowTypes:
        """Give the types of the columns of tables that are read as one."""
        found: dict[str, Any] = {}
        for shard in shards:
            for name, kind in shard.row_types().items():
                found[name] = kind if found.get(name, kind) == kind else None
        return found


class SqlSource(SqlRows, TransactionalSource):
    """The next rows of a table in PostgreSQL, MySQL, MariaDB or SQLite, each in exactly one batch.

    Transactions commit in another order than the one in which they drew their ids. A batch ends at a row before which
    no transaction can commit any more: the database names the ones that may, and the source waits for them. What this
    takes, and when it does not hold, is in docs/sql_source.md.

    :param conn_id: Airflow connection of type postgres, mysql or sqlite; looked up when it is needed.
    :param table: "table" or "schema.table".

    The other parameters are the same as of `SqlRows`.
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
# Rows of several SQL tables, or of one table on several servers: each is a partition with its own position.


class PartitionedSqlSource(SqlRows, LogSource):
    """Like `SqlSource`, for the same kind of rows in several tables: every table of every connection is a partition.

    A partition is called ``<conn_id>.<table>``; more of them may be added at any time. One that cannot be reached, or
    whose table is gone, stops a transactional source with the reason; an opaque one leaves it out, and takes it up
    again at its position. The limits hold for a batch as a whole; partitions share it evenly.

    :param conn_ids: one Airflow connection, or several.
    :param tables: one table, or several.

    The other parameters are the same as of `SqlRows`.
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
        """Make the reader of a partition; PartitionUnavailable: it is none of this source any more."""
        table = self._tables().get(partition)
        if table is None:
            reason = "it is not among the conn_ids and tables any more"
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
