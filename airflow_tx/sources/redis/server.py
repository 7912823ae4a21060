"""A database of a Redis server, as a source reads it: its failures become errors of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.connections.redis import AWAY, failure_text, make_client
from airflow_tx.errors import ConfigError, PartitionUnavailable, SourceError


@dataclass(frozen=True)
class RedisPartition:
    """The place of a partition, from the arguments; without a number, the database is the connection's."""

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
    """The place of a partition. It can be pickled; its repr shows no address.

    :param partition: its name.
    :param source: repr of the source that it belongs to, for messages.
    :param conn_id: of the Airflow connection.
    :param parameters: of `redis.Redis`, the password among them.
    :param skip: the command that skips the transaction whose rows are read.
    """

    partition: str
    source: str
    conn_id: str
    parameters: Mapping[str, Any] = field(repr=False)
    skip: str = ""

    @property
    def where(self) -> str:
        return f"database {self.parameters.get('db') or 0} of connection {self.conn_id}"

    def client(self) -> Any:
        """Make a client, not connected yet."""
        return make_client(self.parameters, needed_by=self.source)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Turn what Redis raises into errors of ours; no answer, or not now, is PartitionUnavailable."""
        from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
        from redis.exceptions import ConnectionError as LostConnection
        from redis.exceptions import TimeoutError as NoAnswer

        try:
            yield
        except (RedisError, OSError) as error:
            text = failure_text(error, self.parameters)
            if isinstance(error, (AuthenticationError, NoPermissionError)):
                remedy = f"The server says: {text} Correct its login and password, or the rights of that user."
                raise ConfigError(
                    option="Redis connection", value=self.conn_id, remedy=remedy
                ) from None
            away = isinstance(error, (LostConnection, NoAnswer, OSError)) or str(error).startswith(
                AWAY
            )
            if away:
                raise self.unavailable(f"{self.where}: {text}") from None
            raise self.refused(
                f"{self.where} says: {text}", "Correct it, then clear the task."
            ) from None

    def unavailable(self, reason: str) -> PartitionUnavailable:
        return PartitionUnavailable(partition=self.partition, source=self.source, reason=reason)

    def refused(self, problem: str, remedy: str) -> SourceError:
        return SourceError(source=self.source, problem=problem, remedy=remedy)
