"""Trident's maps over any store of values. They update values so that the rows of a replay do not count twice.

    counts = OpaqueMap(CachedMap(MemoryMap()))
    counts.begin_commit(3)
    counts.multi_update([("man",), ("dog",)], [CombinerValueUpdater(Count(), 2), CombinerValueUpdater(Count(), 1)])
    counts.commit(3)

They give the same guarantee as Trident: each update counts exactly once if writers take turns. Two gaps remain. A
writer that was declared dead can still overwrite a value. A key that only a failed attempt updated keeps the value of
that attempt. The fenced states of this package (SqlState …) close both gaps. Source: trident-state seed, protocol.md
§7.
"""

from __future__ import annotations

import base64
import copy
import datetime as dt
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ChunkConflict, ConfigError, StateError, TxidBehind
from airflow_tx.ledger import Token
from airflow_tx.state.aggregators import CombinerAggregator, ReducerAggregator, as_delta
from airflow_tx.state.api import State, StateKind
from airflow_tx.state.column_types import json_text
from airflow_tx.state.keys import Key, as_key, canonical_number

# --- values -------------------------------------------------------------------------------------------------------
# Stored values and their updaters. A stored value records its last transaction, so that the rows of
# a replay do not count twice.
#
# Source: trident-state seed (OpaqueValue, ValueUpdater, persistentAggregate).


_T = TypeVar("_T")


@dataclass(frozen=True)
class Writer:
    """The writer of a value.

    :param txid: the transaction.
    :param token: the grant; None if the state has no fence.
    :param chunk: number of the writer within that grant.
    """

    txid: int
    token: Token | None = None
    chunk: int | None = None

    def check(self, stored: StoredValue[Any], *, state: str, key: Any) -> None:
        """Refuse to overwrite a value.

        :raises TxidBehind: a later transaction has written it.
        :raises ChunkConflict: another writer of the same grant has written it.
        """
        _refuse_earlier(stored.txid, self.txid)
        mine = self.token is not None and stored.token == self.token and stored.txid == self.txid
        if mine and stored.chunk != self.chunk:
            raise ChunkConflict(
                state=state, key=key, found=stored.chunk, chunk=self.chunk, txid=self.txid
            )


def _refuse_earlier(stored: int, txid: int | None) -> None:
    if txid is not None and txid < stored:
        raise TxidBehind(txid=txid, stored=stored)


@dataclass(frozen=True)
class TransactionalValue(Generic[_T]):
    """A value and the last transaction in it (Trident's TransactionalValue). It is exact if a replay has the same rows.

    An update by an earlier transaction raises TxidBehind.

    :param txid: the last transaction in the value.
    :param value: the value after that transaction; None if the key was removed.
    :param token: the grant that wrote the value; None outside of a fenced state.
    :param chunk: number of the writer within that grant.
    :param updates: number of updates of `txid` in the value; None for all of its updates. A batch may update a key
        several times, and may be interrupted between these updates.
    """

    txid: int
    value: _T
    token: Token | None = None
    chunk: int | None = None
    updates: int | None = field(default=None, compare=False)

    def get(self, txid: int | None) -> _T:
        """Return the value before an update by `txid`. A value with the same txid already contains the update."""
        _refuse_earlier(self.txid, txid)
        return self.value

    def update(
        self, txid: int, value: _T, token: Token | None = None, chunk: int | None = None
    ) -> TransactionalValue[_T]:
        """Return the value to store after `txid`: `value`, or the stored value if it already contains this update."""
        _refuse_earlier(self.txid, txid)
        # Record the writer even if the value stays the same, so that a replay also detects that two
        # chunks have the same key.
        return TransactionalValue(txid, self.value if txid == self.txid else value, token, chunk)

    def updated(self, writer: Writer, combine: Callable[[_T | None], _T]) -> TransactionalValue[_T]:
        """Update the value, unless it already contains the transaction of `writer`."""
        value = self.value if writer.txid == self.txid else combine(self.value)
        return self.update(writer.txid, value, writer.token, writer.chunk)

    def undone(self, writer: Writer) -> TransactionalValue[_T]:
        """Return this object unchanged, because it does not store the previous value."""
        return self


