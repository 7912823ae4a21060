"""Rows of several SQL tables, or of one table on several servers: each is a partition with its own position."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, PartitionUnavailable
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, EmittedRows, Json
from airflow_tx.sources.partitioned import PartitionedTransactionalSource
from airflow_tx.sources.sizing import Limit
from airflow_tx.sources.sql.source import SqlRows
from airflow_tx.sources.sql.spec import checked_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.protocol.batch import Loss
    from airflow_tx.sources.sql.shard import Shard, ShardSnapshot


class PartitionedSqlSource(SqlRows, PartitionedTransactionalSource):
    """Like `SqlSource`, for the same kind of rows in several tables: every table of every connection is a partition.

    A partition is called ``<conn_id>.<table>``; more of them may be added at any time. One that cannot be reached, or
    whose table is gone, stops a transactional source with the reason; an opaque one leaves it out, and takes it up
    again at its position. The limits hold for a batch as a whole; partitions share it evenly.

    :param conn_ids: one Airflow connection, or several.
    :param tables: one table, or several.

    The other parameters are those of `SqlRows`.
    """

    def __init__(self, conn_ids: str | Sequence[str], tables: str | Sequence[str], **options: Any) -> None:
        name = type(self).__name__
        self.conn_ids = _listed(name, "conn_ids", conn_ids, "shard_1")
        self.tables = _listed(name, "tables", tables, "orders")
        super().__init__(**options)
        self.normalize(conn_ids=self.conn_ids, tables=self.tables)
        self._next: _Next | None = None

    def connections(self) -> dict[str, str]:
        return dict.fromkeys(self.conn_ids, "postgres")

    def partitions(self) -> list[str]:
        return list(self._tables())

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        copied = copy.copy(self)
        copied._next = _Next(self, self.partition_positions(position))
        return PartitionedTransactionalSource.decide(copied, attempt, position)

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Json) -> Batch | None:
        assert self._next is not None
        return self._next.take(partition)

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        assert self._next is not None
        return self._next.reason_for(count)

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        return self.rows_of(self.shard_of(partition), metadata, spark)

    def decide_partition_again(self, attempt: TransactionAttempt, partition: str, metadata: Json) -> Json:
        return self.shard_of(partition).again(metadata)

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        return self.has_key(metadata, what)

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        return self.has_reached(position, what)

    def backlog(self, position: Json) -> int:
        positions, rows = self.partition_positions(position), 0
        for partition in self.partitions():
            with suppress(PartitionUnavailable):
                rows += self.shard_of(partition).backlog(positions.get(partition))
        return rows

    def losses(self, position: Json) -> list[Loss]:
        positions, found = self.partition_positions(position), []
        for partition in self.partitions():
            with suppress(PartitionUnavailable):
                found += self.shard_of(partition).losses(positions.get(partition))
        return found

    def shard_of(self, partition: str) -> Shard:
        """Make the reader of a partition; PartitionUnavailable: it is none of this source any more."""
        table = self._tables().get(partition)
        if table is None:
            reason = "it is not among the conn_ids and tables any more"
            raise PartitionUnavailable(partition=partition, source=repr(self), reason=reason)
        return self.shard(*table, partition)

    def _tables(self) -> dict[str, tuple[str, str]]:
        return {f"{conn_id}.{table}": (conn_id, table) for conn_id in self.conn_ids for table in self.tables}


class _Next:
    """What the partitions of a source have behind their positions, and how much of it one batch takes."""

    def __init__(self, source: PartitionedSqlSource, positions: Mapping[str, Json]) -> None:
        self._shards: dict[str, Shard] = {}
        self._snapshots: dict[str, ShardSnapshot] = {}
        self._away: dict[str, PartitionUnavailable] = {}
        deadline = source.deadline()
        for partition in source.partitions():
            try:
                self._shards[partition] = source.shard_of(partition)
                self._snapshots[partition] = self._shards[partition].snapshot(positions.get(partition), deadline)
            except PartitionUnavailable as error:
                self._away[partition] = error
        self._some = [partition for partition, each in self._snapshots.items() if each.end is not None]
        self._limit, self._shares = self._fitted(source.limit)
        self._all = True

    def take(self, partition: str) -> Batch | None:
        """Take the share of one partition; PartitionUnavailable: it could not be reached."""
        if partition in self._away:
            raise self._away[partition]
        share = self._shares.get(partition)
        if partition not in self._some or share == 0:
            return None
        taken = self._shards[partition].take(self._snapshots[partition], share)
        if taken is None:
            return None
        rows, position = taken
        self._all &= rows.ends[-1] == self._snapshots[partition].end
        return Batch(rows.to_json(), position.to_json(), rows.count)

    def reason_for(self, count: int) -> str:
        return self._limit.reason_for(count, count if self._all else None)

    def _fitted(self, limit: Limit) -> tuple[Limit, dict[str, int]]:
        """Find the limit as a number of rows, and the share of each partition; none, if there is no limit."""
        if limit.bytes is not None:
            sizes = [size for name in self._some for size in self._shards[name].sizes(self._snapshots[name])]
            limit = limit.of_rows_of(sizes)
        if limit.rows is None:
            return limit, {}
        available = {name: self._shards[name].available(self._snapshots[name], limit.rows) for name in self._some}
        return limit, limit.shares(available)


def _listed(source: str, option: str, names: str | Sequence[str], example: str) -> list[str]:
    given = [names] if isinstance(names, str) else list(names)
    if not given or len(set(map(repr, given))) < len(given):
        remedy = f'Give names, each once, such as ["{example}"].'
        raise ConfigError(option=f"{option} of {source}", value=names, remedy=remedy)
    return [checked_text(source, option, name, example) for name in given]
