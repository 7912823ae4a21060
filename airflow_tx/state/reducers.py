"""Aggregators that take the rows themselves, as value columns: what a batch brings to a key are its rows, in order.

Source: trident-state seed (persistentAggregate with a ReducerAggregator).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

if TYPE_CHECKING:
    from airflow_tx.state.api import FencedState
    from airflow_tx.state.columns import Columns

_T = TypeVar("_T")


class ReducerAggregator(Protocol[_T]):
    """Trident's ReducerAggregator: it takes the rows themselves, one after another (see `ReducerValueUpdater`)."""

    def init(self) -> _T:
        """The value of no rows at all."""

    def reduce(self, current: _T, row: Any) -> _T:
        """The value after one more row.

        :param current: yours: you may change it and return it.
        """


class StoredReducer(ReducerAggregator[_T], Protocol[_T]):
    """A ReducerAggregator as a value column of a state: it takes the rows of a key into the value that is kept of it.

    A row is a dict of all that was emitted: the columns of the key, those of other aggregators, and whatever else. Of
    one key there may be several; they come in the order in which they lie in the output. The value that is kept is
    what `reduce` gave for the last row, in the type of the column; None is kept as NULL and starts from `init()`.

    `reduce` may be called again for the same rows, when a commit is tried again: from the value before them.
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
        """The rows of a key; None: there are none, and nothing changes.

        :raises TypeError: it is something else.
        """
        if rows is not None and (isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__")):
            raise TypeError("is no list of rows, which a reducer takes")
        if rows is not None and iter(rows) is rows:
            raise TypeError("can be gone through only once: a reducer takes a list of rows")
        found: Iterable[Mapping[str, Any]] | None = rows
        return found

    def combine(self, stored: Any, rows: Any) -> Any:
        """The value after all rows.

        :param stored: None: a key that is new starts from `init()`.
        :raises ValueError: the reducer failed, saying for which row.
        """
        # The reducer may change it, and a state may keep it as the value before.
        value = self.reducer.init() if stored is None else copy.deepcopy(stored)
        for row in rows:
            try:
                value = self.reducer.reduce(value, row)
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                raise ValueError(f"failed at row {str(row)[:200]} ({told})") from error
        return value


def is_reducer(aggregator: Any) -> TypeGuard[StoredReducer[Any]]:
    """Whether an aggregator takes rows."""
    return hasattr(aggregator, "reduce") and not hasattr(aggregator, "combine")


def has_reducers(state: FencedState) -> bool:
    """Whether one of the value columns of a state is a reducer: then it takes rows, several a key."""
    return bool(reducers_of(state.columns))


def reducers_of(columns: Columns | None) -> tuple[str, ...]:
    """The value columns that are reducers."""
    if columns is None:
        return ()
    return tuple(name for name, aggregator in columns.values.items() if isinstance(aggregator, Reduced))
