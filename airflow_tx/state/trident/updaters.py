"""What is done to one stored value: Trident's ValueUpdater, and those that bring an aggregator.

Source: trident-state seed (MapState, persistentAggregate).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from airflow_tx.state.aggregators import CombinerAggregator, as_delta
from airflow_tx.state.reducers import ReducerAggregator

T = TypeVar("T")


class ValueUpdater(Protocol[T]):
    """Computes a new value from a stored one."""

    def update(self, stored: T | None) -> T | None:
        """The new value; None removes the key.

        :param stored: None: there is no such key. It is yours: you may change it and return it.
        """


class CombinerValueUpdater(Generic[T]):
    """Combines the stored value with what an aggregator made of the batch.

    :param aggregator: such as `Sum()`.
    :param delta: what it made of the batch; NULL changes nothing.
    """

    def __init__(self, aggregator: CombinerAggregator, delta: T | None) -> None:
        self._aggregator = aggregator
        self._delta: T | None = as_delta(aggregator, delta)

    def update(self, stored: T | None) -> T | None:
        if stored is None or self._delta is None:
            return self._delta if stored is None else stored
        combined: T | None = self._aggregator.combine(stored, self._delta)
        return combined


class ReducerValueUpdater(Generic[T]):
    """Takes the rows of a key into its value, one after another.

    :param aggregator: with `init()` and `reduce(current, row)`.
    :param rows: in the order in which they came.
    """

    def __init__(self, aggregator: ReducerAggregator[T], rows: Iterable[Any]) -> None:
        self._aggregator = aggregator
        self._rows = list(rows)

    def update(self, stored: T | None) -> T | None:
        value = self._aggregator.init() if stored is None else stored
        for row in self._rows:
            value = self._aggregator.reduce(value, row)
        return value


class Replace(Generic[T]):
    """Sets a value, whatever was stored.

    :param value: None removes the key.
    """

    def __init__(self, value: T | None) -> None:
        self._value = value

    def update(self, stored: T | None) -> T | None:
        return self._value
