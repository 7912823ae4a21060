"""Convert Airflow connections to database URLs. No message and no repr shows a URL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_tx.base.connections.lookup import (
    Endpoint,
    airflow_connection,
    check_encryption,
    refused_extra,
    wrong_type,
)
from airflow_tx.base.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

# Use only known extras, since other extras belong to hooks. The list has all libpq parameters.
_LIBPQ_SSL = (
    "ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir "
    "sslkey sslkeylogfile sslmode sslnegotiation sslpassword sslrootcert sslsni"
).split()
_LIBPQ = (
    "application_name channel_binding client_encoding connect_timeout fallback_application_name gssdelegation "
    "gssencmode gsslib hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname "
    "load_balance_hosts"
).split()
_LIBPQ += (
    "max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer oauth_scope "
    "options passfile replication require_auth requirepeer requiressl scram_client_key scram_server_key "
    "service servicefile target_session_attrs tcp_user_timeout"
).split()
_LIBPQ += _LIBPQ_SSL
# An Airflow connection has dedicated fields for these driver settings.
_FIELDS = {
    "host": "host",
    "port": "port",
    "user": "login",
    "password": "password",
    "dbname": "schema",
}
# Defaults for PostgreSQL. A client detects a broken network after half a minute, even during a long
# statement. TCP alone would take hours.
SIGNS_OF_LIFE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
SQLITE_EXTRAS = ["timeout"]
MYSQL_EXTRAS = (
    "ssl_ca ssl_cert ssl_key ssl_check_hostname unix_socket connect_timeout read_timeout write_timeout lock_timeout "
    "idle_timeout"
).split()
# These settings may be a dictionary or its JSON, as in Airflow's MySQL hook.
MYSQL_SSL = {
    "ca": "ssl_ca",
    "cert": "ssl_cert",
    "key": "ssl_key",
    "check_hostname": "ssl_check_hostname",
}
# Whether to check the server's host name, or None if encryption is not required.
_SSL_MODES = {
    "": None,
    "DISABLED": None,
    "PREFERRED": None,
    "REQUIRED": False,
    "VERIFY_CA": False,
    "VERIFY_IDENTITY": True,
}


def signs_of_life(url: URL) -> dict[str, int]:
    """Return the keepalive settings that a database URL does not set. Some drivers have no such settings."""
    known = SIGNS_OF_LIFE if "psycopg" in url.get_driver_name() else {}
    return {name: value for name, value in known.items() if name not in url.query}


def url_of_connection(conn_id: str, *, what: str = "SqlState") -> URL:
    """Convert an Airflow connection to a database URL.

    A ConfigError mentions `what`, the object that names the connection.
    """
    connection = airflow_connection(conn_id, option=f"{what}(conn_id)", conn_type="postgres")
    kind = connection.conn_type.replace("-", "_")
    if kind == "sqlite":
        return _sqlite_url(conn_id, connection)
    if kind in ("postgres", "postgresql"):
        return _server_url("postgresql+psycopg2", connection, _postgres_settings(connection))
    if kind in ("mysql", "mariadb"):
        query = {**_extras(connection, MYSQL_EXTRAS), **_mysql_encryption(connection)}
        return _server_url("mysql+pymysql", connection, query)
    raise wrong_type(connection, what, "sqlite, postgres or mysql")


def parsed_url(url: str) -> URL:
    """Parse a database URL.

    :raises ConfigError: the URL is invalid. The message does not repeat it, since it may contain a password.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        remedy = "Use postgresql:// or mysql+pymysql:// with user:password@host/database, or sqlite:///file."
        raise ConfigError(
            option="SqlState.from_url(url)", value="(hidden)", remedy=remedy
        ) from None


def located(conn_id: str, url: str | None) -> tuple[URL, str]:
    """Find the database for a connection id or a URL. Also return the database's name for messages."""
    if url is None:
        return url_of_connection(conn_id), f"connection {conn_id}"
    parsed = parsed_url(url)
    return parsed, f"{parsed.get_backend_name()} database"


