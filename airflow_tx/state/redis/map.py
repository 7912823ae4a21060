"""Redis as the store of Trident's maps: `OpaqueMap(RedisMap("redis_default", prefix="counts"))`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from airflow_tx.base.connections import redis_url
from airflow_tx.base.dataset import Dataset
from airflow_tx.state.api import Addressed
from airflow_tx.state.keys import Key
from airflow_tx.state.maps import MapTexts
from airflow_tx.state.redis.fence import (
    RedisServer,
    checked_prefix,
    server_of,
)

_KEYS_AT_ONCE = 5_000


class RedisMap(Addressed[RedisServer]):
    """A backing map in Redis: a key `<prefix>:["man"]` for each key, with its value as JSON.

    A get sends all MGETs in one round trip, and a put sends all MSETs in one round trip. The guarantees depend on the
    map that uses this backing map. They have the two gaps that `RedisState` closes. Values may be plain JSON, Decimal,
    bytes, dates, times and tuples. Redis Cluster is not supported.

    :param conn_id: Airflow connection of type redis, looked up when the map is used.
    :param prefix: the beginning of the keys.
    """

    def __init__(self, conn_id: str, *, prefix: str) -> None:
        super().__init__(conn_id, prefix)
        self.prefix = checked_prefix(prefix, "RedisMap")
        self._texts = MapTexts(self.name)

    def dataset(self) -> Dataset:
        """Return the OpenLineage dataset of the map."""
        return self._store.dataset(self.prefix)

    def for_executors(self) -> RedisMap:
        """Return a copy of the map, including its password, for a process without Airflow."""
        return self._copy_at(self._url or redis_url(self.conn_id, what="RedisMap"))

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Return the value of each key. Return None for a key without a value.

        :raises StateUnavailable: the server does not respond.
        :raises StateError: a key has a value that this map did not write.
        """
        names = list(map(self._key, keys))
        with self._store.client() as client:
            pipeline = client.pipeline(transaction=False)
            for start in range(0, len(names), _KEYS_AT_ONCE):
                pipeline.mget(names[start : start + _KEYS_AT_ONCE])
            found = list(chain.from_iterable(pipeline.execute()))
        pairs = zip(names, found, strict=True)
        return [None if data is None else self._texts.value(name, data) for name, data in pairs]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Store the value of each key. None removes the key.

        :raises StateUnavailable: the server does not respond. Some values may be stored.
        :raises StateError: JSON cannot represent a value. Nothing is stored.
        """
        pairs = list(zip(map(self._key, keys), values, strict=True))
        texts = [
            (name, self._texts.text(name, value)) for name, value in pairs if value is not None
        ]
        gone = [name for name, value in pairs if value is None]
        with self._store.client() as client:
            pipeline = client.pipeline(transaction=False)
            for start in range(0, len(texts), _KEYS_AT_ONCE):
                pipeline.mset(dict(texts[start : start + _KEYS_AT_ONCE]))
            for start in range(0, len(gone), _KEYS_AT_ONCE):
                pipeline.unlink(*gone[start : start + _KEYS_AT_ONCE])
            pipeline.execute()

    def _key(self, key: Key) -> str:
        return f"{self.prefix}:{self._texts.key(key)}"

    def _open(self) -> RedisServer:
        return server_of(self.conn_id, self._url, state=self.name)
