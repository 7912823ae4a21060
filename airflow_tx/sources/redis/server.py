"""A database of a Redis server, as a source reads it: its failures are told in this package's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.connections.redis import AWAY, failure_text, make_client
from airflow_tx.errors import ConfigError, PartitionUnavailable, SourceError, TxError


@dataclass(frozen=True)
class RedisDatabase:
    """Where a partition lies. It can be pickled; its repr shows no address.

    :param partition: its name.
    :param source: repr of the source that it belongs to, for messages.
    :param conn_id: of the Airflow connection.
    :param parameters: of `redis.Redis`, the password among them.
    """

    partition: str
    source: str
    conn_id: str
    parameters: Mapping[str, Any] = field(repr=False)

    @property
    def where(self) -> str:
        return f"database {self.parameters.get('db') or 0} of connection {self.conn_id}"

    def client(self) -> Any:
        """Make a client, not connected yet."""
        return make_client(self.parameters, needed_by=self.source)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell what Redis or its absence says within the block.

        :raises PartitionUnavailable: the server does not answer, or not now.
        :raises ConfigError: it does not let us in.
        :raises SourceError: it refuses a command.
        """
        from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
        from redis.exceptions import ConnectionError as LostConnection
        from redis.exceptions import TimeoutError as NoAnswer

        try:
            yield
        except TxError:
            raise
        except (AuthenticationError, NoPermissionError) as error:
            remedy = f"The server says: {self._said(error)} Correct its login and password, or the rights of that user."
            raise ConfigError(option="Redis connection", value=self.conn_id, remedy=remedy) from None
        except (LostConnection, NoAnswer, OSError) as error:
            raise self.unavailable(f"{self.where}: {self._said(error)}") from None
        except ResponseError as error:
            if str(error).startswith(AWAY):
                raise self.unavailable(f"{self.where}: {self._said(error)}") from None
            raise self.refused(f"{self.where} says: {self._said(error)}", "Correct it, then clear the task.") from None
        except RedisError as error:
            raise self.refused(f"{self.where}: {self._said(error)}", "Clear the task.") from None

    def unavailable(self, reason: str) -> PartitionUnavailable:
        return PartitionUnavailable(partition=self.partition, source=self.source, reason=reason)

    def refused(self, problem: str, remedy: str) -> SourceError:
        return SourceError(source=self.source, problem=problem, remedy=remedy)

    def _said(self, error: Exception) -> str:
        return failure_text(error, self.parameters)
