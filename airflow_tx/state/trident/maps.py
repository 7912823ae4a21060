"""Trident's maps: what a batch does to stored values so that a replay does not count twice, over any store of values.

    counts = OpaqueMap(CachedMap(MemoryMap()))
    counts.begin_commit(3)
    counts.multi_update([("man",), ("dog",)], [CombinerValueUpdater(Count(), 2), CombinerValueUpdater(Count(), 1)])
    counts.commit(3)

Their promise is the promise of Trident: exactly once among writers that take turns. A writer that was declared dead
can still overwrite a value, and a key that only a failed attempt touched keeps what that attempt wrote; the fenced
states of this package (SqlState …) are without these two gaps. Source: trident-state seed, protocol.md §7.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from airflow_tx.errors import StateError
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.api import State, StateKind
from airflow_tx.state.keys import Key, as_key
from airflow_tx.state.trident.portable import portable
from airflow_tx.state.trident.values import (
    OpaqueValue,
    Replace,
    TransactionalValue,
    ValueUpdater,
    Writer,
    updated_value,
)

_T = TypeVar("_T")
_V = TypeVar("_V")
# Older than any transaction: what was written outside of one.
_BEFORE_ALL = 0


class BackingMap(Protocol[_V]):
    """A store of values by key, with its two methods. A put of one key happens as a whole or not at all."""

    def multi_get(self, keys: Sequence[Key]) -> Sequence[_V | None]:
        """Read the value of each key, in the order of the keys; None: there is none."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[_V]) -> None:
        """Store the value of each key; no key comes twice. None, which only a NonTransactionalMap puts, removes it.

        :raises Exception: some of them may be stored.
        """


class MapState(State, Protocol[_T]):
    """A state that keeps a value by key."""

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[_T | None]:
        """Read the value of each key as the current transaction finds it; None: there is none."""

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[_T]]
    ) -> list[_T | None]:
        """Update the values; returns the new ones. A key may come twice: the second update sees the first."""

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[_T | None]) -> None:
        """Replace the value of each key; None removes it."""


def store_name(backing: Any) -> str:
    """Name a backing map; one without a name has the name of its class."""
    return str(getattr(backing, "name", type(backing).__name__))


class _Map(Generic[_V, _T]):
    """The common part of the maps: one get and one put for each update, and the memory of the open batch.

    :param backing: where the values are.
    :param name: for messages, and for the ledger; None: the name of the store, or of its class.
    """

    kind: ClassVar[StateKind]

    def __init__(self, backing: BackingMap[_V], *, name: str | None = None) -> None:
        self.name = name or store_name(backing)
        self._backing = backing
        self._txid: int | None = None
        self._writer = Writer(_BEFORE_ALL)
        self._mine: dict[Key, _V | None] = {}
        self._failed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._backing!r})"

    def begin_commit(
        self,
        txid: int | None,
        *,
        token: Token | None = None,
        chunk: int | None = None,
        found: Token | None = None,
    ) -> None:
        """Begin the updates of `txid`; for the second time, they are a replay.

        :param txid: None: updates outside the order of transactions, which no replay undoes or repeats.
        :param token: of the grant, in a state with a fence.
        :param chunk: the writer within the grant.
        :param found: what the fence held before `token` raised it; with it, a cache can outlive its batch.
        """
        self._txid = txid
        self._writer = Writer(txid or _BEFORE_ALL, token, chunk)
        self._mine = {}
        self._failed = False
        if hasattr(self._backing, "begin_commit"):
            self._backing.begin_commit(txid, token=token, found=found)

    def commit(self, txid: int | None) -> None:
        """End the updates of `txid`; a StateError if another one was begun, or an update of it failed."""
        if txid != self._txid:
            raise self._refusal(
                f"commit of transaction {txid}, but {self._txid} was begun", "Begin it first."
            )
        self._check_whole()
        if hasattr(self._backing, "commit"):
            self._backing.commit(txid)
        self._txid = None
        self._mine = {}

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[_T | None]:
        """Read values as the current transaction finds them, with what this map did; outside of one, the newest."""
        normal = [as_key(key) for key in keys]
        stored = self._stored(normal)
        return [copy.deepcopy(self._seen(stored[key], key in self._mine)) for key in normal]

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[_T]]
    ) -> list[_T | None]:
        """Update the value of each key, with one get and one put; returns the new values.

        :raises TxidBehind: a later transaction has been here, and nothing was put.
        :raises StateError: an earlier update of the batch failed: begin it again.
        """
        if len(keys) != len(updaters):
            raise ValueError(f"{len(keys)} keys, but {len(updaters)} values or updaters")
        self._check_whole()
        normal = [as_key(key) for key in keys]
        stored = self._stored(normal)
        changed = dict[Key, Any]()
        results = list[_T | None]()
        # An interrupted update must be replayed: the values of the store are unknown.
        self._failed = True
        for key, updater in zip(normal, updaters, strict=True):
            before = stored[key]
            after = self._updated(key, before, key in self._mine or key in changed, updater)
            if after is not before:
                stored[key] = changed[key] = after
            results.append(self._seen(after, True))
        if changed:
            self._backing.multi_put(list(changed), list(changed.values()))
        self._failed = False
        if self._txid is not None:
            self._mine.update(changed)
        return copy.deepcopy(results)

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[_T | None]) -> None:
        self.multi_update(keys, [Replace(value) for value in values])

    def for_executors(self) -> Any:
        """Copy it for a process without Airflow."""
        return portable(self, "_backing")

    def _seen(self, stored: _V | None, mine: bool) -> _T | None:
        raise NotImplementedError

    def _updated(
        self, key: Key, stored: _V | None, mine: bool, updater: ValueUpdater[_T]
    ) -> _V | None:
        """Compute what to store; the very object `stored` if nothing is to be stored."""
        raise NotImplementedError

    def _stored(self, keys: Sequence[Key]) -> dict[Key, _V | None]:
        missing = [key for key in dict.fromkeys(keys) if key not in self._mine]
        found = list(self._backing.multi_get(missing)) if missing else []
        if len(found) != len(missing):
            raise self._refusal(
                f"multi_get of {len(missing)} keys gave {len(found)} values",
                f"{type(self._backing).__name__} has to give one for each key, None if there is none.",
            )
        stored = dict(zip(missing, found, strict=True))
        return {key: self._mine[key] if key in self._mine else stored[key] for key in keys}

    def _check_whole(self) -> None:
        if self._failed and self._txid is not None:
            raise self._refusal(
                f"an update of transaction {self._txid} failed, and may have been stored or not",
                f"Replay the batch: begin_commit({self._txid}), then all of its updates.",
            )

    def _refusal(self, problem: str, remedy: str) -> StateError:
        return StateError(state=self.name, problem=problem, remedy=remedy)


