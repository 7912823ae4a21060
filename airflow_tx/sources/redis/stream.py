"""Redis streams: the next entries of every stream are a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.sources.redis.entries import StreamMessages
from airflow_tx.sources.redis.log import MessageLog
from airflow_tx.sources.redis.server import RedisDatabase
from airflow_tx.sources.redis.source import RedisSource, texts


class RedisStreamSource(RedisSource):
    """The next entries of every stream, by id, are a transaction.

        RedisStreamSource("redis_events", streams=["orders", "refunds"], max_rows_per_batch=10_000)

    Every stream is a partition; with several connections or databases, every one of them is in each. An entry is a row
    ``{"partition": ..., "id": "1700000000000-0", "message": {"field": "value", ...}}``; in Spark the message is a
    MAP<STRING, STRING>. Nothing is written to the server, and no consumer group is used: the ledger has the place.

    Redis 7 counts what was ever added to a stream, so entries that are trimmed or deleted before they are taken are
    noticed, and a server that forgot some; Redis 6.2 tells only if the last id went back. They are named and never
    skipped: the source refuses until they are back, or accepted as lost.

    It needs the commands XINFO, XRANGE and EVAL.

    :param conn_id: Airflow connection of type redis, or several.
    :param streams: the key of a stream, or several.
    :param databases: numbers of databases of each connection; default: the one of the connection.
    :param kind: ``transactional`` or ``opaque``.
    :param max_rows_per_batch: at most so many entries in a batch, of all streams together.
    :param max_bytes_per_batch: at most so many bytes, by a sample of the entries.
    :param target_seconds: as many entries as are processed in so many seconds, by what the last transactions took.
    """

    def __init__(
        self,
        conn_id: str | Sequence[str] = "redis_default",
        streams: str | Sequence[str] = (),
        *,
        databases: Sequence[int] = (),
        kind: str = "transactional",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        target_seconds: float | None = None,
    ) -> None:
        self.streams = texts(streams)
        if not self.streams or not all(self.streams):
            remedy = 'Name a stream, or several: streams=["orders"].'
            raise ConfigError(option="streams of RedisStreamSource", value=streams, remedy=remedy)
        super().__init__(
            conn_id,
            databases,
            self.streams,
            kind=kind,
            schema=None,
            max_rows_per_batch=max_rows_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            target_seconds=target_seconds,
        )

    def own_arguments(self) -> dict[str, Any]:
        return {"streams": list(self.streams)}

    def log(self, database: RedisDatabase, key: str) -> MessageLog:
        return StreamMessages(database, key)
