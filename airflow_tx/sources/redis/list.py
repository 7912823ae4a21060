"""Lists of Redis that only grow: the next messages of every list are a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tx.sources.api import Json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot
from airflow_tx.sources.redis.counted import CountedMessages, Cursor, pages
from airflow_tx.sources.redis.log import MessageLog, RedisMessage, spelled
from airflow_tx.sources.redis.server import RedisDatabase
from airflow_tx.sources.redis.source import RedisSource
from airflow_tx.sources.row_numbers import is_number_below, is_number_within


class RedisListSource(RedisSource):
    """The next messages of every list, by index, are a transaction.

        RedisListSource("redis_logs", lists=["web", "app"])

    A writer appends (RPUSH) to a list, which is never shortened. A message is a row ``{"partition": ..., "number": 17,
    "message": "..."}``: numbers count from 0 on in its partition.

    A server that was killed and forgot messages is noticed: the list ends before the next number to be taken, or the
    message before that one is another one. They are named and never skipped: the source refuses until they are back,
    or accepted as lost. These losses cannot be noticed: messages that the server forgot before they were in a batch,
    if no message was written since; and a message that was replaced by an equal one.

    It needs the commands LLEN, LINDEX and LRANGE.

    :param conn_id: Airflow connection of type redis, or several.
    :param lists: the key of a list, or several.
    :param schema: Spark DDL, such as ``user STRING, text STRING``: messages are JSON objects with these fields, and the
        column `message` is a STRUCT of them. Without one a message is a text.

    The other parameters are the same as of `RedisSource`: `databases`, `kind`, `max_rows_per_batch`,
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

    def partition_contains(self, partition: str, metadata: Any, what: str) -> bool:
        return is_number_within(what, metadata["from"], metadata["from"] + metadata["quantity"])

    def partition_reaches(self, partition: str, position: Any, what: str) -> bool | None:
        return is_number_below(what, position["next"])

    def messages(self, database: RedisDatabase, key: str) -> MessageLog:
        return ListedMessages(database, key)


@dataclass(frozen=True)
class ListedMessages(CountedMessages):
    """A list that only grows, at its end (RPUSH): the number of a message is its index, from 0 on."""

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
                f"the list {self.key} in {self.database.where} has become shorter"
            )
        return self.log_batch(snapshot, count, last)

    def check(self, client: Any, rows: Any) -> None:
        end = rows["from"] + rows["quantity"]
        length, last = self._end_and(client, end - 1)
        if length < end:
            lost = spelled(range(max(length, rows["from"]), end))
            raise self.gone(f"messages {lost} of the list {self.key} are gone, it has {length}")
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
        """Return how many there are, and one of them."""
        pipeline = client.pipeline(transaction=True)
        pipeline.llen(self.key)
        pipeline.lindex(self.key, max(index, 0))
        length, message = (
            self.checked(self.key, reply) for reply in pipeline.execute(raise_on_error=False)
        )
        return length, message
