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
        StoredReducer,
        Sum,
    )
    from airflow_tx.state.api import Fence, FencedState, Grant, QueryableState, State, StateKind
    from airflow_tx.state.delta.state import DeltaState
    from airflow_tx.state.memcached.map import MemcachedMap, MemcachedState
    from airflow_tx.state.memory import MemoryDatabase, MemoryMap, MemoryState
    from airflow_tx.state.query import (
        MapGet,
        QueryFunction,
        StateFactory,
        StateUpdater,
        StaticState,
        new_values_stream,
        state_query,
    )
    from airflow_tx.state.redis.guard import RedisGuard
    from airflow_tx.state.redis.map import RedisMap
    from airflow_tx.state.redis.state import RedisState
    from airflow_tx.state.sketches import ApproxCountDistinct
    from airflow_tx.state.sql.guard import SqlGuard
    from airflow_tx.state.sql.state import SqlState
    from airflow_tx.state.trident.cached import CachedMap
    from airflow_tx.state.trident.maps import BackingMap, MapState, NonTransactionalMap, OpaqueMap, TransactionalMap
    from airflow_tx.state.trident.snapshot import Snapshottable, SnapshottableMap
    from airflow_tx.state.trident.updaters import CombinerValueUpdater, ReducerValueUpdater, Replace, ValueUpdater
    from airflow_tx.state.trident.values import OpaqueValue, TransactionalValue

_HOME = {
    "DeltaState": "delta.state",
    "MemcachedMap": "memcached.map",
    "MemcachedState": "memcached.map",
    "RedisMap": "redis.map",
    "RedisGuard": "redis.guard",
    "RedisState": "redis.state",
    "SqlGuard": "sql.guard",
    "Aggregator": "aggregators",
    "ApproxCountDistinct": "sketches",
    "Avg": "aggregators",
    "BackingMap": "trident.maps",
    "CachedMap": "trident.cached",
    "CollectSet": "aggregators",
    "CombinerAggregator": "aggregators",
    "CombinerValueUpdater": "trident.updaters",
    "CompositeAggregator": "aggregators",
    "Count": "aggregators",
    "Fence": "api",
    "FencedState": "api",
    "First": "aggregators",
    "Grant": "api",
    "Last": "aggregators",
    "MapGet": "query",
    "MapState": "trident.maps",
    "Max": "aggregators",
    "MemoryDatabase": "memory",
    "MemoryMap": "memory",
    "MemoryState": "memory",
    "Min": "aggregators",
    "NonTransactionalMap": "trident.maps",
    "OpaqueMap": "trident.maps",
    "OpaqueValue": "trident.values",
    "QueryFunction": "query",
    "QueryableState": "api",
    "ReducerAggregator": "aggregators",
    "ReducerValueUpdater": "trident.updaters",
    "Replace": "trident.updaters",
    "Snapshottable": "trident.snapshot",
    "SnapshottableMap": "trident.snapshot",
    "SqlState": "sql.state",
    "State": "api",
    "StateFactory": "query",
    "StateKind": "api",
    "StateUpdater": "query",
    "StoredReducer": "aggregators",
    "Sum": "aggregators",
    "TransactionalMap": "trident.maps",
    "TransactionalValue": "trident.values",
    "ValueUpdater": "trident.updaters",
    "StaticState": "query",
    "new_values_stream": "query",
    "state_query": "query",
}

__all__ = [
    "Aggregator",
    "ApproxCountDistinct",
    "Avg",
    "BackingMap",
    "CachedMap",
    "CollectSet",
    "CombinerAggregator",
    "CombinerValueUpdater",
    "CompositeAggregator",
    "Count",
    "DeltaState",
    "Fence",
    "FencedState",
    "First",
    "Grant",
    "Last",
    "MapGet",
    "MapState",
    "Max",
    "MemcachedMap",
    "MemcachedState",
    "MemoryDatabase",
    "MemoryMap",
    "MemoryState",
    "Min",
    "NonTransactionalMap",
    "OpaqueMap",
    "OpaqueValue",
    "QueryFunction",
    "QueryableState",
    "RedisGuard",
    "RedisMap",
    "RedisState",
    "ReducerAggregator",
    "ReducerValueUpdater",
    "Replace",
    "Snapshottable",
    "SnapshottableMap",
    "SqlGuard",
    "SqlState",
    "State",
    "StateFactory",
    "StateKind",
    "StateUpdater",
    "StaticState",
    "StoredReducer",
    "Sum",
    "TransactionalMap",
    "TransactionalValue",
    "ValueUpdater",
    "new_values_stream",
    "state_query",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
