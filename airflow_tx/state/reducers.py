"""Aggregators that take the rows themselves, as value columns: what a batch brings to a key are its rows, in order.

Source: trident-state seed (persistentAggregate with a ReducerAggregator).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_tx.state.aggregators import StoredReducer

if TYPE_CHECKING:
    from airflow_tx.state.api import FencedState
    from airflow_tx.state.columns import Columns


@dataclass(frozen=True)
class Reduced:
    """A reducer as stores see it: an aggregator that they cannot express, whose delta is the rows of a key.

    A delta is gone through once for each look at the stored values, so it has to be a list or the like.
    """

    reducer: StoredReducer[Any]

    @property
    def name(self) -> str:
        """That of the reducer."""
        return self.reducer.name

    @property
    def type(self) -> str:
        """That of the reducer."""
        return self.reducer.type

    def zero(self) -> Any:
        """The value of no rows."""
        return self.reducer.init()

    def init(self, value: Any) -> list[Any]:
        """One row alone."""
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
