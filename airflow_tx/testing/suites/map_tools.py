"""Tools for tests of maps. They open maps over a backing map that counts round trips and fails on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import pytest

from airflow_tx.state.aggregators import Sum
from airflow_tx.state.keys import Key
from airflow_tx.state.maps import (
    BackingMap,
    CachedMap,
    CombinerValueUpdater,
    NonTransactionalMap,
    OpaqueMap,
    TransactionalMap,
    ValueUpdater,
)

MAPS: dict[str, Any] = {
    "non-transactional": NonTransactionalMap,
    "transactional": TransactionalMap,
    "opaque": OpaqueMap,
}
AnyMap: TypeAlias = "NonTransactionalMap[Any] | TransactionalMap[Any] | OpaqueMap[Any]"
Deltas: TypeAlias = "list[tuple[str, int]]"

exact_kinds = pytest.mark.parametrize("kind", ["transactional", "opaque"], indirect=True)
opaque_only = pytest.mark.parametrize("kind", ["opaque"], indirect=True)
transactional_only = pytest.mark.parametrize("kind", ["transactional"], indirect=True)


class Lost(Exception):
    """The store does not respond."""


class Counting:
    """A backing map that counts its round trips, and fails on request.

    :ivar trips: a list with `get` or `put` for each round trip.
    :ivar fail: how the next put fails: `refused`, `unanswered`, or None if it does not fail.
    """

    def __init__(self, backing: BackingMap[Any]) -> None:
        self._backing = backing
        self.trips: list[str] = []
        self.fail: str | None = None

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        self.trips.append("get")
        return self._backing.multi_get(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Store values. A refused put stores no value, and a put without a response stores all values.

        Both raise `Lost`.
        """
        assert len(set(keys)) == len(keys)
        self.trips.append("put")
        fail, self.fail = self.fail, None
        if fail != "refused":
            self._backing.multi_put(keys, values)
        if fail is not None:
            raise Lost(fail)


class MakeBacking(Protocol):
    """Opens the tested store. Within a test, it is always the same store, as if opened by several processes."""

    def __call__(self, kind: str) -> BackingMap[Any]:
        """Return the store for values of one kind: "opaque", "transactional" or "non-transactional"."""


class Opened:
    """Opens maps over the tested store."""

    def __init__(self, make_backing: MakeBacking, kind: str, cached: bool) -> None:
        self.kind = kind
        self.cached = cached
        self._make = make_backing
        self.last: Counting

    def __call__(self) -> AnyMap:
        """Open a new map object over the same store, as another process would do."""
        self.last = Counting(self._make(self.kind))
        backing: BackingMap[Any] = CachedMap(self.last, 3) if self.cached else self.last
        opened: AnyMap = MAPS[self.kind](backing)
        return opened

    def put(self, values: dict[Key, Any]) -> None:
        """Store values directly in the backing map, without the map."""
        self._make(self.kind).multi_put(list(values), list(values.values()))

    def stored(self, key: Key) -> Any:
        return self._make(self.kind).multi_get([key])[0]


def plus(delta: int) -> ValueUpdater[Any]:
    return CombinerValueUpdater(Sum(), delta)


def apply(state: AnyMap, deltas: Deltas, prefix: str = "") -> list[Any]:
    """Add these numbers in one update, and return the new values."""
    return state.multi_update(
        [(prefix, word) for word, _ in deltas], [plus(delta) for _, delta in deltas]
    )


def batch(state: AnyMap, txid: int, *updates: Deltas) -> None:
    state.begin_commit(txid)
    for deltas in updates:
        apply(state, deltas)
    state.commit(txid)


def value(state: AnyMap, word: str, prefix: str = "") -> Any:
    return state.multi_get([(prefix, word)])[0]
