"""Bulk reads and bulk conditional writes on several Memcached servers, over pymemcache's connections.

pymemcache has no bulk cas or add: they are sent here, a thousand at a time, in Memcached's text protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any

from airflow_tx.connections.lookup import airflow_connection, wrong_type
from airflow_tx.errors import ConfigError, StateError, StateUnavailable

_PORT = 11211
LONGEST_KEY = 250
# Their replies fit into the buffers of a connection, so that neither side waits for the other.
_AT_ONCE = 1_000
_DONE = {b"STORED", b"DELETED"}
_OVERTAKEN = {b"EXISTS", b"NOT_FOUND", b"NOT_STORED"}


@dataclass(frozen=True)
class MemcachedWrite:
    """One write: set, add, cas (which compares the version) or delete."""

    verb: str
    key: str
    data: bytes = b""
    version: bytes = b""

    def encoded(self) -> bytes:
        if self.verb == "delete":
            return b"delete %s\r\n" % self.key.encode()
        version = b" " + self.version if self.verb == "cas" else b""
        head = b"%s %s 0 0 %d%s\r\n" % (
            self.verb.encode(),
            self.key.encode(),
            len(self.data),
            version,
        )
        return head + self.data + b"\r\n"


class MemcachedClient:
    """Keys spread over servers, always in the same way; each may take `timeout` seconds to connect, and to answer."""

    def __init__(self, servers: Sequence[tuple[str, int]], *, state: str, timeout: float) -> None:
        try:
            base = import_module("pymemcache.client.base")
        except ImportError:
            remedy = "It needs pymemcache: pip install 'airflow-provider-tx[memcached]'."
            raise ConfigError(option="A Memcached state", value=state, remedy=remedy) from None
        self._state = state
        self._clients = {
            f"{host}:{port}": base.Client(
                (host, port), connect_timeout=timeout, timeout=timeout, no_delay=True
            )
            for host, port in servers
        }

    def gets(self, keys: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
        """Read value and version of the keys that are there."""
        found = dict[str, tuple[bytes, bytes]]()
        for server, portion in self._portions(keys):
            with self._answering(server) as client:
                found.update(client.gets_many(portion))
        return found

    def write(self, writes: Sequence[MemcachedWrite]) -> list[str]:
        """Do all of them; returns the keys not written, since another writer has replaced their value."""
        by_key = {write.key: write for write in writes}
        written = (
            self._write(server, [by_key[key] for key in keys])
            for server, keys in self._portions(by_key)
        )
        return list(chain.from_iterable(written))

    def _write(self, server: str, writes: Sequence[MemcachedWrite]) -> list[str]:
        with self._answering(server) as client:
            if client.sock is None:
                client.version()  # connects
            client.sock.sendall(b"".join(write.encoded() for write in writes))
            replies = _lines(client.sock, len(writes))
        overtaken = list[str]()
        for write, reply in zip(writes, replies, strict=True):
            if reply in _DONE or (write.verb == "delete" and reply == b"NOT_FOUND"):
                continue
            if reply not in _OVERTAKEN:
                problem = f"server {server} says of {write.key}: {reply.decode(errors='replace')}"
                remedy = "Some values of this update may be stored; replay the batch when the cause is removed."
                raise StateError(state=self._state, problem=problem, remedy=remedy)
            overtaken.append(write.key)
        return overtaken

    def _portions(self, keys: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        names = list(self._clients)
        found = dict[str, list[str]]()
        for key in keys:
            server = (
                names[0] if len(names) == 1 else max(names, key=lambda name: _weight(name, key))
            )
            found.setdefault(server, []).append(key)
        for server, mine in found.items():
            yield from (
                (server, mine[start : start + _AT_ONCE]) for start in range(0, len(mine), _AT_ONCE)
            )

    @contextmanager
    def _answering(self, server: str) -> Iterator[Any]:
        client = self._clients[server]
        exceptions = import_module("pymemcache.exceptions")
        try:
            yield client
        except (OSError, exceptions.MemcacheUnexpectedCloseError) as error:
            client.close()
            reason = str(error) or "it does not answer"
            raise StateUnavailable(
                state=self._state, where=f"Memcached {server}", reason=reason
            ) from None
        except exceptions.MemcacheError as error:
            client.close()
            problem = f"server {server} says: {error}"
            raise StateError(
                state=self._state, problem=problem, remedy="Some values may be stored."
            ) from None
        except BaseException:
            # Replies may be left in the connection: the next one to use it would take them for its own.
            client.close()
            raise


def _lines(sock: Any, count: int) -> list[bytes]:
    # An answer too long for one line ends like the others.
    data = b""
    while data.count(b"\r\n") < count:
        if not (more := sock.recv(65536)):
            raise ConnectionError("the server closed the connection")
        data += more
    return data.split(b"\r\n")[:count]


def _weight(server: str, key: str) -> bytes:
    # Rendezvous hashing: a server more or less moves only the keys that it wins or loses.
    return hashlib.blake2b(f"{server} {key}".encode(), digest_size=8).digest()


def servers_of_connection(conn_id: str) -> list[tuple[str, int]]:
    """Read the servers of a connection of type memcached: its host, or several with commas.

    A host without a port has the port of the connection.

    :raises ConfigError: there is no such connection, it is of another type, or a host is none.
    """
    connection = airflow_connection(
        conn_id, option="servers of a Memcached state", conn_type="memcached"
    )
    if connection.conn_type not in ("memcached", "generic"):
        raise wrong_type(connection, "Memcached state", "memcached")
    found = [
        parsed_server(each.strip(), connection.port or _PORT)
        for each in (connection.host or "").split(",")
    ]
    if any(not host or port < 1 for host, port in found):
        remedy = 'Give a host, or several with commas: "cache1,cache2:11212".'
        raise ConfigError(
            option=f"Connection {conn_id!r}, host", value=connection.host, remedy=remedy
        )
    return found


def parsed_server(server: str, port: int = _PORT) -> tuple[str, int]:
    """Read the host and port of "host:port" or "host"; the port is 0 if it is no number."""
    host, colon, given = server.rpartition(":")
    if not colon:
        return server, port
    return host, int(given) if given.isdecimal() else 0