@dataclass(frozen=True)
class OpaqueValue(Generic[_T]):
    """A value, the last transaction in it, and the value before that transaction (Trident's OpaqueValue).

    It is exact even if a replay has different rows.

    :param txid: the last transaction in the value.
    :param value: the value after that transaction; None if the key was removed.
    :param prev: the value before `txid`; None if there was no value.
    :param token: the grant that wrote the value; None outside of a fenced state.
    :param chunk: number of the writer within that grant.
    """

    txid: int
    value: _T | None
    prev: _T | None
    token: Token | None = None
    chunk: int | None = None

    def get(self, txid: int | None) -> _T | None:
        """Return the value from which an update by `txid` starts.

        Return `prev` if `txid` was the last transaction, and `value` otherwise.

        :param txid: None for the newest value.
        """
        _refuse_earlier(self.txid, txid)
        return self.prev if txid == self.txid else self.value

    def update(
        self, txid: int, value: _T | None, token: Token | None = None, chunk: int | None = None
    ) -> OpaqueValue[_T]:
        """Return the value to store after `txid`. The caller has computed `value` from `get(txid)`."""
        return OpaqueValue(txid, value, self.get(txid), token, chunk)

    def updated(self, writer: Writer, combine: Callable[[_T | None], _T]) -> OpaqueValue[_T]:
        """Update the value that was current before the transaction of `writer`."""
        return self.update(writer.txid, combine(self.get(writer.txid)), writer.token, writer.chunk)

    def undone(self, writer: Writer) -> OpaqueValue[_T]:
        """Undo the write of another grant of the same transaction as `writer`."""
        outranked = self.txid == writer.txid and self.token != writer.token
        return self.rolled_back() if outranked else self

    def rolled_back(self) -> OpaqueValue[_T]:
        """Undo the last transaction.

        A second call changes nothing. The value None means that the key does not exist. The result keeps the txid but
        not the grant, so any writer of this transaction may write next.
        """
        return replace(self, value=self.prev, token=None)


StoredValue: TypeAlias = TransactionalValue[_T] | OpaqueValue[_T]


def updated_value(
    kind: StateKind,
    stored: StoredValue[_T] | None,
    writer: Writer,
    combine: Callable[[_T | None], _T],
) -> StoredValue[_T]:
    """Check that `writer` may write to a key, and return the value to store.

    :param stored: the stored value; None if there is no such key.
    :param combine: computes the new value from the value before the update. For a new key, that value is None.
    """
    if stored is not None:
        return stored.updated(writer, combine)
    if kind is StateKind.OPAQUE:
        return OpaqueValue(writer.txid, combine(None), None, writer.token, writer.chunk)
    return TransactionalValue(writer.txid, combine(None), writer.token, writer.chunk)


class ValueUpdater(Protocol[_T]):
    """Computes a new value from the stored value."""

    def update(self, stored: _T | None) -> _T | None:
        """Return the new value. None removes the key.

        :param stored: the stored value, which you may change and return; None if there is no such key.
        """


class CombinerValueUpdater(Generic[_T]):
    """Combines the stored value with a delta, which an aggregator has computed from the batch.

    :param aggregator: the aggregator, such as `Sum()`.
    :param delta: the delta; NULL changes nothing.
    """

    def __init__(self, aggregator: CombinerAggregator, delta: _T | None) -> None:
        self._aggregator = aggregator
        self._delta: _T | None = as_delta(aggregator, delta)

    def update(self, stored: _T | None) -> _T | None:
        if stored is None or self._delta is None:
            return self._delta if stored is None else stored
        combined: _T | None = self._aggregator.combine(stored, self._delta)
        return combined


class ReducerValueUpdater(Generic[_T]):
    """Reduces a key's rows into its value, row by row, with a ReducerAggregator.

    :param aggregator: an object with `init()` and `reduce(current, row)`.
    :param rows: the rows of the key, in their order in the batch.
    """

    def __init__(self, aggregator: ReducerAggregator[_T], rows: Iterable[Any]) -> None:
        self._aggregator = aggregator
        self._rows = list(rows)

    def update(self, stored: _T | None) -> _T | None:
        value = self._aggregator.init() if stored is None else stored
        for row in self._rows:
            value = self._aggregator.reduce(value, row)
        return value


