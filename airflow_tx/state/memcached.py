"""Values in Memcached, as in Trident: `MemcachedState.opaque(["cache1:11211"])`. Source: trident-state seed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import Any, TypeAlias
from urllib.parse import quote

from airflow_tx.base.connections import airflow_connection, server_addresses, wrong_type
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.described import Described
from airflow_tx.base.errors import ConfigError, StateError, StateUnavailable
from airflow_tx.state.api import StateKind
from airflow_tx.state.keys import Key
from airflow_tx.state.maps import (
    CachedMap,
    MapTexts,
    NonTransactionalMap,
    OpaqueMap,
    SnapshottableMap,
    TransactionalMap,
)

# --- client -------------------------------------------------------------------------------------------------------
# Read and conditionally write many keys on several Memcached servers, over pymemcache's
# connections.
#
# pymemcache does not support bulk cas or add, so this client sends them in Memcached's text
# protocol, 1,000 at a time.


_PORT = 11211
LONGEST_KEY = 250
# Number of writes that are sent before their replies are read. These replies fit into the
# connection buffers, so that neither side waits for the other.
_AT_ONCE = 1_000
_DONE = {b"STORED", b"DELETED"}
_OVERTAKEN = {b"EXISTS", b"NOT_FOUND", b"NOT_STORED"}


@dataclass(frozen=True)
class MemcachedWrite:
    """One write of a key: set, add, cas (which compares the version) or delete."""

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
    """Assigns each key to the same server every time.

    A server has `timeout` seconds to accept a connection and to respond.
    """

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
        """Return value and version of each key that exists."""
        found = dict[str, tuple[bytes, bytes]]()
        for server, portion in self._portions(keys):
            with self._answering(server) as client:
                found.update(client.gets_many(portion))
        return found

    def write(self, writes: Sequence[MemcachedWrite]) -> list[str]:
        """Send all writes. Return the keys that were not written, because another writer has replaced their values."""
        by_key = {write.key: write for write in writes}
        written = (
            self._write(server, [by_key[key] for key in keys])
            for server, keys in self._portions(by_key)
        )
        return list(chain.from_iterable(written))

    def _write(self, server: str, writes: Sequence[MemcachedWrite]) -> list[str]:
        with self._answering(server) as client:
            if client.sock is None:
                client.version()  # opens the connection
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
            # Close the connection. Otherwise, its next user would read the remaining replies.
            client.close()
            raise


def _lines(sock: Any, count: int) -> list[bytes]:
    # Even a reply that is too long for one line ends with a line break.
    data = b""
    while data.count(b"\r\n") < count:
        if not (more := sock.recv(65536)):
            raise ConnectionError("the server closed the connection")
        data += more
    return data.split(b"\r\n")[:count]


def _weight(server: str, key: str) -> bytes:
    # Rendezvous hashing: if a server is added or removed, only this server's keys move.
    return hashlib.blake2b(f"{server} {key}".encode(), digest_size=8).digest()


def servers_of_connection(conn_id: str) -> list[tuple[str, int]]:
    """Return the servers of a connection of type memcached. Its host may list several hosts, separated by commas.

    A host without a port gets the port of the connection.

    :raises ConfigError: there is no such connection, it has another type, or a host is not valid.
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
    """Split "host:port" or "host" into host and port. An invalid port becomes 0."""
    try:
        host, _, given = "".join(server_addresses(server, port)).rpartition(":")
    except ValueError:
        return server, 0
    return host.strip("[]"), int(given or 0)


# --- map ----------------------------------------------------------------------------------------------------------


_LONGEST_PREFIX = 100
Servers: TypeAlias = Sequence[str | tuple[str, int]] | str
_MAPS: Mapping[StateKind, Any] = {
    StateKind.NON_TRANSACTIONAL: NonTransactionalMap,
    StateKind.TRANSACTIONAL: TransactionalMap,
    StateKind.OPAQUE: OpaqueMap,
}


