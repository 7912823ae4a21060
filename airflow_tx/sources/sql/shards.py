"""Rows of several SQL tables, or of one table on several servers: each is a partition with its own position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, PartitionUnavailable
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import EmittedRows, Json
from airflow_tx.sources.partitions import Gone, LogSource
from airflow_tx.sources.sql.source import SqlRows
from airflow_tx.sources.sql.spec import checked_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.sources.sql.shard import Shard


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

    def partitions(self) -> list[str]:
        return list(self._tables())

    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, Shard]:
        return {partition: self.shard_of(partition) for partition in self.partitions()}

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, str]:
        return "; ".join(
            f"partition {name}: {each.description}" for name, each in gone.items()
        ), self.accept()

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