class Replace(Generic[_T]):
    """Replaces the stored value.

    :param value: the new value; None removes the key.
    """

    def __init__(self, value: _T | None) -> None:
        self._value = value

    def update(self, stored: _T | None) -> _T | None:
        return self._value


# --- json values --------------------------------------------------------------------------------------------------
# Convert keys and values of Trident's maps to exact, readable JSON text, for Redis and Memcached.
#
# Plain JSON stays unchanged. Any other value becomes an object with one field, and the field name
# begins with "$".


def to_text(value: Any) -> bytes:
    """Return a value as JSON. Raise TypeError or ValueError if JSON cannot represent it."""
    return json_text(_plain(value)).encode()


def from_text(data: bytes) -> Any:
    """Read a text from `to_text`. Raise ValueError for any other text."""
    try:
        return _value(json.loads(data))
    except (LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def from_trident(data: bytes | str, kind: str, *, committed: int) -> Any:
    """Read a value that a Trident map in Storm has stored with the JSON serializer of its kind.

        counts = OpaqueMap(RedisMap("redis_default", prefix="counts"))
        counts.multi_put([("man",)], [from_trident(b"[7,5,3]", "opaque", committed=7)])

    :param data: the output of JSONOpaqueSerializer, JSONTransactionalSerializer or JSONNonTransactionalSerializer.
    :param kind: kind of the map: "opaque", "transactional" or "non-transactional".
    :param committed: the last txid that Storm has committed. If an opaque value contains a later transaction, this
        transaction is undone.
    :return: the value after transaction `committed`; None if there was no value.
    :raises StateError: the data is not such a value, or a value that is not opaque contains a later transaction.
    """
    problem = f"{str(data)[:80]} is not a value of a {kind} map of Trident"
    remedy = "Give the value as Trident's JSON serializer wrote it, and the kind of the map."
    try:
        found = json.loads(data)
        if kind == StateKind.NON_TRANSACTIONAL:
            return found
        txid, value, *prev = found
        if len(prev) == (kind == StateKind.OPAQUE) and type(txid) is int:
            if txid <= committed:
                return value
            if prev:
                return prev[0]
            problem = f"{str(data)[:80]} is of transaction {txid}, but Storm has committed only {committed}"
            remedy = "Let Storm commit what it has begun: deactivate the topology and wait. Then read again."
    except (TypeError, ValueError):
        pass
    raise StateError(state="Trident", problem=problem, remedy=remedy)


def key_text(key: tuple[Any, ...]) -> str:
    """Return a key as text.

    Different keys have different texts, and equal numbers of one type have the same text. Raises the same errors as
    `to_text`.
    """
    return json_text([_plain(_key_part(part)) for part in key])


@dataclass(frozen=True)
class MapTexts:
    """Converts the keys and values of one map to text and back.

    It raises a StateError that names the map if JSON cannot represent a value, or if a stored text is not from a map.
    """

    state: str

    def key(self, key: tuple[Any, ...]) -> str:
        try:
            return key_text(key)
        except (TypeError, ValueError) as error:
            raise self._refused(f"key {key!r}: {error}") from None

    def text(self, name: str, value: Any) -> bytes:
        """Return the value as JSON. `name` is its key in the store, for messages."""
        try:
            return to_text(value)
        except (TypeError, ValueError) as error:
            raise self._refused(f"the value of {name}: {error}") from None

    def value(self, name: str, data: bytes) -> Any:
        try:
            return from_text(data)
        except ValueError:
            raise self._refused(f"the value under {name} was not written by a map") from None

    def _refused(self, problem: str) -> StateError:
        return StateError(
            state=self.state, problem=problem, remedy="Use other keys or values, or another prefix."
        )


def _key_part(part: Any) -> Any:
    if isinstance(part, float):
        return part + 0.0  # -0.0 and 0.0 have the same text
    return canonical_number(part) if isinstance(part, Decimal) and part.is_finite() else part


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not finite")
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return _plain_dict(value)
    for kind, name, write in _WRITE:
        if isinstance(value, kind):
            return {name: write(value)}
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _plain_dict(value: dict[Any, Any]) -> Any:
    if all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: _plain(item) for name, item in value.items()}
    return {"$dict": [[_plain(name), _plain(item)] for name, item in value.items()]}


