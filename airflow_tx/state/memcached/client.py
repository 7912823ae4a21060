"""Bulk reads and bulk conditional writes on several Memcached servers, over pymemcache's connections.

pymemcache has no bulk cas or add: they are sent here, a thousand at a time, in Memcached's text protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from airflow_tx.errors import ConfigError, StateError, StateUnavailable

LONGEST_KEY = 250
# Their replies fit into the buffers of a connection, so that neither side waits for the other.
_AT_ONCE = 1_000
_DONE = {b"STORED", b"DELETED"}
_OVERTAKEN = {b"EXISTS", b"NOT_FOUND", b"NOT_STORED"}


@dataclass(frozen=True)
class MemcachedWrite:
    """One write.

    :param verb: set, add, cas or delete.
    :param version: what cas compares.
    """

    verb: str
    key: str
    data: bytes = b""
    version: bytes = b""

    def encoded(self) -> bytes:
        """As Memcached reads it."""
        if self.verb == "delete":
            return b"delete %s\r\n" % self.key.encode()
        version = b" " + self.version if self.verb == "cas" else b""
        head = b"%s %s 0 0 %d%s\r\n" % (self.verb.encode(), self.key.encode(), len(self.data), version)
        return head + self.data + b"\r\n"


class MemcachedClient:
    """Keys spread over servers, always in the same way.

    :param state: for messages.
    :param timeout: seconds that a server may take to connect, and to answer.
    """

    def __init__(self, servers: Sequence[tuple[str, int]], *, state: str, timeout: float) -> None:
        try:
            base = import_module("pymemcache.client.base")
        except ImportError:
            raise ConfigError(
                option="A Memcached state",
                value=state,
                remedy="It needs pymemcache: pip install 'airflow-provider-tx[memcached]'.",
            ) from None
        self._state = state
        self._clients = {
            f"{host}:{port}": base.Client((host, port), connect_timeout=timeout, timeout=timeout, no_delay=True)
            for host, port in servers
        }

    def gets(self, keys: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
        """Value and version of the keys that are there."""
        found = dict[str, tuple[bytes, bytes]]()
        for server, mine in self._by_server(keys).items():
            for start in range(0, len(mine), _AT_ONCE):
                with self._answering(server) as client:
                    found.update(client.gets_many(mine[start : start + _AT_ONCE]))
        return found

    def write(self, writes: Sequence[MemcachedWrite]) -> list[str]:
        """Do all of them; the keys whose value another writer has replaced, and which therefore were not written."""
        overtaken, by_key = list[str](), {write.key: write for write in writes}
        for server, mine in self._by_server(by_key).items():
            for start in range(0, len(mine), _AT_ONCE):
                portion = [by_key[key] for key in mine[start : start + _AT_ONCE]]
                overtaken += self._write(server, portion)
        return overtaken

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
                raise StateError(
                    state=self._state,
                    problem=f"server {server} says of {write.key}: {reply.decode(errors='replace')}",
                    remedy="Some values of this update may be stored; replay the batch when the cause is removed.",
                )
            overtaken.append(write.key)
        return overtaken

    def _by_server(self, keys: Iterable[str]) -> dict[str, list[str]]:
        names = list(self._clients)
        found: dict[str, list[str]] = {}
        for key in keys:
            server = names[0] if len(names) == 1 else max(names, key=lambda name: _weight(name, key))
            found.setdefault(server, []).append(key)
        return found

    @contextmanager
    def _answering(self, server: str) -> Iterator[Any]:
        client = self._clients[server]
        exceptions = import_module("pymemcache.exceptions")
        try:
            yield client
        except (OSError, exceptions.MemcacheUnexpectedCloseError) as error:
            client.close()
            raise self._unavailable(server, str(error)) from None
        except exceptions.MemcacheError as error:
            client.close()
            raise StateError(
                state=self._state, problem=f"server {server} says: {error}", remedy="Some values may be stored."
            ) from None
        except BaseException:
            # Replies may be left in the connection: the next one to use it would take them for its own.
            client.close()
            raise

    def _unavailable(self, server: str, reason: str) -> StateUnavailable:
        return StateUnavailable(state=self._state, where=f"Memcached {server}", reason=reason or "it does not answer")


def _lines(sock: Any, count: int) -> list[bytes]:
    # An answer too long for one line ends like the others.
    data = b""
    while data.count(b"\r\n") < count:
        more = sock.recv(65536)
        if not more:
            raise ConnectionError("the server closed the connection")
        data += more
    return data.split(b"\r\n")[:count]


def _weight(server: str, key: str) -> bytes:
    # Rendezvous hashing: a server more or less moves only the keys that it wins or loses.
    return hashlib.blake2b(f"{server} {key}".encode(), digest_size=8).digest()
