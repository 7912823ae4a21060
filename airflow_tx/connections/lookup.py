"""The Airflow connection of an id, wherever it is looked up: in a task, in a CLI command, or in a Spark driver."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_tx.errors import ConfigError

_OURS, _AIRFLOWS = "AIRFLOW_TX_CONN_", "AIRFLOW_CONN_"


@dataclass(frozen=True)
class Endpoint:
    """What a connection says, named as Airflow names it; its repr shows no more than the id."""

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
        """Parse the extra; empty if it is no JSON object."""
        try:
            found = json.loads(self.extra or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def airflow_connection(conn_id: str, *, option: str, conn_type: str) -> Endpoint:
    """The connection of this id.

    A Spark driver that a task has submitted finds it in its environment, by the task's doing; one on a cluster, without
    Airflow, in the variable ``AIRFLOW_CONN_<ID>`` that Airflow reads, too.

    :param option: where the id was given, for the message.
    :param conn_type: what kind of connection to define if there is none.
    :raises ConfigError: there is none.
    """
    handed = os.environ.get(_OURS + conn_id)
    found = _parsed(conn_id, handed) if handed else _of_airflow(conn_id)
    if found is None:
        # Not by --conn-type: of one that no installed provider knows Airflow makes a generic connection.
        example = f'\'{{"conn_type": "{conn_type}", "host": ...}}\''
        remedy = f"Define the connection: airflow connections add {conn_id} --conn-json {example}"
        raise ConfigError(option=option, value=conn_id, remedy=remedy)
    return found


def wrong_type(connection: Endpoint, what: str, types: str) -> ConfigError:
    """The error about a connection of another type than it should be.

    :param what: who was given its id.
    :param types: those that would do.
    """
    remedy = f"A {what} needs a connection of type {types}."
    if connection.conn_type == "generic":
        remedy += " Airflow makes it generic if no installed provider knows its --conn-type: add it by --conn-json."
    return ConfigError(
        option=f"Connection {connection.conn_id!r}, conn_type", value=connection.conn_type, remedy=remedy
    )


def handed_over(connection: Endpoint) -> dict[str, str]:
    """The environment in which a process of ours that is no task finds this connection."""
    plain = {each.name: getattr(connection, each.name) for each in fields(connection) if each.name != "conn_id"}
    return {_OURS + connection.conn_id: json.dumps(plain)}


def for_airflow(conn_id: str) -> None:
    """Let Airflow's own code in this process find a connection that a task has handed over to it."""
    handed = os.environ.get(_OURS + conn_id)
    if handed:
        os.environ.setdefault(_AIRFLOWS + conn_id.upper(), handed)


def _of_airflow(conn_id: str) -> Endpoint | None:
    try:
        from airflow.sdk.bases.hook import BaseHook
        from airflow.sdk.exceptions import AirflowNotFoundException
    except ImportError:
        text = os.environ.get(_AIRFLOWS + conn_id.upper())
        return _parsed(conn_id, text) if text else None
    try:
        return _plain(conn_id, BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        pass
    # In a CLI command a connection kept in Airflow's database is visible through the models only.
    from airflow.models.connection import Connection

    try:
        return _plain(conn_id, Connection.get_connection_from_secrets(conn_id))
    except AirflowNotFoundException:
        return None


def _plain(conn_id: str, connection: Any) -> Endpoint:
    return Endpoint(
        conn_id,
        conn_type=connection.conn_type or "",
        host=connection.host,
        port=connection.port,
        login=connection.login,
        password=connection.password,
        schema=connection.schema,
        extra=json.dumps(connection.extra_dejson),
    )


def _parsed(conn_id: str, text: str) -> Endpoint:
    """From the JSON or the URI that a variable of the environment holds."""
    if text.lstrip().startswith("{"):
        given = json.loads(text)
        extra = given.get("extra")
        port = given.get("port")
        return Endpoint(
            conn_id,
            conn_type=given.get("conn_type") or "",
            host=given.get("host"),
            port=int(port) if port else None,
            login=given.get("login"),
            password=given.get("password"),
            schema=given.get("schema"),
            extra=extra if isinstance(extra, str) else json.dumps(extra or {}),
        )
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
