"""The common part of the Redis sources: partitions, losses and rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, islice, product
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from airflow_tx.base.connections import (
    RedisFailure,
    make_client,
    parameters_of_connection,
    redis_dataset,
    redis_failures,
)
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import (
    ConfigError,
    OtherSource,
    PartitionUnavailable,
    RowsRefused,
    SourceError,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.base.rows import ColumnType, NotProven, UnfitText, arrow_types_of, nested_columns_of
from airflow_tx.sources.api import EmittedRows, Json, MalformedRow, RowTypes
from airflow_tx.sources.message import (
    declared_columns,
    malformed_message,
    message_batches,
    message_column,
    message_ddl,
    parsed_message,
)
from airflow_tx.sources.partitions import (
    Gone,
    LogBatch,
    LogSnapshot,
    LogSource,
    PartitionLog,
    is_number_below,
    is_number_within,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    from airflow_tx.ledger import TransactionAttempt


# --- server -------------------------------------------------------------------------------------------------------
# A Redis database. Server errors become errors of this package.


@dataclass(frozen=True)
class RedisPartition:
    """The location of a partition, from the arguments of the source.

    :param conn_id: Airflow connection.
    :param database: number of the database, or None for the database of the connection.
    :param key: key of the list or stream, or prefix of numbered keys.
    """

    conn_id: str
    database: int | None
    key: str

    @property
    def server(self) -> str:
        return self.conn_id if self.database is None else f"{self.conn_id}/{self.database}"

    @property
    def name(self) -> str:
        return f"{self.server}:{self.key}" if self.key else self.server


@dataclass(frozen=True)
class RedisDatabase:
    """The database of a partition. It can be pickled. Its repr shows no address and no password.

    :param partition: name of the partition.
    :param source: repr of the source, for errors.
    :param conn_id: Airflow connection.
    :param parameters: arguments of `redis.Redis`, including the password.
    :param skip: command that skips the transaction, for errors.
    """

    partition: str
    source: str
    conn_id: str
    parameters: Mapping[str, Any] = field(repr=False)
    skip: Command | None = None

    @property
    def where(self) -> str:
        return f"database {self.parameters.get('db') or 0} of connection {self.conn_id}"

    def client(self) -> Any:
        """Create a client that connects on its first command."""
        return make_client(self.parameters, needed_by=self.source)

    def failures(self) -> AbstractContextManager[None]:
        """Convert Redis errors to errors of this package.

        PartitionUnavailable means that the server does not respond.
        """
        return redis_failures(self.parameters, self._error)

    def _error(self, failure: RedisFailure) -> Exception:
        if failure.denied:
            remedy = f"The server says: {failure.text} Correct its login and password, or the rights of that user."
            return ConfigError(option="Redis connection", value=self.conn_id, remedy=remedy)
        if failure.away:
            return self.unavailable(f"{self.where}: {failure.text}")
        return self.refused(
            f"{self.where} says: {failure.text}", "Correct it, then clear the task."
        )

    def unavailable(self, reason: str) -> PartitionUnavailable:
        return PartitionUnavailable(partition=self.partition, source=self.source, reason=reason)

    def refused(self, problem: str, remedy: str) -> SourceError:
        return SourceError(source=self.source, problem=problem, remedy=remedy)


# --- log ----------------------------------------------------------------------------------------------------------
# The ordered messages of one partition, and their rows. A partition is a set of numbered keys, a
# list or a stream.


RedisMessage: TypeAlias = "tuple[int | str, bytes | dict[bytes, bytes]]"
"""The number or id of a message, and its bytes. An entry of a stream has fields instead of bytes."""

PAGE = 1_000
"""Maximum number of messages that one request reads."""
_SAMPLE = 100


@dataclass(frozen=True)
class MessageLog(ABC):
    """The ordered messages of one partition.

    :param database: database of the messages.
    :param key: key of the list or stream, or prefix of numbered keys.
    """

    id_column: ClassVar[str]
    """The name of the column that has a message's number or id."""

    database: RedisDatabase
    key: str

    @abstractmethod
    def snapshot(self, client: Any, position: Json) -> LogSnapshot:
        """Find the messages after a position in one round trip.

        :param position: position of the partition, or None to begin at the first message.
        :raises PartitionUnavailable: the key does not exist now.
        :raises SourceError: the key has another type, or the position belongs to another source.
        """

    @abstractmethod
    def take(self, client: Any, snapshot: LogSnapshot, count: int) -> LogBatch | Gone | None:
        """Decide up to `count` next messages, and stop at a missing message.

        :return: the messages, or `Gone` if the first message is missing, or None if there is no message.
        """

    @abstractmethod
    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        """Divide the messages that `rows` names into parts of at most `size`.

        :raises SourceError: a message is missing or replaced.
        """

    @abstractmethod
    def read(self, client: Any, part: Any) -> Iterator[RedisMessage]:
        """Read exactly the messages of a part.

        :raises SourceError: a message no longer exists.
        """

    @abstractmethod
    def sizes(self, client: Any, snapshot: LogSnapshot, most: int) -> Sequence[int]:
        """Return the sizes of up to `most` next messages, in bytes."""

    @abstractmethod
    def named(self, id_: int | str) -> str:
        """Describe a message, for errors."""

    def gone(self, what: str) -> SourceError:
        """Return the error for a batch with lost messages."""
        remedy = f"Bring them back, then clear the task; if they are gone permanently: {self.database.skip}"
        return self.database.refused(f"{what} ({self.database.where})", remedy)

    def foreign(self, position: Json) -> OtherSource:
        """Return the error for a position that belongs to another log."""
        problem = f"position {str(position)[:80]!r} of partition {self.database.partition} does not fit {self}"
        return OtherSource(source=self.database.source, problem=problem)

    def checked(self, key: str, reply: Any) -> Any:
        """Return a reply of a pipeline. Raise SourceError if the key has another type."""
        if isinstance(reply, Exception):
            if str(reply).startswith("WRONGTYPE"):
                problem = (
                    f"key {key!r} in {self.database.where} has another type: {str(reply)[:120]}"
                )
                raise self.database.refused(problem, "Name another key, or remove this one.")
            raise reply
        return reply


