"""The source of Redis messages under numbered keys. A transaction takes the next numbers.

Source: Getting Started with Storm, chapter 8 (TweetsTransactionalSpout, TweetsPartitionedTransactionalSpout, RQ,
PartitionedRQ).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_tx.base.errors import PartitionUnavailable
from airflow_tx.ledger import TransactionAttempt
from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot
from airflow_tx.sources.redis.list import CountedMessages, Cursor, pages
from airflow_tx.sources.redis.source import RedisDatabase, RedisMessage, RedisSource, spelled, texts

NEXT_READ = "NEXT_READ"
NEXT_WRITE = "NEXT_WRITE"


class RedisNumberedSource(RedisSource):
    """A source of Redis messages under numbered keys. A transaction takes the next numbers of every database.

        RedisNumberedSource("redis_tweets")  # keys 1, 2, 3 ... and NEXT_WRITE, as in the book
        RedisNumberedSource("redis_tweets", databases=[0, 1, 2, 3], max_rows_per_batch=50)

    A writer sets key n to message n, and then NEXT_WRITE to n + 1, or both in one MULTI. A message is a row
    ``{"partition": ..., "number": 17, "message": "..."}``. Each partition has its own numbers.

    The source detects that a server lost messages by one of three signs. NEXT_WRITE is less than the next number to
    take, the message before that number differs, or a number has no message. The source stops and names the loss, until
    the messages are back or a user accepts the loss. It cannot detect two kinds of loss. In the first, the server loses
    a message that no batch contains yet, and no message is written afterwards. In the second, an equal message replaces
    the lost message.

    The source uses the commands GET, MGET, EXISTS, STRLEN and TYPE, and SET for `move_cursor`.

    :param conn_id: one or several Airflow connections of type redis.
    :param prefix: prefix of every key, or several prefixes.
    :param schema: Spark DDL, such as ``user STRING, text STRING``, for messages that are JSON objects. The column
        `message` is then a STRUCT. By default, a message is a text.
    :param move_cursor: whether `begin` sets NEXT_READ to its position, as in the book. The first batch starts at
        NEXT_READ if the key exists, and otherwise at 1.

    The other parameters are the same as for `RedisSource`: `databases`, `malformed`, `kind`, `max_rows_per_batch`,
    `max_bytes_per_batch` and `target_seconds`.
    """

    def __init__(
        self,
        conn_id: str | Sequence[str] = "redis_default",
        *,
        prefix: str | Sequence[str] = "",
        schema: str | None = None,
        move_cursor: bool = False,
        **options: Any,
    ) -> None:
        self.prefix = texts(prefix)
        self.move_cursor = move_cursor
        if prefix:
            self.normalize(prefix=self.prefix)
        super().__init__(conn_id, self.prefix, **options)
        self.schema = schema

    def messages(self, database: RedisDatabase, key: str) -> NumberedMessages:
        return NumberedMessages(database, key)

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        batch = super().decide(attempt, position)
        if self.move_cursor:
            positions = self.partition_positions(position)
            for name in positions.keys() & set(self.partitions()):
                with suppress(PartitionUnavailable):
                    self.log_of(name).set_text(NEXT_READ, positions[name]["next"])
        return batch


@dataclass(frozen=True)
class NumberedMessages(CountedMessages):
    """Messages under numbered keys. Key `17` has message 17, and NEXT_WRITE has the next number to write.

    :param database: database of the messages.
    :param key: prefix of every key.
    """

    def __str__(self) -> str:
        return f"messages under numbered keys ({self.key}{NEXT_WRITE})"

    def named(self, id_: int | str) -> str:
        return f"message {id_} (key {self.key}{id_})"

    def snapshot(self, client: Any, position: Json) -> LogSnapshot:
        cursor = None if position is None else self.cursor(position)
        names = [NEXT_WRITE, NEXT_READ if cursor is None else str(cursor.next - 1)]
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.get(self.key + name)
        end, other = pipeline.execute(raise_on_error=False)
        end = self._number(NEXT_WRITE, self.checked(self.key + names[0], end))
        if cursor is None:
            if end is None:
                reason = f"there is no key {self.key}{NEXT_WRITE} in {self.database.where}: no message was ever written"
                raise self.database.unavailable(reason)
            cursor = Cursor(self._number(NEXT_READ, self.checked(self.key + names[1], other)) or 1)
            return LogSnapshot(cursor, max(end - cursor.next, 0))
        end = end or 1
        gone = self.loss(
            cursor, end, self.checked(self.key + names[1], other) if cursor.next > 1 else None
        )
        return LogSnapshot(cursor, max(end - cursor.next, 0), gone)

    def take(self, client: Any, snapshot: LogSnapshot, count: int) -> LogBatch | Gone | None:
        cursor: Cursor = snapshot.position
        if not count:
            return None
        end = cursor.next + (snapshot.available or 0)
        stop = cursor.next + count
        there, last = self._all_and_last(client, cursor.next, stop)
        if not there:
            missing = next(self._with(client, cursor.next, stop, there=False))
            if missing == cursor.next:
                return self._gap(client, cursor, end)
            stop = missing
            last = self.checked(self._key(missing - 1), client.get(self._key(missing - 1)))
        return self.log_batch(snapshot, stop - cursor.next, last)

    def check(self, client: Any, rows: Any) -> None:
        first = rows["from"]
        end = rows["from"] + rows["quantity"]
        there, last = self._all_and_last(client, first, end)
        if not there:
            lost = spelled(list(self._with(client, first, end, there=False)))
            raise self.gone(f"messages {lost} are gone from the range {first} to {end - 1}")
        self.check_last(rows, last)

    def read(self, client: Any, part: Any) -> Iterator[RedisMessage]:
        end = part["from"] + part["quantity"]
        for numbers in pages(part["from"], end):
            messages = client.mget([self._key(number) for number in numbers])
            lost = [
                number for number, message in zip(numbers, messages, strict=True) if message is None
            ]
            if lost:
                self._check_types(client, lost)
                raise self.gone(
                    f"messages {spelled(lost)} are gone from the range {part['from']} to {end - 1}"
                )
            yield from zip(numbers, messages, strict=True)

    def sizes(self, client: Any, snapshot: LogSnapshot, most: int) -> Sequence[int]:
        first = snapshot.position.next
        pipeline = client.pipeline(transaction=False)
        for number in range(first, first + most):
            pipeline.strlen(self._key(number))
        return [
            self.checked("of a message", reply) for reply in pipeline.execute(raise_on_error=False)
        ]

    def _gap(self, client: Any, cursor: Cursor, end: int) -> Gone:
        first = cursor.next
        after = next(self._with(client, first, end, there=True), end)
        what = f"messages {spelled(range(first, after))} (keys {self.key}{first} ...) are not in {self.database.where}"
        return Gone(what, Cursor(after, life=cursor.life).to_json())

    def _all_and_last(self, client: Any, first: int, end: int) -> tuple[bool, Any]:
        """Return whether all messages from `first` to `end`, exclusive, exist. Also return the last message."""
        pipeline = client.pipeline(transaction=False)
        found = pages(first, end)
        for page in found:
            pipeline.exists(*map(self._key, page))
        pipeline.get(self._key(end - 1))
        replies = pipeline.execute(raise_on_error=False)
        *counts, last = (self.checked(self._key(end - 1), reply) for reply in replies)
        return counts == list(map(len, found)), last

    def _with(self, client: Any, first: int, end: int, *, there: bool) -> Iterator[int]:
        """Yield the numbers that have a message, or with `there` False, the numbers without one."""
        for numbers in pages(first, end):
            pipeline = client.pipeline(transaction=False)
            for number in numbers:
                pipeline.exists(self._key(number))
            yield from (
                number
                for number, found in zip(numbers, pipeline.execute(), strict=True)
                if found == there
            )

    def _check_types(self, client: Any, numbers: Sequence[int]) -> None:
        for number in numbers[:10]:
            found = client.type(self._key(number))
            if found not in (b"none", b"string"):
                problem = f"{self.named(number)} in {self.database.where} is a {found.decode()}, not a text"
                raise self.database.refused(
                    problem,
                    "Store the message under this key, then clear the task. Or skip the batch.",
                )

    def _number(self, name: str, value: bytes | None) -> int | None:
        try:
            return None if value is None else int(value)
        except ValueError:
            problem = f"key {self.key}{name} in {self.database.where} holds {value!r:.80}, which is not a number"
            raise self.database.refused(
                problem, "Set the key to the number of the next message."
            ) from None

    def _key(self, number: int) -> str:
        return f"{self.key}{number}"
