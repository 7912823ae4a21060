"""Messages in Redis that are numbered: the book's keys with a cursor, or a list; the next ones are a transaction.

Source: book chapter 8 (TweetsTransactionalSpout, TweetsPartitionedTransactionalSpout, RQ, PartitionedRQ).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.sources.redis.counted import ListedMessages, NumberedMessages
from airflow_tx.sources.redis.log import MessageLog
from airflow_tx.sources.redis.server import Database
from airflow_tx.sources.redis.source import RedisSource, texts


class RedisListSource(RedisSource):
    """The next messages of every database, by number, are a transaction.

        RedisListSource("redis_tweets")  # the book's: keys 1, 2, 3 ... and NEXT_WRITE
        RedisListSource("redis_tweets", databases=[0, 1, 2, 3], max_rows_per_batch=50)
        RedisListSource("redis_logs", lists=["web", "app"])

    A writer puts message n under the key n, and then n + 1 under NEXT_WRITE, or both in one MULTI. With `lists` it
    appends to a list (RPUSH), which is never shortened. A message is a row ``{"partition": ..., "number": 17,
    "message": "..."}``: numbers are those of its partition. Several connections, databases, prefixes or lists are a
    partition each, every one with every other.

    A server that was killed and forgot messages is noticed: NEXT_WRITE, or the list, ends before the place where the
    source stands; the message before that place is another one; or numbers have no message. They are named and never
    skipped: the source refuses until they are back, or accepted as lost. What cannot be noticed: messages that the
    server forgot before they were in a batch, if nobody wrote since; and one that was replaced by its equal.

    It needs the commands GET, MGET, EXISTS, STRLEN and TYPE (SET with `move_cursor`), or LLEN, LINDEX and LRANGE.

    :param conn_id: Airflow connection of type redis, or several.
    :param databases: numbers of databases of each connection; default: the one of the connection.
    :param prefix: put before every key of numbered messages, or several such.
    :param lists: keys of lists, instead of numbered messages.
    :param schema: Spark DDL, such as ``user STRING, text STRING``: messages are JSON objects with these fields, and the
        column `message` is a STRUCT of them. Without one a message is a text.
    :param move_cursor: set NEXT_READ to where `begin` stands, as the book does. Where it is set, the first batch begins
        there, whoever set it.
    :param kind: ``transactional`` or ``opaque``.
    :param max_rows_per_batch: at most so many messages in a batch, of all partitions together.
    :param max_bytes_per_batch: at most so many bytes, by a sample of the messages.
    :param target_seconds: as many messages as are processed in so many seconds, by what the last transactions took.
    """

    def __init__(
        self,
        conn_id: str | Sequence[str] = "redis_default",
        *,
        databases: Sequence[int] = (),
        prefix: str | Sequence[str] = "",
        lists: str | Sequence[str] = (),
        schema: str | None = None,
        move_cursor: bool = False,
        kind: str = "transactional",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        target_seconds: float | None = None,
    ) -> None:
        self.lists, self.prefix, self.move_cursor = texts(lists), texts(prefix), move_cursor
        if self.lists and (self.prefix != ("",) or move_cursor):
            remedy = "Lists have neither a prefix nor a cursor: leave out prefix and move_cursor."
            raise ConfigError(option="lists of RedisListSource", value=lists, remedy=remedy)
        super().__init__(
            conn_id,
            databases,
            self.lists or self.prefix,
            kind=kind,
            schema=schema,
            max_rows_per_batch=max_rows_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            target_seconds=target_seconds,
        )

    def own_arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.lists:
            found["lists"] = list(self.lists)
        elif self.prefix != ("",):
            found["prefix"] = list(self.prefix)
        if self.schema:
            found["schema"] = self.schema
        if self.move_cursor:
            found["move_cursor"] = True
        return found

    def log(self, database: Database, key: str) -> MessageLog:
        if self.lists:
            return ListedMessages(database, key)
        return NumberedMessages(database, key, self.move_cursor)