class RedisLog(PartitionLog):
    """The messages of one partition, with the client that reads them."""

    def __init__(self, messages: MessageLog, client: Any) -> None:
        self.messages = messages
        self.client = client

    def snapshot(self, position: Json) -> LogSnapshot:
        with self.messages.database.failures():
            return self.messages.snapshot(self.client, position)

    def sizes(self, snapshot: LogSnapshot) -> Sequence[int]:
        with self.messages.database.failures():
            return self.messages.sizes(self.client, snapshot, min(snapshot.available or 0, _SAMPLE))

    def take(self, snapshot: LogSnapshot, most: int | None) -> LogBatch | Gone | None:
        available = snapshot.available or 0
        with self.messages.database.failures():
            return self.messages.take(
                self.client, snapshot, available if most is None else min(most, available)
            )

    def set_text(self, name: str, value: Any) -> None:
        """Set the value of a key, whose name gets this partition's prefix."""
        with self.messages.database.failures():
            self.client.set(f"{self.messages.key}{name}", value)

    def parts(
        self,
        metadata: Json,
        *,
        size: int,
        columns: Mapping[str, ColumnType] | None,
        rejects: bool = False,
    ) -> list[Part]:
        """Divide a batch into parts of at most `size` messages."""
        with self.messages.database.failures():
            parts = self.messages.parts(self.client, metadata, size)
        return [Part(self.messages, each, columns, rejects) for each in parts]


# The number of messages in one record batch.
_AT_ONCE = 5_000


