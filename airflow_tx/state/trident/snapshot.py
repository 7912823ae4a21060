"""One value for everything: the state of an aggregation without keys. Source: trident-state seed (Snapshottable)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from airflow_tx.state.api import State, StateKind
from airflow_tx.state.trident.maps import MapState, store_name
from airflow_tx.state.trident.portable import portable
from airflow_tx.state.trident.values import ValueUpdater

_T = TypeVar("_T")
GLOBAL = ("$GLOBAL$",)


class Snapshottable(State, Protocol[_T]):
    """A state that keeps one value."""

    def get(self) -> _T | None:
        """Read the value as the current transaction finds it; None: there is none."""

    def update(self, updater: ValueUpdater[_T]) -> _T | None:
        """Update the value; returns the new one."""

    def set(self, value: _T | None) -> None:
        """Replace the value; None removes it."""


class SnapshottableMap(Generic[_T]):
    """One value of a map, under a fixed key, as a state of its own, which is a map, too.

    :param map_state: the map.
    :param key: the fixed key under which the value is kept.
    """

    def __init__(self, map_state: MapState[_T], key: Sequence[Any] = GLOBAL) -> None:
        self.name = store_name(map_state)
        # A map of the user's own may not say what it is.
        self.kind = StateKind(getattr(map_state, "kind", StateKind.NON_TRANSACTIONAL))
        self._map = map_state
        self._key = tuple(key)

    def __repr__(self) -> str:
        return f"SnapshottableMap({self._map!r}, {self._key!r})"

    def begin_commit(self, txid: int | None, **grant: Any) -> None:
        self._map.begin_commit(txid, **grant)

    def commit(self, txid: int | None) -> None:
        self._map.commit(txid)

    def for_executors(self) -> Any:
        """Copy it for a process without Airflow."""
        return portable(self, "_map")

    def get(self) -> _T | None:
        return self.multi_get([self._key])[0]

    def update(self, updater: ValueUpdater[_T]) -> _T | None:
        return self.multi_update([self._key], [updater])[0]

    def set(self, value: _T | None) -> None:
        self.multi_put([self._key], [value])

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[_T | None]:
        return self._map.multi_get(keys)

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[_T]]
    ) -> list[_T | None]:
        return self._map.multi_update(keys, updaters)

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[_T | None]) -> None:
        self._map.multi_put(keys, values)
