"""What the sources of Redis share: which partitions there are, how large batches are, what is lost, and the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.connections.redis import parameters_of_connection
from airflow_tx.errors import PartitionUnavailable, SourceError
from airflow_tx.protocol.batch import Loss
from airflow_tx.sources.api import Batch, EmittedRows, Json, SourceKind, source_kind
from airflow_tx.sources.partitioned import PartitionedTransactionalSource
from airflow_tx.sources.redis.log import Gone, LogSnapshot, MessageLog, Part
from airflow_tx.sources.redis.server import RedisDatabase, RedisPartition
from airflow_tx.sources.sizing import BatchSize, Limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.protocol.attempt import TransactionAttempt

PART = 20_000
"""Messages that one process reads: a batch of more is read by executors."""
_ACCEPT = (
    "Bring them back, or let the source do without them: airflow tx accept-loss TOPOLOGY --why TEXT. Before the "
    "first batch, let NEXT_READ be the number of the first message there is."
)


class RedisSource(PartitionedTransactionalSource):
    """Messages of Redis: the base of `RedisNumberedSource`, `RedisListSource` and `RedisStreamSource`.

    Several connections, databases or keys are a partition each, every one with every other.

    :param conn_id: Airflow connection of type redis, or several.
    :param databases: numbers of databases of each connection; default: the one of the connection.
    :param kind: ``transactional`` or ``opaque``.
    :param max_rows_per_batch: at most so many messages in a batch, of all partitions together.
    :param max_bytes_per_batch: at most so many bytes, by a sample of the messages.
    :param target_seconds: as many messages as are processed in so many seconds, by what the last transactions took.
    """

    rows_can_change: ClassVar[bool] = False
    batch_size: BatchSize
    schema: str | None = None

    def __init__(
        self,
        conn_id: str | Sequence[str],
        keys: Sequence[str],
        *,
        databases: Sequence[int] = (),
        kind: str = "transactional",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        target_seconds: float | None = None,
    ) -> None:
        name = type(self).__name__
        self.conn_ids = self.named_by("conn_id", conn_id, "Name an Airflow connection.")
        self.databases = tuple(databases)
        if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in self.databases):
            remedy = "Give the numbers of databases, such as [0, 1, 2, 3]."
            raise self.unusable("databases", databases, remedy)
        self.kind = source_kind(kind, name)
        self.batch_size = BatchSize.checked(
            name, max_rows=max_rows_per_batch, max_bytes=max_bytes_per_batch, target_seconds=target_seconds
        )
        self.limit = self.batch_size.limit()
        partitions = [RedisPartition(*each) for each in product(self.conn_ids, self.databases or (None,), keys)]
        self._partitions = {each.name: each for each in partitions}
        if len(self._partitions) < len(partitions):
            remedy = "Name every connection, database and key once."
            raise self.unusable("partitions", [each.name for each in partitions], remedy)
        self._snapshots: dict[str, LogSnapshot | PartitionUnavailable] = {}
        self._gone_of: dict[str, Gone] = {}
        self._empty: set[str] = set()
        self._limit: Limit = self.limit

    def named_by(self, argument: str, value: str | Sequence[str], remedy: str) -> tuple[str, ...]:
        """Read an argument that is a name, or several; ConfigError if there is none, or one is empty."""
        if not (found := texts(value)) or not all(found):
            raise self.unusable(argument, value, remedy)
        self.normalize(**{argument: found})
        return found

    @abstractmethod
    def log(self, database: RedisDatabase, key: str) -> MessageLog:
        """Make the log of one partition."""

    def connections(self) -> Mapping[str, str]:
        return dict.fromkeys(self.conn_ids, "redis")

    def partitions(self) -> list[str]:
        return list(self._partitions)

    @cached_property
    def _clients(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    # --- deciding

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        positions = self.partition_positions(position)
        self._gone_of, self._empty = {}, set()
        try:
            self._snapshots = {name: self._try_snapshot(name, positions.get(name)) for name in self._partitions}
            self._limit = self._fitted()
            batch, left_out = super().decide(attempt, position), 0
            # Shares of those that had nothing, against what their server said, go to the others.
            while batch is None and len(self._gone_of) + len(self._empty) > left_out:
                left_out = len(self._gone_of) + len(self._empty)
                batch = super().decide(attempt, position)
            if batch is None and len(self._gone_of) == len(self._partitions):
                raise self._refused_as_gone(self._gone_of)
            return batch
        finally:
            self._snapshots = {}

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Json) -> Batch | None:
        snapshot = self._snapshots[partition]
        if isinstance(snapshot, PartitionUnavailable):
            raise snapshot
        if snapshot.gone is not None:
            raise self._lost(partition, snapshot.gone)
        count = self._limit.shares(self._available()).get(partition, snapshot.available)
        with self._connected(partition) as (log, client):
            taken = log.take(client, snapshot, count)
            if isinstance(taken, Gone):
                raise self._lost(partition, taken)
            if taken is None and count:
                self._empty.add(partition)
            if position is not None:
                log.passed(client, snapshot)
        return taken

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        return self._limit.reason_for(count, sum(self._available().values()))

    def backlog(self, position: Json) -> int | None:
        positions = self.partition_positions(position)
        try:
            return sum(self._snapshot(name, positions.get(name)).available for name in self._partitions)
        except PartitionUnavailable:
            return None

    def losses(self, position: Json) -> Sequence[Loss]:
        positions, found = self.partition_positions(position), []
        for name in self._partitions:
            if (own := positions.get(name)) is not None:
                with suppress(PartitionUnavailable):
                    gone = self._missing(name, own)
                    found += [] if gone is None else [Loss(name, own, gone.resume_at, gone.description)]
        return found

    def _missing(self, name: str, position: Json) -> Gone | None:
        snapshot = self._snapshot(name, position)
        if snapshot.gone is not None or not snapshot.available:
            return snapshot.gone
        with self._connected(name) as (log, client):
            # Less than all would do; but only all of them show what is missing in a stream.
            taken = log.take(client, snapshot, min(snapshot.available, self.limit.rows or snapshot.available))
        return taken if isinstance(taken, Gone) else None

    def _try_snapshot(self, name: str, position: Json) -> LogSnapshot | PartitionUnavailable:
        try:
            return self._snapshot(name, position)
        except PartitionUnavailable as error:
            return error

    def _snapshot(self, name: str, position: Json) -> LogSnapshot:
        with self._connected(name) as (log, client):
            return log.snapshot(client, position)

    def _usable(self) -> dict[str, LogSnapshot]:
        return {
            name: snapshot
            for name, snapshot in self._snapshots.items()
            if isinstance(snapshot, LogSnapshot) and snapshot.gone is None and snapshot.available
        }

    def _available(self) -> dict[str, int]:
        out = {*self._gone_of, *self._empty}
        return {name: each.available for name, each in self._usable().items() if name not in out}

    def _fitted(self) -> Limit:
        if self.limit.bytes is None:
            return self.limit
        sizes: list[int] = []
        for name, snapshot in self._usable().items():
            with self._connected(name) as (log, client):
                sizes.extend(log.sizes(client, snapshot))
        return self.limit.of_rows_of(sizes)

    def _lost(self, partition: str, gone: Gone) -> SourceError:
        self._gone_of[partition] = gone
        if self.kind is SourceKind.TRANSACTIONAL:
            return self._refused_as_gone({partition: gone})
        reason = f"messages that come next are gone: {gone.description}. {_ACCEPT}"
        return PartitionUnavailable(partition=partition, source=repr(self), reason=reason)

    def _refused_as_gone(self, lost: Mapping[str, Gone]) -> SourceError:
        text = "; ".join(f"partition {name}: {gone.description}" for name, gone in lost.items())
        return self.refused(f"messages that come next are gone: {text}", f"Nothing was allocated. {_ACCEPT}")

    # --- rows

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None) -> EmittedRows:
        if spark is None or not isinstance(metadata, dict) or not metadata:
            return super().emit_batch(attempt, metadata, spark)
        return self._frame(spark, chain.from_iterable(self._parts(name, metadata[name]) for name in sorted(metadata)))

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        parts = self._parts(partition, metadata)
        return self._rows(parts) if spark is None else self._frame(spark, parts)

    def _parts(self, name: str, metadata: Any) -> list[Part]:
        with self._connected(name) as (log, client):
            return [Part(log, each, self.schema is not None) for each in log.parts(client, metadata, PART)]

    def _rows(self, parts: Iterable[Part]) -> Iterator[Mapping[str, Any]]:
        for part in parts:
            yield from part.rows(self._client(part.log.database))

    def _frame(self, spark: SparkSession, parts: Iterable[Part]) -> DataFrame:
        from airflow_tx.sources.redis.spark import frame

        return frame(spark, list(parts), schema=self.schema, at_once=PART)

    # --- servers

    @contextmanager
    def _connected(self, name: str) -> Iterator[tuple[MessageLog, Any]]:
        if (partition := self._partitions.get(name)) is None:
            remedy = "Bring it back, then clear the task; or skip the transaction."
            problem = f"partition {name} is in the batch, and is none of {', '.join(self._partitions)}"
            raise self.refused(problem, remedy)
        parameters = parameters_of_connection(partition.conn_id, what=type(self).__name__)
        if partition.database is not None:
            parameters["db"] = partition.database
        database = RedisDatabase(name, repr(self), partition.conn_id, parameters)
        with database.failures():
            yield self.log(database, partition.key), self._client(database)

    def _client(self, database: RedisDatabase) -> Any:
        server = self._partitions[database.partition].server
        if server not in self._clients:
            self._clients[server] = database.client()
        return self._clients[server]


def texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
