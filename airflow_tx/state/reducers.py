"""Aggregators that take the rows themselves, as value columns: what a batch brings to a key are its rows, in order.

Source: trident-state seed (persistentAggregate).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, TypeVar

_T = TypeVar("_T")


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

    A row is a dict of everything that was emitted: the columns of the key, of other aggregators, and others. One key
    may have several rows; they come in the order of the output. The stored value is the one that `reduce` gave for the
    last row, in the type of the column; None is kept as NULL and starts from `init()`.

    `reduce` is called again for the same rows, from the value before them, when a commit is tried again.
    """

    @property
    def name(self) -> str:
        """The type of the column in the state's description; stores do not know it."""

    @property
    def type(self) -> str:
        """The column type of the value: bigint, text, json …"""


@dataclass(frozen=True)
class Reduced:
    """A reducer as stores see it: an aggregator that they cannot express, whose delta is the rows of a key.

    A delta is gone through once for each reading of the stored values, so it must be a list or similar.
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
                raise ValueError(
                    f"failed at row {str(row)[:200]} ({type(error).__name__}: {error})"
                ) from error
        return value


def is_reducer(aggregator: Any) -> TypeGuard[StoredReducer[Any]]:
    return hasattr(aggregator, "reduce") and not hasattr(aggregator, "combine")
