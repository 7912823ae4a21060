"""How PyMySQL is connected: by a socket that notices when the server is gone."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

# A server that a network has swallowed is noticed after half a minute; PyMySQL leaves that to TCP, which takes hours.
_SIGNS_OF_LIFE = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}


def connect_with_signs_of_life(dialect: Any, record: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Connect PyMySQL, for SQLAlchemy's event `do_connect`."""
    import pymysql  # type: ignore[import-untyped]

    connection = pymysql.connect(*args, **options, defer_connect=True)
    host, port, timeout = connection.host, connection.port, connection.connect_timeout
    try:
        opened = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise pymysql.err.OperationalError(2003, f"Can't connect to MySQL server on {host!r} ({error})") from error
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SIGNS_OF_LIFE.items():
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.connect(opened)
    return connection