class MemcachedMap(Described):
    """A backing map in Memcached: values as JSON, read and written in bulk.

    A key is `<prefix>["man"]`, percent-encoded where Memcached requires it. A key of more than 250 bytes becomes
    `<prefix>#` and its SHA-256. With several servers, each key belongs to one server. If that server does not respond,
    the map does not use another server, because the key has no value there.

    A value is replaced only if no other writer has replaced it since the map read it. The map uses gets and cas, or add
    if there was no value. This refuses most outdated writers, but not all. If an outdated writer reads after the other
    writer has written, it is accepted as a later writer. A second write of a key within a batch also counts as later.

    :param servers: "host:port" or (host, port) for each server, or the id of an Airflow connection of type memcached.
        The connection is looked up when the map is used.
    :param prefix: the beginning of all keys, without spaces.
    :param timeout: seconds within which a server must respond.
    """

    def __init__(self, servers: Servers, *, prefix: str = "", timeout: float = 10.0) -> None:
        self.servers = _checked_servers(servers)
        if (
            len(prefix.encode()) > _LONGEST_PREFIX
            or not prefix.isprintable()
            or not prefix.isascii()
            or " " in prefix
        ):
            remedy = f"Use at most {_LONGEST_PREFIX} printable ASCII characters without a space."
            raise ConfigError(option="prefix of a Memcached state", value=prefix, remedy=remedy)
        self.prefix = prefix
        self.name = f"memcached.{prefix}" if prefix else "memcached"
        self._texts = MapTexts(self.name)
        self._timeout = timeout
        self.normalize(servers=_shown(self.servers))

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Return the value of each key.

        Return None for a key without a value, and for a value that the server has evicted.

        :raises StateUnavailable: a server does not respond.
        :raises StateError: a key has a value that this map did not write.
        """
        names = list(map(self._key, keys))
        found = self._client.gets(names)
        self._read.clear()
        self._read |= {name: found[name][1] if name in found else None for name in names}
        return [
            self._texts.value(name, found[name][0]) if name in found else None for name in names
        ]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Store the value of each key. None removes the key.

        :raises StateError: another writer has replaced a value since it was read. Other values may be stored.
        :raises StateUnavailable: a server does not respond. Some values may be stored.
        """
        names = list(map(self._key, keys))
        writes = list[MemcachedWrite]()
        for name, value in zip(names, values, strict=True):
            version = self._read.get(name)
            if value is None:
                writes.append(MemcachedWrite("delete", name))
            else:
                verb = "set" if name not in self._read else "add" if version is None else "cas"
                writes.append(
                    MemcachedWrite(verb, name, self._texts.text(name, value), version or b"")
                )
        for name in names:
            self._read.pop(name, None)
        overtaken = self._client.write(writes)
        if overtaken:
            problem = f"{len(overtaken)} of {len(names)} values were not written, because another writer has changed "
            problem += f"them, such as {overtaken[0]}; all other values were written"
            remedy = "Let one writer at a time update the state, and replay the batch."
            raise StateError(state=self.name, problem=problem, remedy=remedy)

    def dataset(self) -> Dataset:
        """Return the OpenLineage dataset of the map.

        It names all servers, because the keys are distributed among them.
        """
        servers = ",".join(f"{host}:{port}" for host, port in self._addresses())
        return Dataset(f"memcached://{servers}", self.prefix or "/")

    def for_executors(self) -> MemcachedMap:
        """Return a copy of the map, including its servers, for a process without Airflow."""
        return MemcachedMap(self._addresses(), prefix=self.prefix, timeout=self._timeout)

    def _key(self, key: Key) -> str:
        text = self._texts.key(key)
        name = self.prefix + quote(text, safe="[]{},:\"'/!$&()*+;=?@<>|\\^`~")
        if len(name) <= LONGEST_KEY:
            return name
        return f"{self.prefix}#{hashlib.sha256(text.encode()).hexdigest()}"

    @cached_property
    def _read(self) -> dict[str, bytes | None]:
        """The version of each key as of the last get; None for a key without a value."""
        return {}

    @cached_property
    def _client(self) -> MemcachedClient:
        return MemcachedClient(self._addresses(), state=self.name, timeout=self._timeout)

    def _addresses(self) -> list[tuple[str, int]]:
        if not isinstance(self.servers, str):
            return self.servers
        return servers_of_connection(self.servers)


