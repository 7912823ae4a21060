"""Values in Memcached, as in Trident: `MemcachedState.opaque(["cache1:11211"])`. Source: trident-state seed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import quote

from airflow_tx.described import Described
from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.api import StateKind
from airflow_tx.state.keys import Key
from airflow_tx.state.memcached.client import (
    LONGEST_KEY,
    MemcachedClient,
    MemcachedWrite,
    parsed_server,
    servers_of_connection,
)
from airflow_tx.state.trident.cached import CachedMap
from airflow_tx.state.trident.json_values import MapTexts
from airflow_tx.state.trident.maps import NonTransactionalMap, OpaqueMap, TransactionalMap
from airflow_tx.state.trident.snapshot import SnapshottableMap

_LONGEST_PREFIX = 100
Servers: TypeAlias = Sequence[str | tuple[str, int]] | str
_MAPS: Mapping[StateKind, Any] = {
    StateKind.NON_TRANSACTIONAL: NonTransactionalMap,
    StateKind.TRANSACTIONAL: TransactionalMap,
    StateKind.OPAQUE: OpaqueMap,
}


class MemcachedMap(Described):
    """A backing map in Memcached: values as JSON, read and written in bulk.

    A key is `<prefix>["man"]`, percent-encoded where Memcached demands it; one that would be longer than 250 bytes is
    `<prefix>#` and its SHA-256. With several servers each key has its server; while that does not answer, the key is
    not looked for on another one, where it would begin at nothing. A value is replaced only if no writer has replaced
    it since it was read (gets and cas; add if there was none). That refuses most writers that were overtaken, not all:
    one that reads after the other has written is taken for a later one, as is a second write of a key within a batch.

    :param servers: "host:port" or (host, port) of each; or the id of an Airflow connection of type memcached, which is
        looked up when the map is used.
    :param prefix: the keys begin with it; without spaces.
    :param timeout: seconds that a server may take to answer.
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
        """Read the value of each key; None: the key has no value, or the server evicted it.

        :raises StateUnavailable: a server does not answer.
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
        """Store the value of each key; None removes it.

        :raises StateError: another writer has replaced a value since it was read; others may be stored.
        :raises StateUnavailable: a server does not answer; some values may be stored.
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
            problem = f"{len(overtaken)} of {len(names)} values were replaced by another writer since they were read"
            problem += f", such as {overtaken[0]}; the others were written"
            remedy = "Let one writer at a time update the state, and replay the batch."
            raise StateError(state=self.name, problem=problem, remedy=remedy)

    def for_executors(self) -> MemcachedMap:
        """Copy it for a process without Airflow, with its servers."""
        return MemcachedMap(self._addresses(), prefix=self.prefix, timeout=self._timeout)

    def _key(self, key: Key) -> str:
        text = self._texts.key(key)
        name = self.prefix + quote(text, safe="[]{},:\"'/!$&()*+;=?@<>|\\^`~")
        if len(name) <= LONGEST_KEY:
            return name
        return f"{self.prefix}#{hashlib.sha256(text.encode()).hexdigest()}"

    @cached_property
    def _read(self) -> dict[str, bytes | None]:
        """How the store knows what the last get has read; None: there was nothing."""
        return {}

    @cached_property
    def _client(self) -> MemcachedClient:
        return MemcachedClient(self._addresses(), state=self.name, timeout=self._timeout)

    def _addresses(self) -> list[tuple[str, int]]:
        if not isinstance(self.servers, str):
            return self.servers
        return servers_of_connection(self.servers)


class MemcachedState(Described):
    """Makes states in Memcached, each a map by key and one value for everything (Trident's MemcachedState).

        factory = MemcachedState.opaque(["cache1:11211", "cache2:11211"], prefix="words:")
        counts = factory.make_state({}, 0, 1)

    It is exactly once among writers that take turns, as long as Memcached keeps its values. It cannot keep a
    value that it evicts or that a restart loses, whose key then begins at nothing, without a word; and refuse a
    committer thought dead that wakes up before its get (docs/stores.md). RedisState and SqlState can.

    :param servers: "host:port" or (host, port) of each; or the id of an Airflow connection of type memcached.
    :param kind: "opaque", "transactional" or "non-transactional".
    :param prefix: of all keys.
    :param cache: how many values are kept in this process during a batch; None: none.
    :param timeout: seconds that a server may take to answer.
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
        """Keep values that remember their last txid and the value before it; options go to the class."""
        return cls(servers, StateKind.OPAQUE, **options)

    @classmethod
    def transactional(cls, servers: Servers, **options: Any) -> MemcachedState:
        """Keep values that remember their last txid."""
        return cls(servers, StateKind.TRANSACTIONAL, **options)

    @classmethod
    def non_transactional(cls, servers: Servers, **options: Any) -> MemcachedState:
        """Keep values alone: a replay counts twice."""
        return cls(servers, StateKind.NON_TRANSACTIONAL, **options)

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> SnapshottableMap[Any]:
        backing: Any = self._backing()
        if self.cache is not None:
            backing = CachedMap(backing, self.cache)
        return SnapshottableMap(_MAPS[self.kind](backing, name=self.name))

    def for_executors(self) -> MemcachedState:
        """Copy it for a process without Airflow, with its servers."""
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
