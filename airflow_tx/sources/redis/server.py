"""A database of a Redis server, as a source reads it: its failures become errors of this package."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.connections.redis import RedisFailure, make_client, redis_failures
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

    def failures(self) -> AbstractContextManager[None]:
        """Turn what Redis raises into errors of ours; no answer, or not now, is PartitionUnavailable."""
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