class MemcachedState(Described):
    """Creates states in Memcached (Trident's MemcachedState).

    Each state is a map by key, and also a state of one value.

        factory = MemcachedState.opaque(["cache1:11211", "cache2:11211"], prefix="words:")
        counts = factory.make_state({}, 0, 1)

    A state counts each update exactly once if writers take turns and Memcached loses no value. If Memcached evicts a
    value, or loses it in a restart, the key silently starts again without a value. Also, a committer that was declared
    dead can still write if it was paused before its get and then resumes (docs/stores.md). RedisState and SqlState do
    not have these two gaps.

    :param servers: "host:port" or (host, port) for each server; or the id of an Airflow connection of type memcached.
    :param kind: "opaque", "transactional" or "non-transactional".
    :param prefix: the beginning of all keys.
    :param cache: maximum number of values that this process caches during a batch; None for no cache.
    :param timeout: seconds within which a server must respond.
    """

    def __init__(
        self,
        servers: Servers,
        kind: StateKind | str,
        *,
        prefix: str = "",
        cache: int | None = None,
        timeout: float = 10.0,
    ) -> None:
        if kind not in list(StateKind):
            remedy = 'Use "opaque", "transactional" or "non-transactional".'
            raise ConfigError(option="MemcachedState(kind=)", value=str(kind), remedy=remedy)
        self.kind = StateKind(kind)
        self.servers = servers
        self.prefix = prefix
        self.cache = cache
        self.timeout = timeout
        self.name = self._backing().name
        self.normalize(servers=_shown(self._backing().servers))

    @property
    def can_roll_back(self) -> bool:
        return self.kind is StateKind.OPAQUE

    @classmethod
    def opaque(cls, servers: Servers, **options: Any) -> MemcachedState:
        """Return a factory of states that store each value with its last txid and the value before that transaction.

        `options` are parameters of the class.
        """
        return cls(servers, StateKind.OPAQUE, **options)

    @classmethod
    def transactional(cls, servers: Servers, **options: Any) -> MemcachedState:
        """Return a factory of states that store each value with its last txid.

        `options` are parameters of the class.
        """
        return cls(servers, StateKind.TRANSACTIONAL, **options)

    @classmethod
    def non_transactional(cls, servers: Servers, **options: Any) -> MemcachedState:
        """Return a factory of states that store only values.

        A replay counts its rows again. `options` are parameters of the class.
        """
        return cls(servers, StateKind.NON_TRANSACTIONAL, **options)

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> SnapshottableMap[Any]:
        backing: Any = self._backing()
        if self.cache is not None:
            backing = CachedMap(backing, self.cache)
        return SnapshottableMap(_MAPS[self.kind](backing, name=self.name))

    def dataset(self) -> Dataset:
        """Return the OpenLineage dataset of the states."""
        return self._backing().dataset()

    def for_executors(self) -> MemcachedState:
        """Return a copy of the factory, including its servers, for a process without Airflow."""
        copied = copy.copy(self)
        copied.servers = self._backing().for_executors().servers
        return copied

    def _backing(self) -> MemcachedMap:
        return MemcachedMap(self.servers, prefix=self.prefix, timeout=self.timeout)


def _checked_servers(servers: Servers) -> list[tuple[str, int]] | str:
    if isinstance(servers, str) and servers and ":" not in servers:
        return servers
    given = [] if isinstance(servers, str) else servers
    found = [server if isinstance(server, tuple) else parsed_server(server) for server in given]
    if not found or any(port < 1 for _, port in found):
        remedy = 'Give a list, ["host:11211"], or the id of an Airflow connection.'
        raise ConfigError(option="servers of a Memcached state", value=servers, remedy=remedy)
    return found


def _shown(servers: list[tuple[str, int]] | str) -> list[str] | str:
    if isinstance(servers, str):
        return servers
    return [":".join(map(str, server)) for server in servers]
