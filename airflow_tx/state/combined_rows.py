"""Rows of which several may have one key, made one row a key, as a state takes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from airflow_tx.errors import StateError
from airflow_tx.state.api import FencedState
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.columns import REFUSALS, Columns
from airflow_tx.state.reducers import Reduced

_Row = Mapping[str, Any]
_Key = tuple[Hashable, ...]
_ROWS_AT_ONCE = 10_000
_PLAIN = {int, str, float, bool, bytes, Decimal, dt.date}
"""Classes whose equal values are one key. Datetimes of one zone compare equal also an autumn hour apart."""


def has_reducers(state: FencedState) -> bool:
    """Whether one of the value columns of a state is a reducer: then it takes rows, several a key."""
    return bool(reducers_of(state.columns))


def reducers_of(columns: Columns | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    return tuple(
        name for name, aggregator in columns.values.items() if isinstance(aggregator, Reduced)
    )


def combined(rows: Iterable[_Row], state: FencedState) -> Iterator[dict[str, Any]]:
    """Combine the deltas of each key by the aggregators of the state; a reducer gets the list of the rows, in order.

    Values take the types of their columns first, and then they are added up. A state without columns gets the rows
    unchanged.

    :raises StateError: a row without key, or with deltas that do not fit or cannot be combined.
    """
    if state.columns is None:
        yield from map(dict, rows)
        return
    yield from _Group(state).add_all(rows).rows()


def combined_runs(rows: Iterable[_Row], state: Any) -> Iterator[dict[str, Any]]:
    """Combine rows that are sorted by their keys: only the rows of one key are held at once. Raises as `combined`."""
    keys = state.columns.keys
    for _, run in groupby(rows, lambda row: tuple(row[name] for name in keys)):
        yield from combined(run, state)


def combined_at_once(rows: Iterable[_Row], state: Any) -> dict[str, Any]:
    """Make the one row of a state without keys. A reducer goes through the rows, again and again, so none is held."""
    group = _Group(state, keep_rows=False).add_all(rows)
    return {**next(group.rows(), {}), **dict.fromkeys(reducers_of(state.columns), rows)}


class _Group:
    def __init__(self, state: Any, *, keep_rows: bool = True) -> None:
        self._state = state
        columns = state.columns
        self._keys: tuple[str, ...] = columns.keys
        self._reducers = reducers_of(columns)
        self._keeps_rows = bool(self._reducers) and keep_rows
        self._combiners = dict(columns.values)
        for name in self._reducers:
            del self._combiners[name]
        self._checked = CheckedRows(columns)
        self._kinds = {name: columns.types.get(name) for name in self._keys}
        for name, each in self._combiners.items():
            self._kinds[name] = each.type
        self._classes = {name: set[type]() for name, kind in self._kinds.items() if kind is None}
        self._key_types: Mapping[str, str] | None = None
        self._first: _Row = {}
        self._deltas = dict[_Key, list[Any]]()
        self._rows = dict[_Key, list[_Row]]()

    def add_all(self, rows: Iterable[_Row]) -> _Group:
        iterator = iter(rows)
        start = 0
        while portion := list(islice(iterator, _ROWS_AT_ONCE)):
            self._first = self._first or portion[0]
            self._add(portion, start)
            start += len(portion)
        return self

    def rows(self) -> Iterator[dict[str, Any]]:
        names = (*self._keys, *self._combiners)
        for key, deltas in self._deltas.items():
            row = dict(zip(names, (*key, *deltas), strict=True))
            if self._reducers:
                # Other columns are for the reducers: one list will do for all of them.
                row.update(dict.fromkeys(self._reducers, self._rows.get(key, [])))
            yield row

    def _add(self, portion: list[_Row], start: int) -> None:
        for name in self._classes:
            self._settle(name, portion)
        found = self._checked.converted_columns(
            portion, self._kinds, start, others=bool(self._reducers)
        )
        split = len(self._keys)
        nothing = [()] * len(portion)
        keys = list(zip(*found[:split], strict=True)) if split else nothing
        kept = self._deltas
        combiners = [each.combine for each in self._combiners.values()]
        deltas = zip(*found[split:], strict=True) if combiners else nothing
        for number, (key, new) in enumerate(zip(keys, deltas, strict=True), start):
            known = kept.get(key)
            if known is None:
                kept[key] = list(new)
                continue
            for at, delta in enumerate(new):
                if delta is None:
                    continue
                before = known[at]
                try:
                    known[at] = delta if before is None else combiners[at](before, delta)
                except REFUSALS as error:
                    raise self._misfit(number, portion[number - start], error) from None
        if self._keeps_rows:
            for key, row in zip(keys, portion, strict=True):
                self._rows.setdefault(key, []).append(dict(row))

    # --- keys whose type no one has declared ----

    def _settle(self, name: str, portion: Sequence[_Row]) -> None:
        """Choose the type for a key column, unless all of its values have one plain class."""
        if self._kinds[name] is not None:
            return
        try:
            values = map(itemgetter(name), portion)
            classes = set(map(type, values))
        except (KeyError, TypeError, IndexError):
            return  # refused when the columns are taken
        known = self._classes[name]
        known |= classes - {type(None)}
        if len(known) <= 1 and known <= _PLAIN:
            return
        if self._key_types is None:
            # Only now: it may cost a request.
            stored = getattr(self._state, "key_types", None)
            self._key_types = (stored and stored()) or self._types_of_first()
        # A key that was taken before, and does not fit, is the key that the state is given, and refuses.
        self._kinds[name] = self._key_types[name]

    def _types_of_first(self) -> Mapping[str, str]:
        own = {key: self._first[key] for key in self._keys}
        return self._checked.key_types({**dict.fromkeys(self._state.columns.values), **own})

    def _misfit(self, number: int, row: Any, error: Exception) -> StateError:
        columns = [*self._keys, *self._combiners]
        return StateError(
            state=self._state.name,
            problem=f"row {number} = {str(row)[:200]} cannot be used ({type(error).__name__}: {error})",
            remedy=f"Return rows as dicts with the columns {', '.join(columns)}.",
        )
