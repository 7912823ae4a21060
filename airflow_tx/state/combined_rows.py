"""Rows of which several may have one key, made one row a key, as a state takes them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from airflow_tx.errors import StateError
from airflow_tx.state.api import FencedState
from airflow_tx.state.columns import Columns
from airflow_tx.state.reducers import Reduced

_Row = Mapping[str, Any]


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

    A state without columns gets the rows unchanged.

    :raises StateError: a row without key, or with deltas that cannot be combined. The state itself checks the rest.
    """
    if state.columns is None:
        yield from map(dict, rows)
        return
    group = _Group(state)
    for number, row in enumerate(rows):
        group.add(number, row)
    yield from group.kept.values()


def combined_runs(rows: Iterable[_Row], state: Any) -> Iterator[dict[str, Any]]:
    """Combine rows that are sorted by their keys: only the rows of one key are held at once. Raises as `combined`."""
    keys = state.columns.keys
    for _, run in groupby(rows, lambda row: tuple(row[name] for name in keys)):
        yield from combined(run, state)


def combined_at_once(rows: Iterable[_Row], state: Any) -> dict[str, Any]:
    """Make the one row of a state without keys. A reducer goes through the rows, again and again, so none is held."""
    group = _Group(state, keep_rows=False)
    for number, row in enumerate(rows):
        group.add(number, row)
    return {**group.kept.get((), {}), **dict.fromkeys(reducers_of(state.columns), rows)}


class _Group:
    def __init__(self, state: Any, *, keep_rows: bool = True) -> None:
        self.kept: dict[tuple[Hashable, ...], dict[str, Any]] = {}
        self._state = state
        self._columns = state.columns
        self._keep_rows = keep_rows
        self._reducers = reducers_of(state.columns)
        self._combiners = {
            name: each for name, each in self._columns.values.items() if name not in self._reducers
        }

    def add(self, number: int, row: _Row) -> None:
        try:
            self._add(row)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise self._misfit(number, row, error) from None

    def _add(self, row: _Row) -> None:
        columns = self._columns
        key = tuple(row[name] for name in columns.keys)
        known = self.kept.get(key)
        deltas = columns.expanded(row)
        if known is None:
            names = (*columns.keys, *self._combiners)
            # Other columns are for the reducers. Without a reducer, the state refuses them.
            self.kept[key] = known = (
                {name: deltas[name] for name in names} if self._reducers else dict(deltas)
            )
            taken = list[_Row]()  # one will do for all of them
            known.update(dict.fromkeys(self._reducers, taken))
        else:
            for name, aggregator in self._combiners.items():
                known[name] = _both(aggregator, known[name], deltas[name])
        if self._reducers and self._keep_rows:
            known[self._reducers[0]].append(dict(row))

    def _misfit(self, number: int, row: Any, error: Exception) -> StateError:
        columns = [*self._columns.keys, *self._combiners]
        return StateError(
            state=self._state.name,
            problem=f"row {number} = {str(row)[:200]} cannot be used ({type(error).__name__}: {error})",
            remedy=f"Return rows as dicts with the columns {', '.join(columns)}.",
        )


def _both(aggregator: Any, a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else aggregator.combine(a, b)
