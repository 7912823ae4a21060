"""Redis connections: client parameters from an Airflow connection or a URL, and the client.

Sources, states and ackers convert a `RedisFailure` to errors of their own. No message and no repr shows a password.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from airflow_tx.base.connections.lookup import (
    airflow_connection,
    check_encryption,
    flag_of,
    refused_extra,
    wrong_type,
)
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ConfigError

# Use only known extras, since other extras belong to hooks.
REDIS_EXTRAS = (
    "db ssl ssl_cert_reqs ssl_ca_certs ssl_certfile ssl_keyfile ssl_check_hostname socket_timeout "
    "socket_connect_timeout"
).split()
# A server that does not respond within this time counts as unreachable.
_PATIENCE = {"socket_timeout": 60.0, "socket_connect_timeout": 10.0}
_AWAY = (
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "TRYAGAIN",
    "You can't write against a read",
)


def parameters_of_connection(conn_id: str, *, what: str) -> dict[str, Any]:
    """Return the client parameters of an Airflow connection.

    A ConfigError mentions `what`, the object that names the connection.
    """
    connection = airflow_connection(conn_id, option=f"{what}(conn_id)", conn_type="redis")
    if connection.conn_type != "redis":
        raise wrong_type(connection, what, "redis")
    check_encryption(connection, REDIS_EXTRAS)
    extra = connection.extra_dejson
    found = {name: extra[name] for name in REDIS_EXTRAS if extra.get(name) not in (None, "")}
    for name in ("ssl", "ssl_check_hostname"):
        if name in found:
            found[name] = flag_of(connection, name)
    if "db" not in found and connection.schema:
        found["db"] = connection.schema
    for name, kind in (("db", int), ("socket_timeout", float), ("socket_connect_timeout", float)):
        if name in found:
            found[name] = _number(conn_id, name, found[name], kind)
    return {
        "host": connection.host or "localhost",
        "port": connection.port or 6379,
        "username": connection.login or None,
        "password": connection.password or None,
        **found,
    }


def redis_url(conn_id: str, *, what: str) -> str:
    """Convert an Airflow connection to a URL that includes its password, for a process without Airflow."""
    found = {
        name: value
        for name, value in parameters_of_connection(conn_id, what=what).items()
        if value is not None
    }
    host, port, user, password = (
        found.pop(name, "") for name in ("host", "port", "username", "password")
    )
    scheme = "rediss" if found.pop("ssl", False) else "redis"
    who = (
        f"{quote(str(user), safe='')}:{quote(str(password), safe='')}@" if user or password else ""
    )
    where = f"[{host}]" if ":" in str(host) else host
    return f"{scheme}://{who}{where}:{port}/?{urlencode(found)}"


def parameters_of_url(url: str) -> dict[str, Any]:
    """Parse client parameters from redis://user:password@host:port/db, rediss://… or unix://path.

    :raises ConfigError: the URL is invalid. The message does not repeat it, since it may contain a password.
    """
    from redis import connection

    try:
        return dict(connection.parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError:
        remedy = "Use redis://user:password@host:port/db."
        raise ConfigError(option="from_url(url)", value="(hidden)", remedy=remedy) from None


def redis_dataset(parameters: Mapping[str, Any], key: str) -> Dataset:
    """Return the dataset of a key or a key prefix. The key "" means the entire database."""
    server = (
        parameters.get("path")
        or f"{parameters.get('host', 'localhost')}:{parameters.get('port', 6379)}"
    )
    database = str(parameters.get("db") or 0)
    return Dataset(f"redis://{server}", ".".join(filter(None, [database, key])))


def _number(conn_id: str, name: str, value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise refused_extra(conn_id, name, value, "Use a number.") from None


def make_client(parameters: Mapping[str, Any], *, needed_by: str) -> Any:
    """Create a client that is not connected yet. The client never repeats a command automatically.

    :param parameters: parameters of `redis.Redis`. Missing time-outs get this package's defaults.
    :param needed_by: name of the object that needs the client, for the message.
    :raises ConfigError: redis-py is not installed.
    """
    try:
        from redis import ConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        remedy = "It needs redis-py: pip install 'airflow-provider-tx[redis]'."
        raise ConfigError(option="Redis of", value=needed_by, remedy=remedy) from None
    known = {**_PATIENCE, **parameters, "retry": Retry(NoBackoff(), 0)}
    if "connection_class" in known:  # this parameter comes from the URL
        return Redis(connection_pool=ConnectionPool(**known))
    return Redis(**known)


@dataclass(frozen=True)
class RedisFailure:
    """An error of Redis or its client.

    :param text: the error in one line, without the password.
    :param answered: whether the server sent the error in response to a command.
    :param away: whether the server is unavailable now. A later try, or another server, may succeed.
    :param denied: whether the server refuses the login, or the user lacks a permission.
    :param sent: whether the server may have run the command although its response was lost.
    """

    text: str
    answered: bool
    away: bool
    denied: bool
    sent: bool


@contextmanager
def redis_failures(
    parameters: Mapping[str, Any], make_error: Callable[[RedisFailure], Exception]
) -> Iterator[None]:
    """Convert Redis errors within the `with` block to errors of this package.

    :param parameters: client parameters, whose password is removed from the error text.
    """
    from redis import exceptions as raised

    try:
        yield
    except (raised.RedisError, OSError) as error:
        lost = isinstance(error, (raised.ConnectionError, raised.TimeoutError, OSError))
        text = " ".join(str(error).split()) or type(error).__name__
        secret = parameters.get("password")
        failure = RedisFailure(
            text.replace(str(secret), "***") if secret else text,
            answered=isinstance(error, raised.ResponseError),
            away=lost or str(error).startswith(_AWAY),
            denied=isinstance(error, (raised.AuthenticationError, raised.NoPermissionError)),
            # A client that could not connect has sent no command.
            sent=lost and "connecting to" not in str(error),
        )
        raise make_error(failure) from None
