"""Aggregators that take the rows themselves, as value columns: what a batch brings to a key are its rows, in order;
and rows of which several may have one key, made one row a key. Source: trident-state seed (persistentAggregate).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

from airflow_tx.errors import StateError

if TYPE_CHECKING:
    from airflow_tx.state.api import FencedState
    from airflow_tx.state.columns import Columns

_T = TypeVar("_T")
_Row = Mapping[str, Any]


class ReducerAggregator(Protocol[_T]):
    """Trident's ReducerAggregator: it takes the rows themselves, one after another."""

    def init(self) -> _T:
        """Make the value of no rows at all."""

    def reduce(self, current: _T, row: Any) -> _T:
        """Compute the value after one more row.

        :param current: yours: you may change it and return it.
        """


class StoredReducer(ReducerAggregator[_T], Protocol[_T]):
    """A ReducerAggregator as a value column of a state: it takes the rows of a key into the value that is kept of it.

    A row is a dict of all that was emitted: the columns of the key, those of other aggregators, and whatever else. Of
    one key there may be several; they come in the order in which they lie in the output. The value that is kept is
    what `reduce` gave for the last row, in the type of the column; None is kept as NULL and starts from `init()`.

    `reduce` is called again for the same rows, from the value before them, when a commit is tried again.
    """

    @property
    def name(self) -> str:
        """What the state remembers of how the column was made; not one that stores know."""

    @property
    def type(self) -> str:
        """The column type of the value: bigint, text, json …"""


@dataclass(frozen=True)
class Reduced:
    """A reducer as stores see it: an aggregator that they cannot express, whose delta is the rows of a key.

    A delta is gone through once for each reading of the stored values, so it has to be a list or the like.
    """

    reducer: StoredReducer[Any]

    @property
    def name(self) -> str:
        return self.reducer.name

    @property
    def type(self) -> str:
        return self.reducer.type

    def zero(self) -> Any:
        return self.reducer.init()

    def init(self, value: Any) -> list[Any]:
        return [value]

    def delta(self, rows: Any) -> Iterable[Mapping[str, Any]] | None:
        """Check the rows of a key; None: there are none, and nothing changes. A TypeError if it is something else."""
        if rows is None:
            return None
        if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
            raise TypeError("is no list of rows, which a reducer takes")
        if iter(rows) is rows:
            raise TypeError("can be gone through only once: a reducer takes a list of rows")
        return rows

    def combine(self, stored: Any, rows: Any) -> Any:
        """Compute the value after all rows; a key that is new starts from `init()`.

        :raises ValueError: the reducer failed, and for which row.
        """
        # The reducer may change it, and a state may keep it as the value before.
        value = self.reducer.init() if stored is None else copy.deepcopy(stored)
        for row in rows:
            try:
                value = self.reducer.reduce(value, row)
            except Exception as error:
                raise ValueError(f"failed at row {str(row)[:200]} ({type(error).__name__}: {error})") from error
        return value


def is_reducer(aggregator: Any) -> TypeGuard[StoredReducer[Any]]:
    return hasattr(aggregator, "reduce") and not hasattr(aggregator, "combine")


def has_reducers(state: FencedState) -> bool:
    """Whether one of the value columns of a state is a reducer: then it takes rows, several a key."""
    return bool(reducers_of(state.columns))


def reducers_of(columns: Columns | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    return tuple(name for name, aggregator in columns.values.items() if isinstance(aggregator, Reduced))


# --- rows of which several may have one key, as a state takes them: one row a key ---------------------------------


def combined(rows: Iterable[_Row], state: FencedState) -> Iterator[dict[str, Any]]:
    """Combine the deltas of each key by the aggregators of the state; a reducer gets the list of the rows, in order.

    A state without columns gets the rows as they are.

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
    """Combine rows that are sorted by their keys: only those of one key are held at once. Raises as `combined`."""
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
        self._state, self._columns, self._keep_rows = state, state.columns, keep_rows
        self._reducers = reducers_of(state.columns)
        self._combiners = {name: each for name, each in self._columns.values.items() if name not in self._reducers}

    def add(self, number: int, row: _Row) -> None:
        try:
            self._add(row)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise self._misfit(number, row, error) from None

    def _add(self, row: _Row) -> None:
        columns = self._columns
        key = tuple(row[name] for name in columns.keys)
        known, deltas = self.kept.get(key), columns.expanded(row)
        if known is None:
            names = (*columns.keys, *self._combiners)
            # What else is there is for the reducers; without one, it is for the state to refuse.
            self.kept[key] = known = {name: deltas[name] for name in names} if self._reducers else dict(deltas)
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
