"""Stores of values that transactions update. Each name is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.dataset import Dataset as Dataset
    from airflow_tx.state.aggregators import (
        Aggregator as Aggregator,
        Avg as Avg,
        CollectSet as CollectSet,
        CombinerAggregator as CombinerAggregator,
        CompositeAggregator as CompositeAggregator,
        Count as Count,
        First as First,
        Last as Last,
        Max as Max,
        Min as Min,
        ReducerAggregator as ReducerAggregator,
        StoredReducer as StoredReducer,
        Sum as Sum,
    )
    from airflow_tx.state.api import (
        Fence as Fence,
        FencedState as FencedState,
        Grant as Grant,
        QueryableState as QueryableState,
        State as State,
        StateKind as StateKind,
    )
    from airflow_tx.state.lake.state import DeltaTable as DeltaTable
    from airflow_tx.state.maps import (
        BackingMap as BackingMap,
        CachedMap as CachedMap,
        CombinerValueUpdater as CombinerValueUpdater,
        MapState as MapState,
        NonTransactionalMap as NonTransactionalMap,
        OpaqueMap as OpaqueMap,
        OpaqueValue as OpaqueValue,
        ReducerValueUpdater as ReducerValueUpdater,
        Replace as Replace,
        Snapshottable as Snapshottable,
        SnapshottableMap as SnapshottableMap,
        TransactionalMap as TransactionalMap,
        TransactionalValue as TransactionalValue,
        ValueUpdater as ValueUpdater,
        from_trident as from_trident,
    )
    from airflow_tx.state.memcached import (
        MemcachedMap as MemcachedMap,
        MemcachedState as MemcachedState,
    )
    from airflow_tx.state.memory import (
        MemoryDatabase as MemoryDatabase,
        MemoryMap as MemoryMap,
        MemoryState as MemoryState,
    )
    from airflow_tx.state.persisted import (
        MapGet as MapGet,
        QueryFunction as QueryFunction,
        StateFactory as StateFactory,
        StateUpdater as StateUpdater,
        StaticState as StaticState,
        new_values_stream as new_values_stream,
        state_query as state_query,
    )
    from airflow_tx.state.redis.guard import RedisGuard as RedisGuard
    from airflow_tx.state.redis.map import RedisMap as RedisMap
    from airflow_tx.state.redis.state import RedisState as RedisState
    from airflow_tx.state.sketches import ApproxCountDistinct as ApproxCountDistinct
    from airflow_tx.state.sql.guard import SqlGuard as SqlGuard
    from airflow_tx.state.sql.state import SqlState as SqlState
    from airflow_tx.state.sql.table import SqlTable as SqlTable
    from airflow_tx.state.trident import RollBackMap as RollBackMap
    from airflow_tx.state.upstream import (
        CommittedTable as CommittedTable,
        TableCounts as TableCounts,
        TableSnapshot as TableSnapshot,
    )

# Names for other packages of airflow_tx. They are not public.
if TYPE_CHECKING:
    from airflow_tx.state.aggregators import (
        REFUSALS as REFUSALS,
        Cells as Cells,
        Columns as Columns,
        can_invert as can_invert,
        difference as difference,
        is_same as is_same,
    )
    from airflow_tx.state.api import (
        REJECTED_COLUMNS as REJECTED_COLUMNS,
        REPLACING as REPLACING,
        TXID as TXID,
        AppendTable as AppendTable,
        Misfit as Misfit,
        SoleWriterState as SoleWriterState,
        StateUpdate as StateUpdate,
        StateWrite as StateWrite,
        StoredState as StoredState,
        raise_fences as raise_fences,
        sharing_a_store as sharing_a_store,
        staged_folder as staged_folder,
        write_together as write_together,
    )
    from airflow_tx.state.arrow import (
        RowsInParts as RowsInParts,
        RowTally as RowTally,
        from_arrow as from_arrow,
        schema_of as schema_of,
        to_arrow as to_arrow,
    )
    from airflow_tx.state.column_types import (
        STATE_TYPES as STATE_TYPES,
        converted as converted,
        from_plain as from_plain,
        json_text as json_text,
        to_plain as to_plain,
        type_of as type_of,
    )
    from airflow_tx.state.comparison import (
        KeyDifferences as KeyDifferences,
        StateComparison as StateComparison,
        compared as compared,
    )
    from airflow_tx.state.fence import check_as_of as check_as_of
    from airflow_tx.state.keys import (
        canonical_number as canonical_number,
        encode_key as encode_key,
        partition_of as partition_of,
    )
    from airflow_tx.state.lake.schema import check_columns as check_columns, empty_in as empty_in
    from airflow_tx.state.persisted import (
        AnyTrialState as AnyTrialState,
        PersistedState as PersistedState,
        TrialChange as TrialChange,
        TrialState as TrialState,
        Writers as Writers,
        as_aggregate as as_aggregate,
        as_fenced as as_fenced,
        for_readers as for_readers,
        resolved_state as resolved_state,
        results_of as results_of,
        state_of as state_of,
        trial_state as trial_state,
    )
    from airflow_tx.state.rows import (
        CheckedRows as CheckedRows,
        combined as combined,
        combined_at_once as combined_at_once,
        combined_runs as combined_runs,
        has_reducers as has_reducers,
        reducers_of as reducers_of,
    )
    from airflow_tx.state.upstream import (
        RejectedCounts as RejectedCounts,
        RejectedFilter as RejectedFilter,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
