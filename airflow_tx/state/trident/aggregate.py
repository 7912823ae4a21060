"""A map, or one value, that aggregators update, as a commit sees it. Source: Trident's persistentAggregate."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import QueryableState, StateKind, StateWrite
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.columns import Cells, Columns, checked_columns
from airflow_tx.state.keys import as_key, wanted_keys
from airflow_tx.state.trident.roll_back import Same
from airflow_tx.state.trident.snapshot import GLOBAL
from airflow_tx.state.trident.state import TridentState, is_factory, is_map, is_snapshottable
from airflow_tx.state.trident.values import ValueUpdater

_OPTION = "persistent_aggregate"
_KEYS_AT_ONCE = 10_000


class TridentAggregate(TridentState, QueryableState):
    """Combines the rows of a transaction into the values of a map, by key; without key columns, into one value.

    Under a key is kept the value of the one value column, as in Trident; of several columns, a dict of them. NULL in
    the one column is no key.

    :param given: a map or, without key columns, a Snapshottable; or a factory of such.
    :param kind: what it promises; None: what it says itself, and without a word it is non-transactional.
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

        The first chunk begins the transaction. It replaces what was written of that transaction before.
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
        """Read the one value of a state without keys.

        :raises StateError: a map has no list of its keys.
        """
        if self.columns.keys:
            remedy = f"Name the keys: airflow tx state get TOPOLOGY {self.name} KEY ..."
            raise StateError(state=self.name, problem="a map cannot list its keys", remedy=remedy)
        return [row for row in self.multi_get([()]) if row is not None]

    def totals(self, names: Collection[str]) -> dict[str, int]:
        return {} if self.columns.keys else super().totals(names)

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        types = self.key_types()
        wanted = wanted_keys(self.columns, keys, types)
        if types is None:  # the map keeps none: the keys are taken unchanged
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
        """Name the type of each key column, once this process has written some; None before."""
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
        for columns in checked.portions(
            itertools.chain([first], iterator), types, size=_KEYS_AT_ONCE
        ):
            cells = list(zip(*columns, strict=True))
            keys = [row[:split] for row in cells]
            yield (
                [key or GLOBAL for key in keys],
                [_Combined(self.columns, row[:split], row[split:]) for row in cells],
            )


@dataclass(frozen=True)
class _Combined:
    """Combines a stored value with what the batch brings to its key."""

    columns: Columns
    key: Cells
    deltas: Cells

    def update(self, stored: Any) -> Any:
        before = None if stored is None else _cells(self.columns, self.key, stored)
        after = self.columns.combined(self.key, before, self.deltas)
        return after[0] if len(after) == 1 else dict(zip(self.columns.values, after, strict=True))


class _OneValue:
    """A Snapshottable as a map of one key. An update that changes nothing rolls it back: no key must be noted."""

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
    """Split the stored value of a key into the values of the columns; a StateError if something else is kept there."""
    names = tuple(columns.values)
    if len(names) == 1 and (
        not isinstance(stored, dict) or columns.values[names[0]].type == "json"
    ):
        return (stored,)
    if len(names) > 1 and isinstance(stored, dict) and set(stored) == set(names):
        return tuple(stored[name] for name in names)
    shown = dict(zip(columns.keys, key, strict=True))
    problem = f"key {shown} holds {str(stored)[:200]}, which is not a value of {', '.join(names)}"
    remedy = "Other columns need another store, such as another prefix; this one keeps the columns of an earlier DAG."
    raise StateError(state=columns.state, problem=problem, remedy=remedy)
