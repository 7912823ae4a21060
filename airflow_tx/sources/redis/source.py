"""What the sources of Redis share: which partitions there are, how large batches are, what is lost, and the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.connections.redis import parameters_of_connection
from airflow_tx.errors import ConfigError, PartitionUnavailable, SourceError
from airflow_tx.protocol.batch import Loss
from airflow_tx.sources.api import Batch, Json, SourceKind, source_kind
from airflow_tx.sources.partitioned import PartitionedTransactionalSource
from airflow_tx.sources.redis.log import Gone, LogSnapshot, MessageLog
from airflow_tx.sources.redis.messages import Part, rows_of
from airflow_tx.sources.redis.server import RedisDatabase
from airflow_tx.sources.sizing import BatchSize, Limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.protocol.attempt import TransactionAttempt

PART = 20_000
"""Messages that one process reads: a batch of more is read by executors."""


@dataclass(frozen=True)
class Place:
    """Where a partition lies, as the arguments say it.

    :param database: None: the one of the connection.
    """

    conn_id: str
    database: int | None
    key: str

    @property
    def partition(self) -> str:
        database = "" if self.database is None else f"/{self.database}"
        return f"{self.conn_id}{database}" + (f":{self.key}" if self.key else "")


class RedisSource(PartitionedTransactionalSource):
    """Messages of Redis: the base of `RedisNumberedSource`, `RedisListSource` and `RedisStreamSource`."""

    kind: SourceKind  # type: ignore[misc]  # an argument says it, so it is the instance's
    rows_can_change: ClassVar[bool] = False
    batch_size: BatchSize

    def __init__(
        self,
        conn_id: str | Sequence[str],
        databases: Sequence[int],
        keys: Sequence[str],
        *,
        kind: str,
        schema: str | None,
        max_rows_per_batch: int | None,
        max_bytes_per_batch: int | None,
        target_seconds: float | None,
    ) -> None:
        name = type(self).__name__
        self.conn_ids, self.databases, self.schema = texts(conn_id), tuple(databases), schema
        if not self.conn_ids or not all(self.conn_ids):
            raise ConfigError(option=f"conn_id of {name}", value=conn_id, remedy="Name an Airflow connection.")
        if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in self.databases):
            remedy = "Give the numbers of databases, such as [0, 1, 2, 3]."
            raise ConfigError(option=f"databases of {name}", value=databases, remedy=remedy)
        self.kind = source_kind(kind, name)
        self.batch_size = BatchSize.checked(
            name, max_rows=max_rows_per_batch, max_bytes=max_bytes_per_batch, target_seconds=target_seconds
        )
        self.limit = self.batch_size.limit()
        places = [Place(*each) for each in product(self.conn_ids, self.databases or (None,), keys)]
        self._places = {place.partition: place for place in places}
        if len(self._places) < len(places):
            remedy = "Name every connection, database and key once."
            raise ConfigError(
                option=f"partitions of {name}", value=[place.partition for place in places], remedy=remedy
            )
        self._clients: dict[str, Any] = {}
        self._looks: dict[str, LogSnapshot | PartitionUnavailable] = {}
        self._missed: dict[str, Gone] = {}
        self._empty: set[str] = set()
        self._asked: Limit = self.limit

    @abstractmethod
    def own_arguments(self) -> dict[str, Any]:
        """Return the further arguments that are not the default."""

    @abstractmethod
    def log(self, database: RedisDatabase, key: str) -> MessageLog:
        """Make the log of one partition."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments: dict[str, Any] = {"conn_id": list(self.conn_ids), **self.own_arguments(), "kind": self.kind.value}
        if self.databases:
            arguments["databases"] = list(self.databases)
        return f"{type(self).__module__}.{type(self).__qualname__}", {**arguments, **self.batch_size.arguments()}

    def __repr__(self) -> str:
        shown: dict[str, Any] = {"databases": list(self.databases)} if self.databases else {}
        shown |= {**self.own_arguments(), **self.batch_size.arguments()}
        if self.kind is SourceKind.OPAQUE:
            shown["kind"] = self.kind.value
        conn_id = self.conn_ids[0] if len(self.conn_ids) == 1 else list(self.conn_ids)
        return f"{type(self).__name__}({', '.join([repr(conn_id), *(f'{k}={v!r}' for k, v in shown.items())])})"

    def connections(self) -> Mapping[str, str]:
        return dict.fromkeys(self.conn_ids, "redis")

    def partitions(self) -> list[str]:
        return list(self._places)

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    # --- deciding

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        places = position if isinstance(position, dict) else {}
        self._missed, self._empty = {}, set()
        try:
            self._looks = {name: self._try_look(name, places.get(name)) for name in self._places}
            self._asked = self._sized()
            batch, left_out = super().decide(attempt, position), 0
            # Shares of those that had nothing, against what their server said, go to the others.
            while batch is None and len(self._missed) + len(self._empty) > left_out:
                left_out = len(self._missed) + len(self._empty)
                batch = super().decide(attempt, position)
            if batch is None and len(self._missed) == len(self._places):
                raise self._refused_as_gone(self._missed)
            return batch
        finally:
            self._looks = {}

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Json) -> Batch | None:
        look = self._looks.get(partition) or self._look(partition, position)
        if isinstance(look, PartitionUnavailable):
            raise look
        if look.gone is not None:
            raise self._lost(partition, look.gone)
        count = self._shares().get(partition, look.available) if self._looks else look.available
        log = self._log(partition)
        with log.database.telling():
            taken = log.take(self._client(log.database), look, count)
            if isinstance(taken, Gone):
                raise self._lost(partition, taken)
            if taken is None and count:
                self._empty.add(partition)
            if position is not None:
                log.passed(self._client(log.database), look)
        return taken

    def limit_reason(self, count: int, places: Mapping[str, Json]) -> str:
        return self._asked.reason_for(count, sum(self._available().values()))

    def backlog(self, position: Json) -> int | None:
        places = position if isinstance(position, dict) else {}
        try:
            return sum(self._look(name, places.get(name)).available for name in self._places)
        except PartitionUnavailable:
            return None

    def losses(self, position: Json) -> Sequence[Loss]:
        places = position if isinstance(position, dict) else {}
        found = []
        for name in self._places:
            if (place := places.get(name)) is None:
                continue
            try:
                gone = self._missing(name, place)
            except PartitionUnavailable:
                continue
            if gone is not None:
                found.append(Loss(name, place, gone.resume_at, gone.description))
        return found

    def _missing(self, name: str, place: Json) -> Gone | None:
        look, log = self._look(name, place), self._log(name)
        if look.gone is not None or not look.available:
            return look.gone
        with log.database.telling():
            # Less than all would do; but only all of them tell what is missing in a stream.
            taken = log.take(self._client(log.database), look, min(look.available, self.limit.rows or look.available))
        return taken if isinstance(taken, Gone) else None

    def _try_look(self, name: str, place: Json) -> LogSnapshot | PartitionUnavailable:
        try:
            return self._look(name, place)
        except PartitionUnavailable as error:
            return error

    def _look(self, name: str, place: Json) -> LogSnapshot:
        log = self._log(name)
        with log.database.telling():
            return log.look(self._client(log.database), place)

    def _available(self) -> dict[str, int]:
        out = {*self._missed, *self._empty}
        return {
            name: look.available
            for name, look in self._looks.items()
            if isinstance(look, LogSnapshot) and look.gone is None and look.available and name not in out
        }

    def _shares(self) -> dict[str, int]:
        return self._asked.shares(self._available())

    def _sized(self) -> Limit:
        if self.limit.bytes is None:
            return self.limit
        sizes: list[int] = []
        for name in self._available():
            log, look = self._log(name), self._looks[name]
            assert isinstance(look, LogSnapshot)
            with log.database.telling():
                sizes.extend(log.sizes(self._client(log.database), look))
        return self.limit.of_rows_of(sizes)

    def _lost(self, partition: str, gone: Gone) -> SourceError:
        self._missed[partition] = gone
        if self.kind is SourceKind.TRANSACTIONAL:
            return self._refused_as_gone({partition: gone})
        reason = f"messages that come next are gone: {gone.description}. {_ACCEPT}"
        return PartitionUnavailable(partition=partition, source=repr(self), reason=reason)

    def _refused_as_gone(self, lost: Mapping[str, Gone]) -> SourceError:
        told = "; ".join(f"partition {name}: {gone.description}" for name, gone in lost.items())
        problem = f"messages that come next are gone: {told}"
        return self.refused(problem, f"Nothing was allocated. {_ACCEPT}")

    # --- rows

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> DataFrame | Iterable[Mapping[str, Any]]:
        if spark is None or not isinstance(metadata, dict) or not metadata:
            return super().emit_batch(attempt, metadata, spark)
        return self._frame(spark, [self._parts(name, metadata[name]) for name in sorted(metadata)])

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Json, spark: SparkSession | None = None
    ) -> DataFrame | Iterable[Mapping[str, Any]]:
        parts = self._parts(partition, metadata)
        return self._rows(parts) if spark is None else self._frame(spark, [parts])

    def _parts(self, name: str, metadata: Any) -> list[Part]:
        log = self._log(name)
        with log.database.telling():
            parts = log.parts(self._client(log.database), metadata, PART)
        return [Part(log, each, self.schema is not None) for each in parts]

    def _rows(self, parts: Iterable[Part]) -> Iterator[Mapping[str, Any]]:
        for part in parts:
            yield from rows_of(part, self._client(part.log.database))

    def _frame(self, spark: SparkSession, parts: Sequence[Sequence[Part]]) -> DataFrame:
        from airflow_tx.sources.redis.spark import frame

        return frame(spark, list(chain.from_iterable(parts)), schema=self.schema, at_once=PART)

    # --- servers

    def _log(self, name: str) -> MessageLog:
        if name not in self._places:
            remedy = "Bring it back, then clear the task; or skip the transaction."
            problem = f"partition {name} is in the batch, and is none of {', '.join(self._places)}"
            raise self.refused(problem, remedy)
        place = self._places[name]
        parameters = parameters_of_connection(place.conn_id, what=type(self).__name__)
        if place.database is not None:
            parameters["db"] = place.database
        return self.log(RedisDatabase(name, repr(self), place.conn_id, parameters), place.key)

    def _client(self, database: RedisDatabase) -> Any:
        place = self._places[database.partition]
        at = f"{place.conn_id}/{place.database}"
        if at not in self._clients:
            self._clients[at] = database.client()
        return self._clients[at]


_ACCEPT = (
    "Bring them back, or let the source go on without them: airflow tx accept-loss TOPOLOGY --why TEXT. Before the "
    "first batch, let NEXT_READ be the number of the first message there is."
)


def texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