def _plain_token(token: Token | None) -> Any:
    return None if token is None else [*token.rank, token.nonce, token.birth]


def _token(plain: Any) -> Token | None:
    return None if plain is None else Token(*plain)


def _opaque(value: OpaqueValue[Any]) -> Any:
    return [
        value.txid,
        _plain(value.value),
        _plain(value.prev),
        _plain_token(value.token),
        value.chunk,
    ]


def _transactional(value: TransactionalValue[Any]) -> Any:
    return [value.txid, _plain(value.value), _plain_token(value.token), value.chunk, value.updates]


# Check in this order, because every datetime is also a date.
_WRITE: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (OpaqueValue, "$opaque", _opaque),
    (TransactionalValue, "$transactional", _transactional),
    (Decimal, "$numeric", str),
    (dt.datetime, "$timestamp", lambda value: value.isoformat()),
    (dt.date, "$date", lambda value: value.isoformat()),
    (bytes, "$bytes", lambda value: base64.b64encode(value).decode()),
    (tuple, "$tuple", lambda value: [_plain(item) for item in value]),
)
_READ: Mapping[str, Callable[[Any], Any]] = {
    "$opaque": lambda p: OpaqueValue(p[0], _value(p[1]), _value(p[2]), _token(p[3]), p[4]),
    "$transactional": lambda p: TransactionalValue(p[0], _value(p[1]), _token(p[2]), p[3], p[4]),
    "$numeric": Decimal,
    "$timestamp": dt.datetime.fromisoformat,
    "$date": dt.date.fromisoformat,
    "$bytes": base64.b64decode,
    "$tuple": lambda plain: tuple(map(_value, plain)),
    "$dict": lambda plain: {_value(name): _value(item) for name, item in plain},
}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(item) for item in plain]
    if isinstance(plain, dict):
        ((name, inner), *more) = plain.items() if plain else [("", None)]
        if name.startswith("$") and not more:
            return _READ[name](inner)
        return {name: _value(item) for name, item in plain.items()}
    return plain


# --- portable -----------------------------------------------------------------------------------------------------
# Copy maps and factories for processes without Airflow. The copies contain the addresses of their
# stores.


def portable(made: Any, *parts: str) -> Any:
    """Copy a map or factory for Spark executors, including its address. Return any other object unchanged.

    :param parts: names of the attributes that contain other maps.
    """
    if not parts:
        return made.for_executors() if callable(getattr(made, "for_executors", None)) else made
    copied = copy.copy(made)
    for name in parts:
        setattr(copied, name, portable(getattr(made, name)))
    return copied


# --- maps ---------------------------------------------------------------------------------------------------------


_V = TypeVar("_V")
# The txid of a value that was written outside of a transaction. It is lower than every real txid.
_BEFORE_ALL = 0


