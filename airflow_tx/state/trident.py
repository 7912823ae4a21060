"""The adapter through which a commit uses a state with Trident's two methods, or a factory of such states.

Source: trident-state seed.

Such a state has no fence. The ledger keeps commits in order, and a map's values contain what a replay needs. But a late
write by a committer that was declared dead is not refused, and lost values in the store are not detected.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Any, TypeVar

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ConfigError, StateError, TxError
from airflow_tx.base.remedy import Command
from airflow_tx.state.aggregators import Aggregator, Cells, Columns, checked_columns
from airflow_tx.state.api import Fence, FencedState, Grant, QueryableState, StateKind, StateWrite
from airflow_tx.state.keys import Key, as_key, partition_of, wanted_keys
from airflow_tx.state.maps import (
    GLOBAL,
    MapState,
    SnapshottableMap,
    ValueUpdater,
    from_text,
    place_of,
    portable,
    to_text,
)
from airflow_tx.state.rows import CheckedRows

# --- roll back ----------------------------------------------------------------------------------------------------
# A map that can be rolled back, because it also records the keys that a transaction updates.
# Source: protocol.md §7.
#
# Trident's opaque values undo the update of a key when a replay updates the key again. A key that
# only the failed attempt updated would keep its value. The record lists all updated keys, so the
# replay undoes all updates.


_T = TypeVar("_T")
NOTE = "$KEYS$"
# Maximum number of keys in a record. Memcached accepts values up to 1 MiB. A key has up to 1 KiB,
# and a stored record includes the previous one.
_KEYS_A_NOTE = 200
_NOTES_AT_ONCE = 10


class Same:
    """An update that keeps the value. In an opaque map, it restores the value before the transaction."""

    def update(self, stored: Any) -> Any:
        return stored


class RollBackMap(SnapshottableMap[Any]):
    """Rolls back an opaque map when a transaction begins again: `RollBackMap(OpaqueMap(backing))`.

    Before an update, the map stores a list of the keys under a key of its own, with one additional put. `begin_commit`
    of the same txid restores the earlier value of each listed key.

    :param map_state: an opaque map. Its store must accept texts as values and, besides the user's keys, keys with two
        parts.
    :param index: number of the writer. Each writer has its own lists, because several writers may share a store.
    :param writers: the number of writers of the update.
    """

    can_roll_back = True

    def __init__(self, map_state: MapState[Any], index: int = 0, writers: int = 1) -> None:
        super().__init__(map_state)
        self._index = index
        self._writers = writers
        self._txid: int | None = None
        self._notes = 0
        self._is_open = False

    def begin_commit(self, txid: int | None, **grant: Any) -> None:
        if self._is_open:
            # The batch failed. The map shows its newest values only outside of a batch.
            super().begin_commit(None)
        touched = [] if txid is None else list(self._touched(txid))
        super().begin_commit(txid, **grant)
        self._txid = txid
        self._notes = 0
        self._is_open = True
        for keys in touched:
            super().multi_update(keys, [Same()] * len(keys))

    def commit(self, txid: int | None) -> None:
        super().commit(txid)
        self._is_open = False

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[Any]]
    ) -> list[Any]:
        self._note(keys)
        return super().multi_update(keys, updaters)

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[Any]) -> None:
        self._note(keys)
        super().multi_put(keys, values)

    def holds(self, txid: int) -> bool:
        """Return whether the map may contain values of a transaction."""
        return next(self._touched(txid), None) is not None

    def _note(self, keys: Sequence[Sequence[Any]]) -> None:
        if self._txid is None or not keys:
            return
        texts = [
            to_text(
                [self._txid, [as_key(key) for key in keys[start : start + _KEYS_A_NOTE]]]
            ).decode()
            for start in range(0, len(keys), _KEYS_A_NOTE)
        ]
        names = self._names(self._notes, len(texts))
        try:
            super().multi_put(names, texts)
        except TxError:
            raise
        except Exception as error:
            problem = f"its store refuses {names[0]}, the key of the list of keys that a transaction changes "
            remedy = "Nothing was written. Let the store accept this key, or declare that the map cannot roll back: "
            raise StateError(
                state=self.name,
                problem=f"{problem}({type(error).__name__}: {error})",
                remedy=f"{remedy}class MyMap(OpaqueMap): can_roll_back = False.",
            ) from error
        self._notes += len(texts)

    def _names(self, start: int, number: int) -> list[Key]:
        return [(NOTE, each * self._writers + self._index) for each in range(start, start + number)]

    def _touched(self, txid: int) -> Iterator[list[Key]]:
        """Yield the keys that the map has recorded for a transaction. Stop at a record of another transaction."""
        for start in count(0, _NOTES_AT_ONCE):
            for text in self._map.multi_get(self._names(start, _NOTES_AT_ONCE)):
                noted = None if text is None else from_text(text)
                if noted is None or noted[0] != txid:
                    return
                yield [as_key(key) for key in noted[1]]


# --- partitions ---------------------------------------------------------------------------------------------------
# One state for each parallel writer of an update. Each writer gets the rows of its partition.
# Source: Trident's partitionBy.


class PartitionedState:
    """The states that a factory has created, one for each partition.

    :param name: name of the update, for messages.
    :param parts: one state per partition.
    :param fields: the fields of a row that choose its partition.
    """

    def __init__(self, name: str, parts: Sequence[Any], fields: Sequence[str]) -> None:
        self._name = name
        self.parts = parts
        self._fields = fields

    def begin_commit(self, txid: int | None) -> None:
        for part in self.parts:
            part.begin_commit(txid)

    def commit(self, txid: int | None) -> None:
        for part in self.parts:
            part.commit(txid)

    def shared_out(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, list[int]]]:
        """Yield the state of each partition, with the numbers of the rows in the partition.

        The list of numbers may be empty.

        :raises StateError: a row lacks a field that chooses its partition.
        """
        numbers = [list[int]() for _ in self.parts]
        for number, row in enumerate(rows):
            numbers[partition_of(self._key(row), len(self.parts))].append(number)
        yield from zip(self.parts, numbers, strict=True)

    def _key(self, row: Mapping[str, Any]) -> list[Any]:
        try:
            return [row[name] for name in self._fields]
        except KeyError as error:
            problem = (
                f"row {str(dict(row))[:200]} has no field {error}, which determines its partition"
            )
            remedy = f"Add {', '.join(self._fields)} to each row, or name other fields: partition_by=[...]."
            raise StateError(state=self._name, problem=problem, remedy=remedy) from None


# --- state --------------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
_KINDS = ", ".join(f'"{kind.value}"' for kind in StateKind)


def is_factory(made: Any) -> bool:
    """Return whether an object creates states (Trident's StateFactory)."""
    return has_methods(made, "make_state")


def is_map(made: Any) -> bool:
    """Return whether an object stores values by key (Trident's MapState)."""
    return has_methods(made, "begin_commit", "commit", "multi_get", "multi_update", "multi_put")


def is_snapshottable(made: Any) -> bool:
    """Return whether an object stores one value (Trident's Snapshottable)."""
    return has_methods(made, "begin_commit", "commit", "get", "update", "set")


def has_methods(made: Any, *names: str) -> bool:
    """Return whether an object has methods of these names."""
    return all(callable(getattr(made, name, None)) for name in names)


def made_by(
    given: Any, conf: Mapping[str, Any] | None = None, index: int = 0, count: int = 1
) -> Any:
    """Return the state that a factory creates for one writer. Return any other object unchanged.

    :param conf: the configuration that the update passes to the factory.
    :param index: the partition of the writer, from 0 to `count` - 1.
    """
    return given.make_state(dict(conf or {}), index, count) if is_factory(given) else given


class TridentState(FencedState):
    """Begins, commits and undoes transactions in a state without a fence, whose class may be user-defined.

    Only TridentState reads the state's attributes.

    :param given: a state or a factory. The factory is called when the state is used, not when Airflow parses a DAG.
    :param kind: kind of the state; None for its attribute `kind`, or non-transactional without that attribute.
    :param option: name of the function that the state was passed to, for messages.
    :param rolls_back: whether an opaque state without an attribute `can_roll_back` can roll back; None if only maps
        can.
    :param conf: the argument of a factory. It is never shown.
    """

    has_fence = False

    def __init__(
        self,
        given: Any,
        kind: StateKind | str | None,
        *,
        option: str,
        rolls_back: bool | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.given = given
        self._conf = conf
        self.name = str(getattr(given, "name", type(given).__name__))
        self.kind = _kind(given, kind, option)
        self.normalize(kind=self.kind)
        opaque = self.kind is StateKind.OPAQUE
        default = (is_map(given) and opaque) if rolls_back is None else rolls_back and opaque
        self.can_roll_back = bool(getattr(given, "can_roll_back", default))

    @cached_property
    def state(self) -> Any:
        """Create the state on first use.

        :raises StateError: the factory returned no state, or a state of another kind.
        """
        return self._made()

    def _made(self, index: int = 0, count: int = 1) -> Any:
        made = made_by(self.given, self._conf, index, count)
        promised = self.kind in (StateKind.NON_TRANSACTIONAL, getattr(made, "kind", self.kind))
        if not has_methods(made, "begin_commit", "commit") or not promised:
            problem = f"{type(self.given).__name__}.make_state returned a {type(made).__name__}, which is not a state "
            problem += f"of kind {self.kind.value}"
            remedy = (
                "Return a state with begin_commit and commit, and give the factory the kind of that state, such "
                'as kind = "opaque".'
            )
            raise StateError(state=self.name, problem=problem, remedy=remedy)
        return self.prepared(made, index, count)

    def prepared(self, made: Any, index: int = 0, count: int = 1) -> Any:
        """Return the state as a commit uses it.

        An opaque map without an attribute `can_roll_back` is wrapped in a RollBackMap.
        """
        if self.can_roll_back and is_map(made) and not hasattr(made, "can_roll_back"):
            return RollBackMap(made, index, count)
        return made

    def dataset(self) -> Dataset | None:
        return place_of(self.given)

    def for_readers(self, *, local: bool) -> TridentState:
        copied = copy.copy(self)
        copied.given = portable(self.given)
        return copied

    def raise_fence(self, grant: Grant) -> None:
        """Warn that the state has no fence, before its first commit."""
        if grant.last_txids.get(self.name) is None:
            _log.warning(
                "State %s has no fence: commits to it are in order, and a replay is exact for its kind (%s). But "
                "a late write of a committer that was declared dead is not refused. Lost values of the store are not "
                "noticed (docs/state.md, States without a fence).",
                self.name,
                self.kind.value,
            )

    def pass_over(self, grant: Grant) -> None:
        """Undo a skipped transaction in a state that can roll back, by beginning it again without rows.

        :raises StateError: the undo failed. The transaction stays open, and you can repeat the skip.
        """
        if not self.can_roll_back:
            return
        try:
            self.state.begin_commit(grant.txid)
            self.state.commit(grant.txid)
        except Exception as error:
            problem = f"it did not undo transaction {grant.txid}: {type(error).__name__}: {error}"
            remedy = "The transaction stays open. Remove the cause and repeat the skip."
            raise StateError(state=self.name, problem=problem, remedy=remedy) from error

    def holds(self, txid: int) -> bool | None:
        state = self.state
        parts = state.parts if isinstance(state, PartitionedState) else [state]
        answers = [bool(part.holds(txid)) if has_methods(part, "holds") else None for part in parts]
        return True if True in answers else None if None in answers else False

    def fence(self) -> Fence | None:
        return None


def _kind(given: Any, kind: StateKind | str | None, option: str) -> StateKind:
    own = getattr(given, "kind", None)
    found = own if kind is None else kind
    if found is None:
        return StateKind.NON_TRANSACTIONAL
    if found not in list(StateKind):
        raise ConfigError(option=f"{option}(kind=)", value=found, remedy=f"Use one of {_KINDS}.")
    if own is not None and own != found:
        remedy = f"{type(given).__name__} is {StateKind(own).value}: leave kind= out, or pass another state."
        raise ConfigError(option=f"{option}(kind=)", value=found, remedy=remedy)
    return StateKind(found)


# --- aggregate ----------------------------------------------------------------------------------------------------
# The adapter through which a commit uses a map or a single value that aggregators update. Source:
# Trident's persistentAggregate.


_OPTION = "persistent_aggregate"
_KEYS_AT_ONCE = 10_000


class TridentAggregate(TridentState, QueryableState):
    """Combines the rows of a transaction into the values of a map by key.

    Without key columns, it combines them into one value.

    With one value column, the map stores its value under the key, as in Trident. With several, it stores a dict of
    their values. If the single value is NULL, its key is removed.

    :param given: a map, or a factory of maps. Without key columns, it may also be a Snapshottable or a factory of
        Snapshottables.
    :param kind: kind of the state; None for its attribute `kind`, or non-transactional without that attribute.
    """

    left_out = ("given",)

    def __init__(
        self,
        given: Any,
        *,
        keys: Iterable[str],
        values: Mapping[str, Aggregator],
        kind: StateKind | str | None = None,
    ) -> None:
        super().__init__(given, kind, option=_OPTION, rolls_back=True)
        self.columns = checked_columns(self, keys, values, option=_OPTION)
        self._found_types: dict[str, str] | None = None
        if not is_factory(given) and self.columns.keys and not is_map(given):
            remedy = f"{type(given).__name__} keeps one value, without keys: keys=[]."
            raise ConfigError(
                option=f"{_OPTION}(keys=)", value=list(self.columns.keys), remedy=remedy
            )

    def _told(self, also: tuple[str, ...]) -> dict[str, Any]:
        made_of = {"name": self.name, "state": type(self.given).__name__}
        return {**made_of, **super()._told(also)}

    def prepared(self, made: Any, index: int = 0, count: int = 1) -> Any:
        if not self.columns.keys and is_snapshottable(made):
            return _OneValue(
                made, rolls_back=self.can_roll_back and not hasattr(made, "can_roll_back")
            )
        if is_map(made):
            return super().prepared(made)
        problem = f"a {type(made).__name__} keeps no values by key: it has no multi_get, multi_update and multi_put"
        remedy = "Use a map, such as OpaqueMap over a backing map of your own, or partition_persist(..., updater=)."
        raise StateError(state=self.name, problem=problem, remedy=remedy)

    def _written(self, write: StateWrite) -> int:
        """Update the values of all keys, 10,000 at a time, between `begin_commit` and `commit`.

        The first chunk begins the transaction. Beginning it again undoes its earlier writes, if the kind of the state
        allows this.
        """
        if write.chunk == 0:
            self.state.begin_commit(write.grant.txid)
        written = 0
        for keys, updaters in self._updates(write.rows or ()):
            self.state.multi_update(keys, updaters)
            written += len(keys)
        if write.complete:
            self.state.commit(write.grant.txid)
        return written

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Read the only value of a state without keys.

        :raises StateError: the state has keys, and a map cannot list its keys.
        """
        if self.columns.keys:
            remedy = "Name the keys: " + Command.of(
                "state get", "TOPOLOGY", self.name, "KEY", "..."
            )
            raise StateError(state=self.name, problem="a map cannot list its keys", remedy=remedy)
        return [row for row in self.multi_get([()]) if row is not None]

    def totals(self, names: Collection[str]) -> dict[str, int]:
        return {} if self.columns.keys else super().totals(names)

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        types = self.key_types()
        wanted = wanted_keys(self.columns, keys, types)
        if types is None:  # the map does not store types, so the keys stay unchanged
            wanted = [
                (number, key) for number, key in enumerate(map(as_key, keys)) if None not in key
            ]
        result = list[dict[str, Any] | None]([None] * len(keys))
        found = self.state.multi_get([key or GLOBAL for _, key in wanted]) if wanted else []
        for (number, key), value in zip(wanted, found, strict=True):
            if value is not None:
                cells = _cells(self.columns, key, value)
                result[number] = self.columns.completed(
                    dict(zip(self.columns.values, cells, strict=True))
                )
        return result

    def key_types(self) -> dict[str, str] | None:
        """Return the type of each key column, or None if this process has not written rows yet."""
        return self._found_types if self.columns.keys else {}

    def _updates(
        self, rows: Iterable[Mapping[str, Any]]
    ) -> Iterator[tuple[list[Any], list[ValueUpdater[Any]]]]:
        iterator = iter(rows)
        checked = CheckedRows(self.columns)
        first = next(iterator, None)
        if first is None:
            return
        self._found_types = types = self._found_types or checked.key_types(first)
        split = len(self.columns.keys)
        for columns in checked.portions(chain([first], iterator), types, size=_KEYS_AT_ONCE):
            cells = list(zip(*columns, strict=True))
            keys = [row[:split] for row in cells]
            yield (
                [key or GLOBAL for key in keys],
                [_Combined(self.columns, row[:split], row[split:]) for row in cells],
            )


@dataclass(frozen=True)
class _Combined:
    """Combines a key's stored value with the batch's delta for this key."""

    columns: Columns
    key: Cells
    deltas: Cells

    def update(self, stored: Any) -> Any:
        before = None if stored is None else _cells(self.columns, self.key, stored)
        after = self.columns.combined(self.key, before, self.deltas)
        return after[0] if len(after) == 1 else dict(zip(self.columns.values, after, strict=True))


class _OneValue:
    """Wraps a Snapshottable as a map with one key.

    To roll back, it makes an update that changes nothing, so it does not need to record keys.
    """

    def __init__(self, state: Any, *, rolls_back: bool) -> None:
        self._state = state
        self._rolls_back = rolls_back

    def begin_commit(self, txid: int | None) -> None:
        self._state.begin_commit(txid)
        if self._rolls_back:
            self._state.update(Same())

    def commit(self, txid: int | None) -> None:
        self._state.commit(txid)

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [self._state.get() for _ in keys]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        return [self._state.update(updater) for updater in updaters]


def _cells(columns: Columns, key: Cells, stored: Any) -> Cells:
    """Split a key's stored value into column values. Raise StateError if it has other columns."""
    names = tuple(columns.values)
    if len(names) == 1 and (
        not isinstance(stored, dict) or columns.values[names[0]].type == "json"
    ):
        return (stored,)
    if len(names) > 1 and isinstance(stored, dict) and set(stored) == set(names):
        return tuple(stored[name] for name in names)
    shown = dict(zip(columns.keys, key, strict=True))
    problem = f"key {shown} holds {str(stored)[:200]}, which is not a value of {', '.join(names)}"
    remedy = (
        "The store has the columns of an earlier DAG. Use another store, such as another prefix."
    )
    raise StateError(state=columns.state, problem=problem, remedy=remedy)
