"""The common part of the sources of Redis: their partitions, losses and rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.connections.redis import parameters_of_connection
from airflow_tx.errors import PartitionUnavailable, SourceError
from airflow_tx.sources.api import EmittedRows, Json
from airflow_tx.sources.message import declared_columns
from airflow_tx.sources.partitions import Gone, LogSource
from airflow_tx.sources.redis.log import MessageLog, Part, RedisLog
from airflow_tx.sources.redis.server import RedisDatabase, RedisPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.protocol.attempt import TransactionAttempt

PART = 20_000
"""Messages that one process reads: a batch of more is read by executors."""


class RedisSource(LogSource):
    """Messages of Redis: the base of `RedisNumberedSource`, `RedisListSource` and `RedisStreamSource`.

    Several connections, databases or keys are a partition each, every one with every other.

    :param conn_id: Airflow connection of type redis, or several.
    :param databases: numbers of databases of each connection; default: the one of the connection.

    The other parameters are the same as of `LogSource`.
    """

    rows_can_change: ClassVar[bool] = False
    leaves_out_gone: ClassVar[bool] = True
    schema: str | None = None

    def __init__(
        self,
        conn_id: str | Sequence[str],
        keys: Sequence[str],
        *,
        databases: Sequence[int] = (),
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.conn_ids = self.named_by("conn_id", conn_id, "Name an Airflow connection.")
        self.databases = tuple(databases)
        if any(
            isinstance(number, bool) or not isinstance(number, int) or number < 0
            for number in self.databases
        ):
            remedy = "Give the numbers of databases, such as [0, 1, 2, 3]."
            raise self.unusable("databases", databases, remedy)
        partitions = [
            RedisPartition(*each)
            for each in product(self.conn_ids, self.databases or (None,), keys)
        ]
        self._partitions = {each.name: each for each in partitions}
        if len(self._partitions) < len(partitions):
            remedy = "Name every connection, database and key once."
            raise self.unusable("partitions", [each.name for each in partitions], remedy)

    def named_by(self, argument: str, value: str | Sequence[str], remedy: str) -> tuple[str, ...]:
        """Read an argument that is a name, or several; ConfigError if there is none, or one is empty."""
        found = texts(value)
        if not found or not all(found):
            raise self.unusable(argument, value, remedy)
        self.normalize(**{argument: found})
        return found

    @abstractmethod
    def messages(self, database: RedisDatabase, key: str) -> MessageLog:
        """Find the messages of one partition."""

    def connections(self) -> Mapping[str, str]:
        return dict.fromkeys(self.conn_ids, "redis")

    def partitions(self) -> list[str]:
        return list(self._partitions)

    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, RedisLog]:
        return {name: self.log_of(name) for name in self._partitions}

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, str]:
        text = "; ".join(f"partition {name}: {each.description}" for name, each in gone.items())
        remedy = (
            f"Bring them back, or let the source do without them: {self.command('accept-loss')}. "
        )
        remedy += (
            "Before the first batch, let NEXT_READ be the number of the first message there is."
        )
        return f"messages that come next are gone: {text}", remedy

    def partition_refuses_again(self, partition: str, metadata: Json) -> str | None:
        log = self.log_of(partition)
        try:
            log.parts(metadata, size=PART, columns=None)
        except PartitionUnavailable:
            raise
        except SourceError as error:
            return str(error.fields["problem"])
        return None

    # --- rows

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if spark is None or not isinstance(metadata, dict) or not metadata:
            return super().emit_batch(attempt, metadata, spark)
        parts = [self._parts(attempt, name, metadata[name]) for name in sorted(metadata)]
        return self._frame(spark, chain.from_iterable(parts))

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        parts = self._parts(attempt, partition, metadata)
        return self._rows(parts) if spark is None else self._frame(spark, parts)

    def _parts(self, attempt: TransactionAttempt, name: str, metadata: Any) -> list[Part]:
        return self.log_of(name, attempt.txid).parts(
            metadata, size=PART, columns=declared_columns(self, "schema", self.schema)
        )

    def _rows(self, parts: Iterable[Part]) -> Iterator[Mapping[str, Any]]:
        for part in parts:
            yield from part.rows(self._client(part.log.database))

    def _frame(self, spark: SparkSession, parts: Iterable[Part]) -> DataFrame:
        from airflow_tx.sources.redis.spark import frame

        return frame(spark, list(parts), at_once=PART)

    # --- servers

    def log_of(self, name: str, txid: int | None = None) -> RedisLog:
        """Open the log of one partition.

        :param txid: of the transaction whose messages are read.
        """
        partition = self._partitions.get(name)
        if partition is None:
            remedy = "Bring it back, then clear the task; or skip the transaction."
            problem = (
                f"partition {name} is in the batch, and is none of {', '.join(self._partitions)}"
            )
            raise self.refused(problem, remedy)
        parameters = parameters_of_connection(partition.conn_id, what=type(self).__name__)
        if partition.database is not None:
            parameters["db"] = partition.database
        database = RedisDatabase(
            name, repr(self), partition.conn_id, parameters, self.command("skip", txid)
        )
        return RedisLog(self.messages(database, partition.key), self._client(database))

    def _client(self, database: RedisDatabase) -> Any:
        server = self._partitions[database.partition].server
        if server not in self._clients:
            self._clients[server] = database.client()
        return self._clients[server]

    @cached_property
    def _clients(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


def texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
