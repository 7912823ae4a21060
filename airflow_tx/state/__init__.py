"""Stores of values that transactions update. Importing this room is cheap: a name is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_tx.state.aggregators import (
        Aggregator,
        Avg,
        CollectSet,
        CombinerAggregator,
        CompositeAggregator,
        Count,
        First,
        Last,
        Max,
        Min,
        ReducerAggregator,
        Sum,
    )
    from airflow_tx.state.api import FencedState, FenceRow, Grant, State, StateKind
    from airflow_tx.state.backing.memory import MemoryDatabase, MemoryState
    from airflow_tx.state.backing.sql import SqlState
    from airflow_tx.state.sketches import ApproxCountDistinct
    from airflow_tx.state.values import OpaqueValue, TransactionalValue

_HOME = {
    "Aggregator": "aggregators",
    "ApproxCountDistinct": "sketches",
    "Avg": "aggregators",
    "CollectSet": "aggregators",
    "CombinerAggregator": "aggregators",
    "CompositeAggregator": "aggregators",
    "Count": "aggregators",
    "FenceRow": "api",
    "FencedState": "api",
    "First": "aggregators",
    "Grant": "api",
    "Last": "aggregators",
    "Max": "aggregators",
    "MemoryDatabase": "backing.memory",
    "MemoryState": "backing.memory",
    "Min": "aggregators",
    "OpaqueValue": "values",
    "ReducerAggregator": "aggregators",
    "SqlState": "backing.sql",
    "State": "api",
    "StateKind": "api",
    "Sum": "aggregators",
    "TransactionalValue": "values",
}

__all__ = [
    "Aggregator",
    "ApproxCountDistinct",
    "Avg",
    "CollectSet",
    "CombinerAggregator",
    "CompositeAggregator",
    "Count",
    "FenceRow",
    "FencedState",
    "First",
    "Grant",
    "Last",
    "Max",
    "MemoryDatabase",
    "MemoryState",
    "Min",
    "OpaqueValue",
    "ReducerAggregator",
    "SqlState",
    "State",
    "StateKind",
    "Sum",
    "TransactionalValue",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
