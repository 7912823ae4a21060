"""A cache of values that is never older than the store. Source: trident-state seed (CachedMap), protocol.md §7."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from airflow_tx.errors import ConfigError
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.keys import Key
from airflow_tx.state.trident.maps import BackingMap, store_name
from airflow_tx.state.trident.portable import portable

_V = TypeVar("_V")


class CachedMap(Generic[_V]):
    """Keeps the values that were used last, between a map and its store: `OpaqueMap(CachedMap(backing))`.

    It is used inside a batch only. It is emptied when a batch begins, unless the fence proves that no other writer has
    written since the last batch of this very object: see `begin_commit`.

    :param backing: where the values are.
    :param size: how many keys are kept; the one that was not used for longest goes first.
    """

    def __init__(self, backing: BackingMap[_V], size: int = 10_000) -> None:
        if size < 1:
            raise ConfigError(
                option="CachedMap(size=)", value=size, remedy="Use a number of keys from 1."
            )
        self.name = store_name(backing)
        self._backing = backing
        self._size = size
        self._kept: OrderedDict[Key, _V | None] = OrderedDict()
        self._open = False
        self._token: Token | None = None
        self._ended: Token | None = None

    def __repr__(self) -> str:
        return f"CachedMap({self._backing!r}, {self._size})"

    def begin_commit(
        self, txid: int | None, *, token: Token | None = None, found: Token | None = None
    ) -> None:
        """Begin a batch, and keep the values only if no other writer can have changed them.

        :param token: of its grant.
        :param found: what the fence held before `token` raised it. If it is the token of the last batch that this
            object completed, there was no write since; but a replay of that batch has undone its writes.
        """
        ended = self._ended
        self._ended = None
        mine = found is not None and found == ended
        if not (
            mine
            and token is not None
            and found is not None
            and (token == found or token.txid > found.txid)
        ):
            self._kept.clear()
        self._open = True
        self._token = token

    def commit(self, txid: int | None) -> None:
        self._open = False
        self._ended = self._token

    def for_executors(self) -> CachedMap[_V]:
        """Copy it for a process without Airflow."""
        copied: CachedMap[_V] = portable(self, "_backing")
        return copied

    def multi_get(self, keys: Sequence[Key]) -> list[_V | None]:
        if not self._open:
            return list(self._backing.multi_get(keys))
        missing = [key for key in keys if key not in self._kept]
        found = dict(zip(missing, self._backing.multi_get(missing), strict=True)) if missing else {}
        values = [found[key] if key in found else self._kept[key] for key in keys]
        self._keep(keys, values)
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[_V]) -> None:
        for key in keys:
            self._kept.pop(key, None)
        self._backing.multi_put(keys, values)
        if self._open:
            self._keep(keys, values)

    def _keep(self, keys: Sequence[Key], values: Sequence[_V | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._kept[key] = value
            self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
