"""Stores of values that transactions update; each name is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.state.aggregators import Aggregator as Aggregator
    from airflow_tx.state.aggregators import Avg as Avg
    from airflow_tx.state.aggregators import CollectSet as CollectSet
    from airflow_tx.state.aggregators import CombinerAggregator as CombinerAggregator
    from airflow_tx.state.aggregators import CompositeAggregator as CompositeAggregator
    from airflow_tx.state.aggregators import Count as Count
    from airflow_tx.state.aggregators import First as First
    from airflow_tx.state.aggregators import Last as Last
    from airflow_tx.state.aggregators import Max as Max
    from airflow_tx.state.aggregators import Min as Min
    from airflow_tx.state.aggregators import ReducerAggregator as ReducerAggregator
    from airflow_tx.state.aggregators import StoredReducer as StoredReducer
    from airflow_tx.state.aggregators import Sum as Sum
    from airflow_tx.state.api import Fence as Fence
    from airflow_tx.state.api import FencedState as FencedState
    from airflow_tx.state.api import Grant as Grant
    from airflow_tx.state.api import QueryableState as QueryableState
    from airflow_tx.state.api import State as State
    from airflow_tx.state.api import StateKind as StateKind
    from airflow_tx.state.lake.state import DeltaTable as DeltaTable
    from airflow_tx.state.memcached import MemcachedMap as MemcachedMap
    from airflow_tx.state.memcached import MemcachedState as MemcachedState
    from airflow_tx.state.memory import MemoryDatabase as MemoryDatabase
    from airflow_tx.state.memory import MemoryMap as MemoryMap
    from airflow_tx.state.memory import MemoryState as MemoryState
    from airflow_tx.state.persisted import MapGet as MapGet
    from airflow_tx.state.persisted import QueryFunction as QueryFunction
    from airflow_tx.state.persisted import StateFactory as StateFactory
    from airflow_tx.state.persisted import StateUpdater as StateUpdater
    from airflow_tx.state.persisted import StaticState as StaticState
    from airflow_tx.state.persisted import new_values_stream as new_values_stream
    from airflow_tx.state.persisted import state_query as state_query
    from airflow_tx.state.redis.map import RedisGuard as RedisGuard
    from airflow_tx.state.redis.map import RedisMap as RedisMap
    from airflow_tx.state.redis.state import RedisState as RedisState
    from airflow_tx.state.sketches import ApproxCountDistinct as ApproxCountDistinct
    from airflow_tx.state.sql.guard import SqlGuard as SqlGuard
    from airflow_tx.state.sql.state import SqlState as SqlState
    from airflow_tx.state.trident.maps import BackingMap as BackingMap
    from airflow_tx.state.trident.maps import CachedMap as CachedMap
    from airflow_tx.state.trident.maps import CombinerValueUpdater as CombinerValueUpdater
    from airflow_tx.state.trident.maps import MapState as MapState
    from airflow_tx.state.trident.maps import NonTransactionalMap as NonTransactionalMap
    from airflow_tx.state.trident.maps import OpaqueMap as OpaqueMap
    from airflow_tx.state.trident.maps import OpaqueValue as OpaqueValue
    from airflow_tx.state.trident.maps import ReducerValueUpdater as ReducerValueUpdater
    from airflow_tx.state.trident.maps import Replace as Replace
    from airflow_tx.state.trident.maps import Snapshottable as Snapshottable
    from airflow_tx.state.trident.maps import SnapshottableMap as SnapshottableMap
    from airflow_tx.state.trident.maps import TransactionalMap as TransactionalMap
    from airflow_tx.state.trident.maps import TransactionalValue as TransactionalValue
    from airflow_tx.state.trident.maps import ValueUpdater as ValueUpdater
    from airflow_tx.state.trident.maps import from_trident as from_trident
    from airflow_tx.state.trident.state import RollBackMap as RollBackMap

    __all__: list[str]
else:
    _GONE = {
        "DeltaState": "airflow_tx.state has no DeltaState any more. Append rows to a DeltaTable and "
        "aggregate them in SQL, or keep values per key in a SqlState (docs/stores.md#deltatable)."
    }
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__, gone=_GONE)
