"""A Redis server, as a state uses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from airflow_tx.connections.redis import (
    RedisFailure,
    make_client,
    parameters_of_connection,
    parameters_of_url,
    redis_failures,
)
from airflow_tx.errors import ConfigError, StateError, StateOutcomeUnknown, StateUnavailable


class RedisServer:
    """A server whose failures are reported in this package's words.

    :param parameters: of `redis.Redis`.
    :param state: for messages.
    :param where: how messages name the server; no address, no password.
    """

    def __init__(self, parameters: Mapping[str, Any], *, state: str, where: str) -> None:
        self._parameters = parameters
        self._state = state
        self._where = where

    @contextmanager
    def client(self, *, last: bool = False) -> Iterator[Any]:
        """Lend the client; nothing is sent twice behind our back.

        :param last: the answer to what is sent decides whether the update is complete.
        :raises StateUnavailable: the server does not answer, or does not let us in.
        :raises StateOutcomeUnknown: it does not answer to the last call.
        :raises StateError: it refuses a command.
        """
        with redis_failures(self._parameters, partial(self._error, last=last)):
            yield self._client

    def _error(self, failure: RedisFailure, *, last: bool) -> StateError:
        if failure.away:
            kind = StateOutcomeUnknown if last and failure.sent else StateUnavailable
            return kind(state=self._state, where=self._where, reason=failure.text)
        return self.refused(f"{'the server says: ' if failure.answered else ''}{failure.text}")

    def run(
        self,
        calls: list[tuple[str, list[str], list[Any]]],
        *,
        whole: bool = False,
        last: bool = False,
    ) -> Any:
        """Run scripts one after another without waiting in between; returns the reply of each.

        :param calls: script, keys, arguments.
        :param whole: as one transaction.
        :param last: as for `client`.
        """
        with self.client(last=last) as client:
            if len(calls) == 1:
                ((script, keys, arguments),) = calls
                return [client.eval(script, len(keys), *keys, *arguments)]
            pipeline = client.pipeline(transaction=whole)
            for script, keys, arguments in calls:
                pipeline.eval(script, len(keys), *keys, *arguments)
            # An error of a pipeline repeats the whole command.
            replies = pipeline.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

    def refused(
        self, problem: str, remedy: str = "No value of this update was committed."
    ) -> StateError:
        return StateError(state=self._state, problem=problem, remedy=remedy)

    def restarted(self) -> StateUnavailable:
        reason = "the server was restarted or replaced since the fence was raised, and may have lost what was written"
        return StateUnavailable(state=self._state, where=self._where, reason=reason)

    @cached_property
    def _client(self) -> Any:
        return make_client(self._parameters, needed_by=self._state)


def server_of(conn_id: str, url: str | None, *, state: str) -> RedisServer:
    """Find the server of a connection id, or of a URL if there is one."""
    if url is not None:
        return RedisServer(parameters_of_url(url), state=state, where="Redis server")
    return RedisServer(
        parameters_of_connection(conn_id, what="RedisState"),
        state=state,
        where=f"connection {conn_id}",
    )


def checked_prefix(prefix: str, what: str) -> str:
    """Refuse a prefix that cannot stand in a key as its hash tag."""
    if not prefix or "{" in prefix or "}" in prefix:
        raise ConfigError(
            option=f"{what}(prefix=)", value=prefix, remedy="Give a text without braces."
        )
    return prefix