class BackingMap(Protocol[_V]):
    """A key-value store. It stores the value of a key either completely or not at all."""

    def multi_get(self, keys: Sequence[Key]) -> Sequence[_V | None]:
        """Return the value of each key, in the order of the keys. A key without a value gets None."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[_V]) -> None:
        """Store the value of each key.

        Each key occurs once. None removes the key. Only a NonTransactionalMap passes None.

        :raises Exception: some of the values may be stored.
        """


class MapState(State, Protocol[_T]):
    """A state that stores values by key."""

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[_T | None]:
        """Return the value from which the transaction starts, for each key. A key without a value gets None."""

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[_T]]
    ) -> list[_T | None]:
        """Update the value of each key, and return the new values.

        If a key occurs twice, its second update starts from the result of the first update.
        """

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[_T | None]) -> None:
        """Replace the value of each key. None removes the key."""


def store_name(backing: Any) -> str:
    """Return the name of a backing map, or its class name if it has no name."""
    return str(getattr(backing, "name", type(backing).__name__))


def place_of(made: Any) -> Dataset | None:
    """Call the `dataset` method of a map, a factory or a state. Return None if there is no such method."""
    found = made.dataset() if callable(getattr(made, "dataset", None)) else None
    return found if isinstance(found, Dataset) else None


class _Map(Generic[_V, _T]):
    """The base class of the maps. An update needs one get and one put. Values written by the open batch are cached.

    :param backing: store of the values.
    :param name: name for messages and the ledger; None for the name of the store, or of its class.
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

    def dataset(self) -> Dataset | None:
        return place_of(self._backing)

    def begin_commit(
        self,
        txid: int | None,
        *,
        token: Token | None = None,
        chunk: int | None = None,
        found: Token | None = None,
    ) -> None:
        """Begin the updates of `txid`. A second call for the same txid begins a replay.

        :param txid: None for updates outside of transactions, which replays do not undo or repeat.
        :param token: token of the grant, in a state with a fence.
        :param chunk: number of the writer within the grant.
        :param found: the token in the fence before `token` raised it. With it, a cache can outlive its batch.
        """
        self._txid = txid
        self._writer = Writer(txid or _BEFORE_ALL, token, chunk)
        self._mine = {}
        self._failed = False
        if hasattr(self._backing, "begin_commit"):
            self._backing.begin_commit(txid, token=token, found=found)

    def commit(self, txid: int | None) -> None:
        """End the updates of `txid`. Raise StateError if one of them failed, or if another transaction is open."""
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
        """Read the values that the current transaction sees, or the newest values outside of a transaction."""
        normal = [as_key(key) for key in keys]
        stored = self._stored(normal)
        return [copy.deepcopy(self._seen(stored[key], key in self._mine)) for key in normal]

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[_T]]
    ) -> list[_T | None]:
        """Update the values of all keys with one get and one put. Return the new values.

        :raises TxidBehind: a later transaction has written one of the keys. Nothing was put.
        :raises StateError: an earlier update of the batch failed, so begin the batch again.
        """
        if len(keys) != len(updaters):
            raise ValueError(f"{len(keys)} keys, but {len(updaters)} values or updaters")
        self._check_whole()
        normal = [as_key(key) for key in keys]
        stored = self._stored(normal)
        changed = dict[Key, Any]()
        results = list[_T | None]()
        # After an interrupted update the values of the store are unknown, so the batch must be
        # replayed.
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
        """Return a copy of the map for a process without Airflow."""
        return portable(self, "_backing")

    def _seen(self, stored: _V | None, mine: bool) -> _T | None:
        raise NotImplementedError

    def _updated(
        self, key: Key, stored: _V | None, mine: bool, updater: ValueUpdater[_T]
    ) -> _V | None:
        """Return the value to store, or the object `stored` itself if nothing must be stored."""
        raise NotImplementedError

    def _stored(self, keys: Sequence[Key]) -> dict[Key, _V | None]:
        missing = [key for key in dict.fromkeys(keys) if key not in self._mine]
        found = list(self._backing.multi_get(missing)) if missing else []
        if len(found) != len(missing):
            raise self._refusal(
                f"multi_get of {len(missing)} keys gave {len(found)} values",
                f"{type(self._backing).__name__} must return one value for each key, None for a key without a value.",
            )
        stored = dict(zip(missing, found, strict=True))
        return {key: self._mine[key] if key in self._mine else stored[key] for key in keys}

    def _check_whole(self) -> None:
        if self._failed and self._txid is not None:
            raise self._refusal(
                f"an update of transaction {self._txid} failed, and may or may not have been stored",
                f"Replay the batch: begin_commit({self._txid}), then all of its updates.",
            )

    def _refusal(self, problem: str, remedy: str) -> StateError:
        return StateError(state=self.name, problem=problem, remedy=remedy)


class NonTransactionalMap(_Map[_T, _T]):
    """Stores only the values, so a replay counts its rows again.

    :param backing: store of the values, such as a `MemoryMap`.
    :param name: name for messages and the ledger; None for the name of the store, or of its class.
    """

    kind = StateKind.NON_TRANSACTIONAL

    def _seen(self, stored: _T | None, mine: bool) -> _T | None:
        return stored

    def _updated(
        self, key: Key, stored: _T | None, mine: bool, updater: ValueUpdater[_T]
    ) -> _T | None:
        return updater.update(copy.deepcopy(stored))


