"""What is done to one stored value: Trident's ValueUpdater, and those that bring an aggregator.

Source: trident-state seed (MapState, persistentAggregate).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from airflow_tx.state.aggregators import CombinerAggregator, as_delta
from airflow_tx.state.reducers import ReducerAggregator

_T = TypeVar("_T")


class ValueUpdater(Protocol[_T]):
    """Computes a new value from a stored one."""

    def update(self, stored: _T | None) -> _T | None:
        """The new value; None removes the key.

        :param stored: None: there is no such key. It is yours: you may change it and return it.
        """


class CombinerValueUpdater(Generic[_T]):
    """Combines the stored value with what an aggregator made of the batch.

    :param aggregator: such as `Sum()`.
    :param delta: what it made of the batch; NULL changes nothing.
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
    """Takes the rows of a key into its value, one after another.

    :param aggregator: with `init()` and `reduce(current, row)`.
    :param rows: in the order in which they came.
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
    """Sets a value, whatever was stored.

    :param value: None removes the key.
    """

    def __init__(self, value: _T | None) -> None:
        self._value = value

    def update(self, stored: _T | None) -> _T | None:
        return self._value
