"""Find an Airflow connection by its id, in a task, a CLI command or a Spark driver."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_tx.base.errors import ConfigError

_OURS = "AIRFLOW_TX_CONN_"
_AIRFLOWS = "AIRFLOW_CONN_"
_ADDRESS = re.compile(r"(\[([^\]]+)\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?")
_PARTS = ("host", "port", "login", "password", "schema")


@dataclass(frozen=True)
class Endpoint:
    """A connection. Its fields are named as in Airflow. The repr shows only the id."""

    conn_id: str
    conn_type: str = field(default="", repr=False)
    host: str | None = field(default=None, repr=False)
    port: int | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    schema: str | None = field(default=None, repr=False)
    extra: str = field(default="", repr=False)

    @cached_property
    def extra_dejson(self) -> dict[str, Any]:
        """Parse the extra. Return an empty dict if the extra is not a JSON object."""
        try:
            found = json.loads(self.extra or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def airflow_connection(conn_id: str, *, option: str, conn_type: str, host: str = "...") -> Endpoint:
    """Find the connection with this id.

    The Spark driver of a task finds it in an environment variable set by the task. A driver on a cluster without
    Airflow reads the variable ``AIRFLOW_CONN_<ID>``, as Airflow does.

    :param option: name of the option that contains the id, for the message.
    :param conn_type: connection type in the example of the error message.
    :raises ConfigError: there is no such connection.
    """
    if handed := os.environ.get(_OURS + conn_id):
        return _parsed(conn_id, handed)
    try:
        found: Any = connection_of_airflow(conn_id)
    except ImportError:
        if text := os.environ.get(_AIRFLOWS + conn_id.upper()):
            with suppress(ValueError):
                return _parsed(conn_id, text)
        found = None
    if found is None:
        example = {"conn_type": conn_type, "host": host}
        raise ConfigError(option=option, value=conn_id, remedy=no_connection(conn_id, example))
    parts = {name: getattr(found, name) for name in _PARTS}
    return Endpoint(conn_id, found.conn_type or "", **parts, extra=json.dumps(found.extra_dejson))


def connection_of_airflow(conn_id: str) -> Any:
    """Find the connection with Airflow's own code, in a task, a trigger or a command. Return None if there is none."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        # Outside of tasks, triggers and the DAG processor, the Task SDK has no database access.
        # Commands therefore use Airflow's models.
        if _in_task():
            return None
    from airflow.models.connection import Connection

    try:
        return Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        return None


def _in_task() -> bool:
    return hasattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS")


def _reason_unreadable(conn_id: str) -> str:
    """Return the secrets backend whose connection Airflow cannot read, and the error. Return "" if there is none.

    Airflow itself treats such a connection as missing. In a task, the reason is unknown, since the API server only
    reports a missing connection.
    """
    from airflow.configuration import ensure_secrets_loaded
    from sqlalchemy.exc import DBAPIError

    for backend in ensure_secrets_loaded():
        try:
            found = backend.get_connection(conn_id=conn_id)
            if found is not None:
                found.get_uri()  # this call decrypts the connection
        except DBAPIError:
            continue  # there is no database, for example in a Spark driver
        except Exception as error:  # noqa: BLE001 - a secrets backend may raise anything
            # The error message may contain part of the password.
            return f"{type(backend).__name__}: {type(error).__name__}"
    return ""


def no_connection(conn_id: str, example: Mapping[str, Any]) -> str:
    """Describe what to do about a missing connection.

    An environment variable may contain a connection that cannot be parsed.
    """
    shown = json.dumps(example)
    variable = _AIRFLOWS + conn_id.upper()
    if variable in os.environ:
        return (
            f"Airflow cannot read variable {variable}. Write it as JSON, such as '{shown}'. "
            "A URI can name only one server and one port."
        )
    # Do not suggest --conn-type. For a type without an installed provider, Airflow would create a
    # generic connection.
    add = f"airflow connections add {conn_id} --conn-json '{shown}'"
    reason = ""
    with suppress(ImportError):
        if _in_task():
            return f"No such connection, or the api-server cannot read it ([core] fernet_key). Make it: {add}"
        reason = _reason_unreadable(conn_id)
    if not reason:
        return f"No such connection. Make it: {add}"
    return (
        f"Airflow cannot read it ({reason}). If it was encrypted with another key, append that key to [core] "
        f"fernet_key after a comma. Or create the connection again: airflow connections delete {conn_id} && {add}"
    )


