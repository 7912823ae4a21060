"""Messages in Redis that come in an order: numbered keys, a list, a stream; and their rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, TypeAlias

from airflow_tx.errors import OtherSource, RowsRefused, SourceError
from airflow_tx.rows.types import ColumnType
from airflow_tx.sources.api import Json
from airflow_tx.sources.message import parsed_message
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot, PartitionLog
from airflow_tx.sources.redis.server import RedisDatabase

RedisMessage: TypeAlias = "tuple[int | str, bytes | dict[bytes, bytes]]"
"""A number or id, and its value in Redis: a text, or the fields of a stream's entry."""

PAGE = 1_000
"""Messages of one request."""
_SAMPLE = 100


@dataclass(frozen=True)
class MessageLog(ABC):
    """The messages of one partition, in their order.

    :param database: where they are stored.
    :param key: of the list or the stream; of numbered messages, what their keys begin with.
    """

    id_column: ClassVar[str]
    """The column of a message's number or id."""

    database: RedisDatabase
    key: str

    @abstractmethod
    def snapshot(self, client: Any, position: Json) -> LogSnapshot:
        """Find what comes after a position, in one round trip.

        :param position: None: from the first message on.
        :raises PartitionUnavailable: there is no such log now.
        :raises SourceError: what is there is no such log, or the position is another source's.
        """

    @abstractmethod
    def take(self, client: Any, snapshot: LogSnapshot, count: int) -> LogBatch | Gone | None:
        """Decide the next messages, at most `count`, up to a missing one; `Gone` if that is the first."""

    @abstractmethod
    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        """Cut the messages that `rows` names into parts of at most `size`; refuse if one is gone or replaced."""

    @abstractmethod
    def read(self, client: Any, part: Any) -> Iterator[RedisMessage]:
        """Read exactly the messages of a part; refuse if one is gone."""

    @abstractmethod
    def sizes(self, client: Any, snapshot: LogSnapshot, most: int) -> Sequence[int]:
        """Measure the bytes of the next messages, at most `most`."""

    @abstractmethod
    def named(self, id_: int | str) -> str:
        """Word one message."""

    def gone(self, what: str) -> SourceError:
        """Make the error for a batch whose messages are gone."""
        remedy = f"Bring them back, then clear the task; if they are gone permanently: {self.database.skip}"
        return self.database.refused(f"{what} ({self.database.where})", remedy)

    def foreign(self, position: Json) -> OtherSource:
        """Make the error for a position of another log."""
        problem = f"position {str(position)[:80]!r} of partition {self.database.partition} is none of {self}"
        return OtherSource(source=self.database.source, problem=problem)

    def checked(self, key: str, reply: Any) -> Any:
        """Return a reply of a pipeline; refuse one about a key of another type."""
        if isinstance(reply, Exception):
            if str(reply).startswith("WRONGTYPE"):
                problem = f"key {key!r} in {self.database.where} is not what is read there: {str(reply)[:120]}"
                raise self.database.refused(problem, "Name another key, or remove this one.")
            raise reply
        return reply


class RedisLog(PartitionLog):
    """The messages of one partition, read by a client."""

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
        """Set the value under a name beside the messages."""
        with self.messages.database.failures():
            self.client.set(f"{self.messages.key}{name}", value)

    def parts(
        self, metadata: Json, *, size: int, columns: Mapping[str, ColumnType] | None
    ) -> list[Part]:
        """Cut a batch into parts of at most `size` messages."""
        with self.messages.database.failures():
            parts = self.messages.parts(self.client, metadata, size)
        return [Part(self.messages, each, columns) for each in parts]


@dataclass(frozen=True)
class Part:
    """Messages that are read in one go. It can be pickled.

    :param messages: of a batch, from `MessageLog.parts`.
    :param columns: of the JSON object that a message is; None: it is a text.
    """

    log: MessageLog
    messages: Any
    columns: Mapping[str, ColumnType] | None

    def rows(self, client: Any) -> Iterator[dict[str, Any]]:
        """Read the rows; RowsRefused for a message that cannot be read, SourceError for one that is gone."""
        with self.log.database.failures():
            for id_, raw in self.log.read(client, self.messages):
                message = self._parsed(id_, raw)
                yield {
                    "partition": self.log.database.partition,
                    self.log.id_column: id_,
                    "message": message,
                }

    def unreadable(self, id_: int | str, why: str) -> RowsRefused:
        """Make the error for a message that cannot be read: it fails the batch."""
        database = self.log.database
        named = f"{self.log.named(id_)} in {database.where}, partition {database.partition},"
        return RowsRefused(
            source=database.source,
            problem=f"{named} cannot be read: {why}",
            remedy=f"Correct it and clear the run, or: {database.skip}",
        )

    def _parsed(self, id_: int | str, raw: bytes | dict[bytes, bytes]) -> Any:
        try:
            if isinstance(raw, dict):
                return {name.decode(): value.decode() for name, value in raw.items()}
        except UnicodeDecodeError as error:
            raise self.unreadable(
                id_, f"it is not UTF-8 ({error.reason} at byte {error.start})"
            ) from None
        try:
            return parsed_message(raw, self.columns)
        except ValueError as error:
            raise self.unreadable(id_, str(error)) from None


def message_digest(message: bytes) -> str:
    """Fingerprint a message."""
    return blake2b(message, digest_size=8).hexdigest()


def spelled(numbers: Sequence[int]) -> str:
    """Spell numbers, runs as ranges: 3, 7 to 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:10]]
    return ", ".join(texts) + (" ..." if len(runs) > 10 else "")
