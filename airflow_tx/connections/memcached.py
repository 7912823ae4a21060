"""Where Memcached servers are: the Airflow connection as the addresses of a client."""

from __future__ import annotations

from airflow_tx.connections.lookup import airflow_connection, wrong_type
from airflow_tx.errors import ConfigError

_PORT = 11211


def servers_of_connection(conn_id: str) -> list[tuple[str, int]]:
    """The servers of a connection of type memcached: its host, or several with commas; its port for those without one.

    :raises ConfigError: there is no such connection, it is of another type, or a host is none.
    """
    connection = airflow_connection(conn_id, option="servers of a Memcached state", conn_type="memcached")
    if connection.conn_type not in ("memcached", "generic"):
        raise wrong_type(connection, "Memcached state", "memcached")
    found = [parsed_server(each.strip(), connection.port or _PORT) for each in (connection.host or "").split(",")]
    if any(not host or port < 1 for host, port in found):
        remedy = 'Give a host, or several with commas: "cache1,cache2:11212".'
        raise ConfigError(option=f"Connection {conn_id!r}, host", value=connection.host, remedy=remedy)
    return found


def parsed_server(server: str, port: int = _PORT) -> tuple[str, int]:
    """Host and port of "host:port" or "host"; the port is 0 if it is no number."""
    host, colon, given = server.rpartition(":")
    if not colon:
        return server, port
    return host, int(given) if given.isdecimal() else 0