class TransactionalMap(_Map[TransactionalValue[_T], _T]):
    """Stores each value with its last txid. Updates count exactly once if a replay repeats them in the same order.

    A removed key is stored as None, so that a replay finds the removal.

    :param backing: store of the values, such as a `MemoryMap`.
    :param name: name for messages and the ledger; None for the name of the store, or of its class.
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
                return stored  # the stored value already has this update
        after = updater.update(copy.deepcopy(value))
        return TransactionalValue(self._txid, after, self._writer.token, self._writer.chunk, number)


class OpaqueMap(_Map[OpaqueValue[_T], _T]):
    """Stores each value with its last txid and the value before that transaction.

    Updates count exactly once even if a replay has different rows.

    A removed key is stored as None, so that a replay can restore the key.

    :param backing: store of the values, such as a `MemoryMap`.
    :param name: name for messages and the ledger; None for the name of the store, or of its class.
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
        # A second update of a key within the batch starts from the result of the first.
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
        """Update the newest value and the previous value, from which a replay starts."""
        if stored is None:
            return OpaqueValue(_BEFORE_ALL, updater.update(None), None)
        value, prev = (updater.update(copy.deepcopy(each)) for each in (stored.value, stored.prev))
        return replace(stored, value=value, prev=prev)


# --- snapshot -----------------------------------------------------------------------------------------------------
# A single-value state, for an aggregation without keys. Source: trident-state seed (Snapshottable).


GLOBAL = ("$GLOBAL$",)


class Snapshottable(State, Protocol[_T]):
    """A state that stores a single value."""

    def get(self) -> _T | None:
        """Read the value from which the current transaction starts. Return None if there is no value."""

    def update(self, updater: ValueUpdater[_T]) -> _T | None:
        """Update the value, and return the new value."""

    def set(self, value: _T | None) -> None:
        """Replace the value. None removes it."""


class SnapshottableMap(Generic[_T]):
    """A single-value state that stores its value in a map, under a fixed key. It also has the methods of a map.

    :param map_state: the map.
    :param key: the fixed key.
    """

    def __init__(self, map_state: MapState[_T], key: Sequence[Any] = GLOBAL) -> None:
        self.name = store_name(map_state)
        # A user-defined map may have no `kind`.
        self.kind = StateKind(getattr(map_state, "kind", StateKind.NON_TRANSACTIONAL))
        self._map = map_state
        self._key = tuple(key)

    def __repr__(self) -> str:
        return f"SnapshottableMap({self._map!r}, {self._key!r})"

    def dataset(self) -> Dataset | None:
        return place_of(self._map)

    def begin_commit(self, txid: int | None, **grant: Any) -> None:
        self._map.begin_commit(txid, **grant)

    def commit(self, txid: int | None) -> None:
        self._map.commit(txid)

    def for_executors(self) -> Any:
        """Return a copy of the state for a process without Airflow."""
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


# --- cached -------------------------------------------------------------------------------------------------------
# A cache whose values are never older than the stored values. Source: trident-state seed
# (CachedMap), protocol.md §7.


class CachedMap(Generic[_V]):
    """Caches the most recently used values between a map and its store: `OpaqueMap(CachedMap(backing))`.

    The cache works only inside a batch. A new batch empties it, unless the fence proves that no other writer has
    written since this cache's last batch. See `begin_commit`.

    :param backing: store of the values.
    :param size: maximum number of keys. The least recently used key is evicted first.
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

    def dataset(self) -> Dataset | None:
        return place_of(self._backing)

    def begin_commit(
        self, txid: int | None, *, token: Token | None = None, found: Token | None = None
    ) -> None:
        """Begin a batch. Keep the cached values only if no other writer can have changed the stored values.

        :param token: token of the grant.
        :param found: the token in the fence before `token` raised it. If it is the token of the last batch that this
            object completed, no other writer has written since then. If the batch is a replay, the earlier writes have
            been undone, so the cache is emptied.
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
        """Return a copy of the cache for a process without Airflow."""
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
