"""Redis as the store of Trident's maps: `OpaqueMap(RedisMap("redis_default", prefix="counts"))`.

It has the guarantees of the map that it stands under and no more; `RedisState` is without their two gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from airflow_tx.errors import StateError
from airflow_tx.state.addressed import Addressed
from airflow_tx.state.backing.redis_connection import RedisServer, checked_prefix, opened
from airflow_tx.state.backing.redis_values import from_text, key_text, to_text
from airflow_tx.state.maps import Key

KEYS_AT_ONCE = 5_000


class RedisMap(Addressed[RedisServer]):
    """A backing map in Redis: a key `<prefix>:["man"]` for each key, its value as JSON. A get is MGETs, a put is MSETs,
    sent together.

    Values may be plain JSON, Decimal, bytes, dates, times and tuples. A Redis Cluster is not spoken to.

    :param conn_id: Airflow connection of type redis; looked up when the map is used.
    :param prefix: the keys begin with it.
    """

    def __init__(self, conn_id: str, *, prefix: str) -> None:
        super().__init__(conn_id, prefix)
        self.prefix = checked_prefix(prefix, "RedisMap")

    @classmethod
    def from_url(cls, url: str, *, prefix: str, label: str = "url") -> RedisMap:
        """A map without Airflow.

        :param url: redis://user:password@host:port/db, rediss://… or unix://path; it is never shown.
        :param label: stands for the connection id in the map's name.
        """
        return cls(label, prefix=prefix)._at_url(url)

    def __repr__(self) -> str:
        return f"RedisMap({self.conn_id!r}, prefix={self.prefix!r})"

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The value of each key, in the order of the keys; None: there is none.

        :raises StateUnavailable, StateError: the server does not answer, or holds something else under a key.
        """
        names = list(map(self._key, keys))
        with self._store.client() as client:
            pipeline = client.pipeline(transaction=False)
            for start in range(0, len(names), KEYS_AT_ONCE):
                pipeline.mget(names[start : start + KEYS_AT_ONCE])
            found = list(chain.from_iterable(pipeline.execute()))
        return [None if data is None else self._value(key, data) for key, data in zip(keys, found, strict=True)]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Store the value of each key; None removes it.

        :raises StateUnavailable: the server does not answer; some of them may be stored.
        :raises StateError: a value has no form in JSON; nothing is stored.
        """
        pairs = list(zip(map(self._key, keys), values, strict=True))
        texts = [(name, self._text(name, value)) for name, value in pairs if value is not None]
        gone = [name for name, value in pairs if value is None]
        with self._store.client() as client:
            pipeline = client.pipeline(transaction=False)
            for start in range(0, len(texts), KEYS_AT_ONCE):
                pipeline.mset(dict(texts[start : start + KEYS_AT_ONCE]))
            for start in range(0, len(gone), KEYS_AT_ONCE):
                pipeline.unlink(*gone[start : start + KEYS_AT_ONCE])
            pipeline.execute()

    def _key(self, key: Key) -> str:
        try:
            return f"{self.prefix}:{key_text(key)}"
        except (TypeError, ValueError) as error:
            raise self._refused(f"key {key!r}: {error}") from None

    def _text(self, name: str, value: Any) -> bytes:
        try:
            return to_text(value)
        except (TypeError, ValueError) as error:
            raise self._refused(f"the value of {name}: {error}") from None

    def _value(self, key: Key, data: bytes) -> Any:
        try:
            return from_text(data)
        except ValueError:
            raise self._refused(f"what is under {self._key(key)} was not written by a map") from None

    def _refused(self, problem: str) -> StateError:
        return StateError(state=self.name, problem=problem, remedy="Use other keys or values, or another prefix.")

    def _open(self) -> RedisServer:
        return opened(self.conn_id, self._url, state=self.name)