@dataclass(frozen=True)
class Part:
    """A part of a batch to read in one call. It can be pickled.

    :param log: messages of the partition.
    :param messages: item of `MessageLog.parts`.
    :param columns: columns of JSON messages, or None for texts.
    :param rejects: whether to yield a `MalformedRow` for a message that cannot be read.
    """

    log: MessageLog
    messages: Any
    columns: Mapping[str, ColumnType] | None
    rejects: bool = False

    def rows(self, client: Any) -> Iterator[dict[str, Any] | MalformedRow]:
        """Read the rows.

        :raises RowsRefused: a message cannot be read.
        :raises SourceError: a message no longer exists.
        """
        with self.log.database.failures():
            yield from self._rows(self.log.read(client, self.messages))

    def batches(
        self, client: Any, types: Mapping[str, pa.DataType], malformed: list[MalformedRow]
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows as record batches. It raises the same errors as `rows`.

        :param malformed: list to which malformed rows are added.
        """
        with self.log.database.failures():
            messages = iter(self.log.read(client, self.messages))
            while page := list(islice(messages, _AT_ONCE)):
                make = partial(self._batch, page, types)
                yield from message_batches(make, self._rows(page), types, malformed)

    def _rows(self, messages: Iterable[RedisMessage]) -> Iterator[dict[str, Any] | MalformedRow]:
        partition = self.log.database.partition
        for id_, raw in messages:
            try:
                message = self._parsed(raw)
            except ValueError as error:
                if not self.rejects:
                    raise self.unreadable(id_, error) from None
                where = f"partition {partition}, {self.log.named(id_)}"
                yield malformed_message(raw, error, where)
                continue
            yield {"partition": partition, self.log.id_column: id_, "message": message}

    def _batch(
        self, page: Sequence[RedisMessage], types: Mapping[str, pa.DataType]
    ) -> pa.RecordBatch:
        import pyarrow as pa

        raws = [raw for _, raw in page if not isinstance(raw, dict)]
        if len(raws) < len(page):
            raise NotProven("messages that consist of fields")
        values = {
            "partition": pa.repeat(self.log.database.partition, len(page)),
            self.log.id_column: pa.array([id_ for id_, _ in page]),
            "message": message_column(raws, self.columns, types["message"]),
        }
        return pa.RecordBatch.from_pydict(values, pa.schema(types))

    def unreadable(self, id_: int | str, why: ValueError) -> RowsRefused:
        """Return the error for an unreadable message, which fails the batch."""
        database = self.log.database
        named = f"{self.log.named(id_)} in {database.where}, partition {database.partition},"
        problem = f"{named} cannot be read"
        return RowsRefused(
            source=database.source,
            problem=f"{problem}: {why}",
            remedy=Remedy.of("Correct the message and clear the run, or: ", database.skip),
            place=UnfitText.place_of(why, within=problem),
        )

    def _parsed(self, raw: bytes | dict[bytes, bytes]) -> Any:
        if not isinstance(raw, dict):
            return parsed_message(raw, self.columns)
        return {parsed_message(name, None): parsed_message(raw[name], None) for name in raw}


def message_digest(message: bytes) -> str:
    """Return the digest of a message."""
    return blake2b(message, digest_size=8).hexdigest()


def spelled(numbers: Sequence[int]) -> str:
    """Format numbers as text with ranges, such as "3, 7 to 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:10]]
    return ", ".join(texts) + (" ..." if len(runs) > 10 else "")


# --- source -------------------------------------------------------------------------------------------------------


PART = 20_000
"""Number of messages in one part of a batch."""


class RedisSource(LogSource):
    """The base class of `RedisNumberedSource`, `RedisListSource` and `RedisStreamSource`.

    Every combination of a connection, a database and a key is a partition.

    :param conn_id: one or several Airflow connections of type redis.
    :param keys: keys or prefixes.
    :param databases: numbers of the databases of each connection. The default is the database of the connection.
    :param malformed: how to handle a message that does not fit its `schema` or is not UTF-8. ``refuse`` fails the
        batch. ``reject`` writes the message to the `rejected` table of the `Transaction`.

    The other parameters are the same as for `LogSource`.
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
        malformed: str = "refuse",
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.take_malformed(malformed)
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
        """Parse an argument of one or several names.

        :raises ConfigError: there is no name, or a name is empty.
        """
        found = texts(value)
        if not found or not all(found):
            raise self.unusable(argument, value, remedy)
        self.normalize(**{argument: found})
        return found

    @abstractmethod
    def messages(self, database: RedisDatabase, key: str) -> MessageLog:
        """Return the messages of one partition."""

    def connections(self) -> Mapping[str, str]:
        return dict.fromkeys(self.conn_ids, "redis")

    def datasets(self) -> list[Dataset]:
        return [
            redis_dataset(self._parameters(each), each.key) for each in self._partitions.values()
        ]

    def partitions(self) -> list[str]:
        return list(self._partitions)

    def partition_contains(self, partition: str, metadata: Any, what: str) -> bool:
        return is_number_within(what, metadata["from"], metadata["from"] + metadata["quantity"])

    def partition_reaches(self, partition: str, position: Any, what: str) -> bool | None:
        return is_number_below(what, position["next"])

    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, RedisLog]:
        return {name: self.log_of(name) for name in self._partitions}

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, Remedy]:
        text = "; ".join(f"partition {name}: {each.description}" for name, each in gone.items())
        remedy = (
            "Restore the messages, or continue without them: "
            + self.command("accept-loss")
            + ". Before the first batch, set NEXT_READ to the number of the first existing message."
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
        return self._stage(spark, self.emit_arrow(attempt, metadata))

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        import pyarrow as pa

        if not isinstance(metadata, dict) or not metadata:
            return super().emit_arrow(attempt, metadata)
        parts = [self._parts(attempt, name, metadata[name]) for name in sorted(metadata)]
        types = cast("Any", self.row_types(attempt, metadata))
        batches = (
            part.batches(self._client(part.log.database), types, self.malformed_rows)
            for part in chain.from_iterable(parts)
        )
        return pa.RecordBatchReader.from_batches(pa.schema(types), chain.from_iterable(batches))

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes:
        columns = declared_columns(self, "schema", self.schema)
        log = self.log_of(min(self._partitions), attempt.txid)
        return arrow_types_of(nested_columns_of(_ddl(log.messages.id_column, columns)))

    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        if spark is not None:
            return self._stage(spark, self.emit_arrow(attempt, {partition: metadata}))
        return self._rows(self._parts(attempt, partition, metadata))

    def _parts(self, attempt: TransactionAttempt, name: str, metadata: Any) -> list[Part]:
        return self.log_of(name, attempt.txid).parts(
            metadata,
            size=PART,
            columns=declared_columns(self, "schema", self.schema),
            rejects=self.malformed == "reject",
        )

    def _rows(self, parts: Iterable[Part]) -> Iterator[Mapping[str, Any]]:
        for part in parts:
            yield from cast("Any", part.rows(self._client(part.log.database)))

    # --- servers

    def log_of(self, name: str, txid: int | None = None) -> RedisLog:
        """Return the log of one partition.

        :param name: name of the partition.
        :param txid: transaction whose messages are read, for error messages.
        """
        partition = self._partitions.get(name)
        if partition is None:
            remedy = "Add this partition to the source again, then clear the task. Or skip the transaction."
            problem = f"the batch contains partition {name}, but the source has only {', '.join(self._partitions)}"
            raise self.refused(problem, remedy)
        database = RedisDatabase(
            name,
            repr(self),
            partition.conn_id,
            self._parameters(partition),
            self.command("skip", txid),
        )
        return RedisLog(self.messages(database, partition.key), self._client(database))

    def _parameters(self, partition: RedisPartition) -> dict[str, Any]:
        found = parameters_of_connection(partition.conn_id, what=type(self).__name__)
        return found if partition.database is None else {**found, "db": partition.database}

    def _client(self, database: RedisDatabase) -> Any:
        server = self._partitions[database.partition].server
        if server not in self._clients:
            self._clients[server] = database.client()
        return self._clients[server]

    @cached_property
    def _clients(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        super().close()
        while self._clients:
            self._clients.popitem()[1].close()


def texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _ddl(id_column: str, columns: Mapping[str, ColumnType] | None) -> str:
    numbered = id_column == "number"
    column, text = ("number BIGINT", "STRING") if numbered else ("id STRING", "MAP<STRING, STRING>")
    message = text if columns is None else message_ddl(columns)
    return f"partition STRING, {column}, message {message}"