class NonTransactionalMap(_Map[_T, _T]):
    """Keeps the value only: a replay counts twice.

    :param backing: where the values are, such as a `MemoryMap`.
    :param name: for messages, and for the ledger; None: the name of the store, or of its class.
    """

    kind = StateKind.NON_TRANSACTIONAL

    def _seen(self, stored: _T | None, mine: bool) -> _T | None:
        return stored

    def _updated(
        self, key: Key, stored: _T | None, mine: bool, updater: ValueUpdater[_T]
    ) -> _T | None:
        return updater.update(copy.deepcopy(stored))


class TransactionalMap(_Map[TransactionalValue[_T], _T]):
    """Keeps the last txid with the value: exactly once if a replay brings the same updates in the same order.

    A removed key leaves a value of None, so that a replay knows of it.

    :param backing: where the values are, such as a `MemoryMap`.
    :param name: for messages, and for the ledger; None: the name of the store, or of its class.
    """

    kind = StateKind.TRANSACTIONAL
    _count: dict[Key, int]

    def begin_commit(self, txid: int | None, **grant: Any) -> None:
        super().begin_commit(txid, **grant)
        self._count = {}

    def _seen(self, stored: TransactionalValue[_T] | None, mine: bool) -> _T | None:
        return None if stored is None else stored.get(self._txid)

    def _updated(
        self, key: Key, stored: TransactionalValue[_T] | None, mine: bool, updater: ValueUpdater[_T]
    ) -> TransactionalValue[_T] | None:
        value = None if stored is None else stored.get(self._txid)
        if self._txid is None:
            # A replay of the last transaction still skips the key.
            after: Any = updater.update(copy.deepcopy(value))
            return (
                TransactionalValue(_BEFORE_ALL, after)
                if stored is None
                else replace(stored, value=after)
            )
        self._count[key] = number = self._count.get(key, 0) + 1
        if stored is not None and stored.txid == self._txid:
            self._writer.check(stored, state=self.name, key=key)
            if stored.updates is None or number <= stored.updates:
                return stored  # it is in already
        after = updater.update(copy.deepcopy(value))
        return TransactionalValue(self._txid, after, self._writer.token, self._writer.chunk, number)


class OpaqueMap(_Map[OpaqueValue[_T], _T]):
    """Keeps the last txid and the value before it, too: exactly once even if a replay brings other values.

    A removed key leaves a value of None, so that a replay can bring it back.

    :param backing: where the values are, such as a `MemoryMap`.
    :param name: for messages, and for the ledger; None: the name of the store, or of its class.
    """

    kind = StateKind.OPAQUE

    def _seen(self, stored: OpaqueValue[_T] | None, mine: bool) -> _T | None:
        if stored is None:
            return None
        before = stored.get(self._txid)
        return stored.value if mine else before

    def _updated(
        self, key: Key, stored: OpaqueValue[_T] | None, mine: bool, updater: ValueUpdater[_T]
    ) -> OpaqueValue[_T] | None:
        if self._txid is None:
            return self._updated_outside(stored, updater)
        if stored is not None:
            self._writer.check(stored, state=self.name, key=key)
        # A second update of a key within the batch sees the first.
        own = stored if mine else None
        value: Any = updated_value(
            self.kind,
            stored,
            self._writer,
            lambda base: updater.update(copy.deepcopy(own.value if own else base)),
        )
        return value  # type: ignore[no-any-return]

    def _updated_outside(
        self, stored: OpaqueValue[_T] | None, updater: ValueUpdater[_T]
    ) -> OpaqueValue[_T]:
        """Update the value before the last transaction, too: a replay of that one starts from it."""
        if stored is None:
            return OpaqueValue(_BEFORE_ALL, updater.update(None), None)
        value, prev = (updater.update(copy.deepcopy(each)) for each in (stored.value, stored.prev))
        return replace(stored, value=value, prev=prev)
