"""The base classes for your own sources. Import the built-in sources from `airflow_tx`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.dataset import Dataset as Dataset
    from airflow_tx.base.errors import (
        PartitionUnavailable as PartitionUnavailable,
        SourceError as SourceError,
    )
    from airflow_tx.ledger import Loss as Loss, TransactionAttempt as TransactionAttempt
    from airflow_tx.sources.api import (
        Batch as Batch,
        BatchSize as BatchSize,
        Json as Json,
        Source as Source,
        SourceKind as SourceKind,
        TransactionalSource as TransactionalSource,
    )
    from airflow_tx.sources.partitions import (
        Gone as Gone,
        LogBatch as LogBatch,
        LogSnapshot as LogSnapshot,
        LogSource as LogSource,
        PartitionLog as PartitionLog,
    )

# Only other modules of this package use these names. They are not public.
if TYPE_CHECKING:
    from airflow_tx.sources.api import (
        BatchStaging as BatchStaging,
        DatedSource as DatedSource,
        MalformedRow as MalformedRow,
        fails as fails,
        rebuild as rebuild,
    )
    from airflow_tx.sources.dates import (
        Span as Span,
        interval_of_key as interval_of_key,
        key_of_interval as key_of_interval,
        order_end as order_end,
        order_from as order_from,
        span_of as span_of,
    )
    from airflow_tx.sources.files.source import (
        FileSource as FileSource,
        PartitionedFileSource as PartitionedFileSource,
    )
    from airflow_tx.sources.kafka.source import KafkaSource as KafkaSource
    from airflow_tx.sources.lag import (
        Lag as Lag,
        LagUnknown as LagUnknown,
        LagWatch as LagWatch,
        SourcePosition as SourcePosition,
        lags as lags,
    )
    from airflow_tx.sources.memory import MemorySource as MemorySource
    from airflow_tx.sources.partitions import (
        OpaquePartitionedTransactionalSource as OpaquePartitionedTransactionalSource,
        PartitionedTransactionalSource as PartitionedTransactionalSource,
    )
    from airflow_tx.sources.rabbit import RabbitQueueSource as RabbitQueueSource
    from airflow_tx.sources.redis.list import RedisListSource as RedisListSource
    from airflow_tx.sources.redis.numbered import RedisNumberedSource as RedisNumberedSource
    from airflow_tx.sources.redis.stream import RedisStreamSource as RedisStreamSource
    from airflow_tx.sources.run.data_interval import (
        DataIntervalSource as DataIntervalSource,
        NextIntervalSource as NextIntervalSource,
    )
    from airflow_tx.sources.run.partition import RunPartitionSource as RunPartitionSource
    from airflow_tx.sources.sql.source import (
        PartitionedSqlSource as PartitionedSqlSource,
        SqlSource as SqlSource,
    )
    from airflow_tx.sources.trial import TrialSource as TrialSource
    from airflow_tx.sources.upstream import UpstreamSource as UpstreamSource

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