def wrong_type(connection: Endpoint, what: str, types: str) -> ConfigError:
    """Create the error for a connection whose type is not in `types`.

    The message mentions `what`, the object that names the connection.
    """
    remedy = f"A {what} needs a connection of type {types}."
    if connection.conn_type == "generic":
        remedy += " Airflow makes it generic if no installed provider knows its --conn-type: add it by --conn-json."
    option = f"Connection {connection.conn_id!r}, conn_type"
    return ConfigError(option=option, value=connection.conn_type, remedy=remedy)


def check_encryption(connection: Endpoint, known: Iterable[str]) -> None:
    """Raise an error for an encryption extra that would be ignored. Other extras belong to hooks.

    :param known: names of the extras that are used.
    :raises ConfigError: there is such an extra. The message names it.
    """
    used = sorted(name for name in known if _is_about_encryption(name))
    for name, value in connection.extra_dejson.items():
        if _is_about_encryption(name) and name not in used and value not in (None, "", False):
            raise refused_extra(
                connection.conn_id, name, "(not shown)", f"Remove it, or use {', '.join(used)}."
            )


def refused_extra(conn_id: str, name: str, value: Any, remedy: str) -> ConfigError:
    """Create the error for an invalid extra of a connection."""
    return ConfigError(option=f"Connection {conn_id!r}, extra {name}", value=value, remedy=remedy)


def flag_of(connection: Endpoint, name: str) -> bool:
    """Read an extra that is a boolean or its text. A missing extra is False.

    :raises ConfigError: the extra has another value.
    """
    value = connection.extra_dejson.get(name) or False
    found = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if found is None:
        raise refused_extra(connection.conn_id, name, value, "Use true or false.")
    return found


def _is_about_encryption(name: str) -> bool:
    return "ssl" in name.lower() or "tls" in name.lower()


def server_addresses(hosts: str, port: int) -> list[str]:
    """Return "host:port" of each server in a comma-separated list, with brackets around an IPv6 address.

    :param port: port of each server without a port.
    :raises ValueError: an entry is not an address.
    """
    found = []
    for each in filter(None, map(str.strip, hosts.split(","))):
        bare = each.count(":") > 1 and "[" not in each
        parsed = _ADDRESS.fullmatch(f"[{each}]" if bare else each)
        number = int(parsed[3] or port) if parsed else 0
        if parsed is None or not 0 < number < 65536:
            raise ValueError(each)
        if parsed[2]:
            IPv6Address(parsed[2])
        found.append(f"{parsed[1]}:{number}")
    return found


def handed_over(connection: Endpoint) -> dict[str, str]:
    """Return the environment variables that pass the connection to another process of this package."""
    plain = {
        each.name: getattr(connection, each.name)
        for each in fields(connection)
        if each.name != "conn_id"
    }
    return {_OURS + connection.conn_id: json.dumps(plain)}


def for_airflow(conn_id: str) -> None:
    """Let Airflow's own code find a connection that a task has passed to this process."""
    handed = os.environ.get(_OURS + conn_id)
    if handed:
        os.environ.setdefault(_AIRFLOWS + conn_id.upper(), handed)


def all_for_airflow() -> None:
    """Let Airflow's own code find all connections that a task has passed to this process."""
    for name in [*os.environ]:
        if name.startswith(_OURS):
            for_airflow(name.removeprefix(_OURS))


def _parsed(conn_id: str, text: str) -> Endpoint:
    """Parse the JSON or the URI in an environment variable."""
    if text.lstrip().startswith("{"):
        given = json.loads(text)
        found = {name: given.get(name) for name in _PARTS}
        found["port"] = int(found["port"]) if found["port"] else None
        extra = given.get("extra") or {}
        extra = extra if isinstance(extra, str) else json.dumps(extra)
        return Endpoint(conn_id, given.get("conn_type") or "", **found, extra=extra)
    parts = urlsplit(text)
    return Endpoint(
        conn_id,
        conn_type=parts.scheme,
        host=unquote(parts.hostname or "") or None,
        port=parts.port,
        login=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        schema=unquote(parts.path[1:]) or None,
        extra=json.dumps(dict(parse_qsl(parts.query))),
    )