def _sqlite_url(conn_id: str, connection: Endpoint) -> URL:
    from sqlalchemy.engine import URL

    # Airflow's sqlite hook accepts the host alone, or a URI whose path is parsed as the schema.
    host = connection.host or ""
    path = f"{host}/{connection.schema}" if connection.schema else host
    if path in ("", ":memory:"):
        remedy = "Give the path of a file: a state in memory is lost with the task."
        raise ConfigError(option=f"Connection {conn_id!r}, host", value=path, remedy=remedy)
    while path.startswith("//"):
        path = path[1:]
    return URL.create("sqlite", database=path, query=_extras(connection, SQLITE_EXTRAS))


def _server_url(driver: str, connection: Endpoint, query: dict[str, str]) -> URL:
    from sqlalchemy.engine import URL

    return URL.create(
        driver,
        connection.login,
        connection.password,
        connection.host,
        connection.port,
        connection.schema or None,
        query,
    )


def _postgres_settings(connection: Endpoint) -> dict[str, str]:
    """Collect the extras that are driver settings.

    :raises ConfigError: the driver lacks a setting, or a setting is misspelled. If the setting were ignored, the
        connection might be less secure.
    """
    check_encryption(connection, _LIBPQ_SSL)
    extra = connection.extra_dejson
    given = {**extra, **(extra.get("sqlalchemy_query") or {})}
    known = {_plain(name): name for name in (*_LIBPQ, *_FIELDS)}
    found = {}
    for name, value in given.items():
        meant = known.get(_plain(name))
        if meant is None or value in (None, ""):
            continue
        remedy = ""
        if meant in _FIELDS:
            remedy = f"Set the {_FIELDS[meant]} of the connection, and remove the extra."
        elif name != meant:
            remedy = f"Write it as {meant}."
        elif not _is_known(name):
            remedy = "The libpq of psycopg2 is too old for it. Install a newer one, or remove it."
        if remedy:
            raise refused_extra(connection.conn_id, name, "(not shown)", remedy)
        found[name] = _text(value)
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _is_known(name: str) -> bool:
    """Return whether the driver has a setting. If the driver is missing, the connection attempt reports the error."""
    try:
        from psycopg2 import (  # type: ignore[import-untyped]
            ProgrammingError,
            extensions,
        )
    except ImportError:
        return True
    try:
        extensions.make_dsn(**{name: "x"})
    except ProgrammingError:
        return False
    return True


def _mysql_encryption(connection: Endpoint) -> dict[str, str]:
    """Convert the encryption settings of Airflow's MySQL hook to PyMySQL settings.

    :raises ConfigError: PyMySQL does not support a setting.
    """
    check_encryption(connection, (*MYSQL_EXTRAS, "ssl", "ssl_mode"))
    extra = connection.extra_dejson
    given = extra.get("ssl") or {}
    with suppress(ValueError):
        given = json.loads(given) if isinstance(given, str) else given
    if not isinstance(given, dict) or given.keys() - MYSQL_SSL.keys():
        remedy = f"Use a JSON object with {', '.join(MYSQL_SSL)}."
        raise refused_extra(connection.conn_id, "ssl", given, remedy)
    found = {MYSQL_SSL[name]: str(value) for name, value in given.items()}
    mode = str(extra.get("ssl_mode") or "").upper()
    if mode not in _SSL_MODES:
        raise refused_extra(
            connection.conn_id, "ssl_mode", mode, f"Use {', '.join(filter(None, _SSL_MODES))}."
        )
    if mode.startswith("VERIFY") and not ("ssl_ca" in found or "ssl_ca" in extra):
        remedy = 'Name a trusted certificate: extra {"ssl_ca": "/path/ca.pem"}.'
        raise refused_extra(connection.conn_id, "ssl_mode", mode, remedy)
    checks_name = _SSL_MODES[mode]
    return (
        found if checks_name is None else {**found, "ssl_check_hostname": str(checks_name).lower()}
    )


def _extras(connection: Endpoint, names: Sequence[str]) -> dict[str, str]:
    extra = connection.extra_dejson
    return {name: str(extra[name]) for name in names if name in extra}
