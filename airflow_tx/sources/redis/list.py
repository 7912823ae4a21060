"""The source of Redis lists to which writers only append. A transaction takes the next messages of every list."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_tx.sources.api import Json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot
from airflow_tx.sources.redis.source import (
    PAGE,
    MessageLog,
    RedisDatabase,
    RedisMessage,
    RedisSource,
    message_digest,
    spelled,
)

# --- counted ------------------------------------------------------------------------------------------------------
# The common part of numbered keys and lists, whose messages have consecutive numbers. A server that
# was killed and lost its latest messages reuses their numbers. A position therefore has the next
# number, and a digest of the message before that number. If that message differs later, the server
# went back. Source: Getting Started with Storm, chapter 8 (RQ).


@dataclass(frozen=True)
class Cursor:
    """A position among numbered messages.

    :param next: number of the next message.
    :param last: digest of the message before `next`, or None if it is unknown.
    :param life: number of times that the server went back, which keeps positions unique.
    """

    next: int
    last: str | None = None
    life: int = 0

    def to_json(self) -> Json:
        return {name: value for name, value in vars(self).items() if value or name == "next"}


def pages(first: int, end: int) -> list[range]:
    """Divide the numbers from `first` to `end`, exclusive, into pages. Each request reads one page."""
    return [range(start, min(start + PAGE, end)) for start in range(first, end, PAGE)]


@dataclass(frozen=True)
class CountedMessages(MessageLog):
    id_column: ClassVar[str] = "number"

    def cursor(self, position: Json) -> Cursor:
        """Parse a position from the ledger.

        :raises OtherSource: the position belongs to another log.
        """
        try:
            return Cursor(**position)  # type: ignore[arg-type]
        except TypeError:
            raise self.foreign(position) from None

    def loss(self, cursor: Cursor, end: int, before: bytes | None) -> Gone | None:
        """Return the loss if the server went back. Otherwise return None.

        :param end: number that the next message will get.
        :param before: current message before the cursor, or None if it is missing.
        """
        went_back = f"{self.database.where} went back"
        if end < cursor.next:
            what = f"{went_back}: it would give {spelled(range(end, cursor.next))} again; what it held from "
            after = Cursor(end, life=cursor.life + 1)
            what = f"{what}{cursor.next} on is gone, and it is read from {end} on"
            return Gone(what, after.to_json(), went_back=True)
        if before is not None and cursor.last is not None and message_digest(before) != cursor.last:
            what = f"{went_back} and gave numbers again: {self.named(cursor.next - 1)} is another one than was taken; "
            after = replace(cursor, last=message_digest(before), life=cursor.life + 1)
            what += f"those before {cursor.next} that were not taken"
            return Gone(what, after.to_json(), went_back=True)
        return None

    def log_batch(self, snapshot: LogSnapshot, count: int, last: bytes) -> LogBatch:
        """Return the batch with the next `count` messages.

        :param last: last message of the batch.
        """
        cursor: Cursor = snapshot.position
        after = replace(cursor, next=cursor.next + count, last=message_digest(last))
        rows: Json = {"from": cursor.next, "quantity": count, "last": after.last}
        ended = count == snapshot.available
        return LogBatch(rows, after.to_json(), count, start=cursor.to_json(), ended=ended)

    def check_last(self, rows: Any, last: bytes | None) -> None:
        """Raise an error if messages of the batch were replaced.

        The server assigns numbers in order, so the last message is always among them.
        """
        if last is not None and message_digest(last) != rows["last"]:
            first = rows["from"]
            end = rows["from"] + rows["quantity"]
            what = f"{self.named(end - 1)} has changed: some messages from {first} to {end - 1} are gone"
            raise self.gone(what)

    def parts(self, client: Any, rows: Any, size: int) -> list[dict[str, Any]]:
        self.check(client, rows)
        first = rows["from"]
        end = rows["from"] + rows["quantity"]
        return [{"from": at, "quantity": min(size, end - at)} for at in range(first, end, size)]

    @abstractmethod
    def check(self, client: Any, rows: Any) -> None:
        """Raise an error if a message of the batch is missing or replaced. This uses as few round trips as possible."""


# --- list ---------------------------------------------------------------------------------------------------------


class RedisListSource(RedisSource):
    """A source of Redis lists. A transaction takes the next messages of every list, by index.

        RedisListSource("redis_logs", lists=["web", "app"])

    A writer appends messages with RPUSH and never shortens a list. A message is a row ``{"partition": ..., "number":
    17, "message": "..."}``. Its number is its index in the list, from 0.

    The source detects that a server lost messages by one of two signs. The list ends before the next number to take, or
    the message before that number differs. The source then stops and names the loss, until the messages are back or a
    user accepts the loss. It cannot detect two kinds of loss. In the first, the server loses a message that no batch
    contains yet, and no message is written afterwards. In the second, an equal message replaces the lost message.

    The source uses the commands LLEN, LINDEX and LRANGE.

    :param conn_id: one or several Airflow connections of type redis.
    :param lists: key of a list, or several keys.
    :param schema: Spark DDL, such as ``user STRING, text STRING``, for messages that are JSON objects. The column
        `message` is then a STRUCT. By default, a message is a text.

    The other parameters are the same as for `RedisSource`: `databases`, `malformed`, `kind`, `max_rows_per_batch`,
    `max_bytes_per_batch` and `target_seconds`.
    """

    def __init__(
        self,
        conn_id: str | Sequence[str] = "redis_default",
        lists: str | Sequence[str] = (),
        *,
        schema: str | None = None,
        **options: Any,
    ) -> None:
        remedy = 'Name a list, or several: lists=["web"]. Messages under numbered keys: RedisNumberedSource.'
        self.lists = self.named_by("lists", lists, remedy)
        super().__init__(conn_id, self.lists, **options)
        self.schema = schema

    def messages(self, database: RedisDatabase, key: str) -> MessageLog:
        return ListedMessages(database, key)


@dataclass(frozen=True)
class ListedMessages(CountedMessages):
    """The messages of a list to which writers only append (RPUSH). Their numbers are their indexes, from 0."""

    def __str__(self) -> str:
        return f"the list {self.key}"

    def named(self, id_: int | str) -> str:
        return f"message {id_} of the list {self.key}"

    def snapshot(self, client: Any, position: Json) -> LogSnapshot:
        cursor = Cursor(0) if position is None else self.cursor(position)
        length, before = self._end_and(client, cursor.next - 1)
        if not length and not cursor.next:
            raise self.database.unavailable(f"there is no list {self.key} in {self.database.where}")
        gone = self.loss(cursor, length, before if cursor.next else None)
        return LogSnapshot(cursor, max(length - cursor.next, 0), gone)

    def take(self, client: Any, snapshot: LogSnapshot, count: int) -> LogBatch | Gone | None:
        if not count:
            return None
        _, last = self._end_and(client, snapshot.position.next + count - 1)
        if last is None:
            raise self.database.unavailable(
                f"the list {self.key} in {self.database.where} became shorter"
            )
        return self.log_batch(snapshot, count, last)

    def check(self, client: Any, rows: Any) -> None:
        end = rows["from"] + rows["quantity"]
        length, last = self._end_and(client, end - 1)
        if length < end:
            lost = spelled(range(max(length, rows["from"]), end))
            raise self.gone(
                f"messages {lost} of the list {self.key} are gone: it has only {length}"
            )
        self.check_last(rows, last)

    def read(self, client: Any, part: Any) -> Iterator[RedisMessage]:
        end = part["from"] + part["quantity"]
        for numbers in pages(part["from"], end):
            messages = client.lrange(self.key, numbers[0], numbers[-1])
            if len(messages) < len(numbers):
                lost = spelled(numbers[len(messages) :])
                raise self.gone(f"messages {lost} of the list {self.key} are gone")
            yield from zip(numbers, messages, strict=True)

    def sizes(self, client: Any, snapshot: LogSnapshot, most: int) -> Sequence[int]:
        first = snapshot.position.next
        return [len(message) for message in client.lrange(self.key, first, first + most - 1)]

    def _end_and(self, client: Any, index: int) -> tuple[int, bytes | None]:
        """Return the list's length, and the message at an index."""
        pipeline = client.pipeline(transaction=True)
        pipeline.llen(self.key)
        pipeline.lindex(self.key, max(index, 0))
        length, message = (
            self.checked(self.key, reply) for reply in pipeline.execute(raise_on_error=False)
        )
        return length, message
