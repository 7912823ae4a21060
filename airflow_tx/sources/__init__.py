"""What your own source is made of; the sources there are come from `airflow_tx` itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.errors import PartitionUnavailable as PartitionUnavailable
    from airflow_tx.base.errors import SourceError as SourceError
    from airflow_tx.ledger.answers import Loss as Loss
    from airflow_tx.sources.api import Batch as Batch
    from airflow_tx.sources.api import BatchSize as BatchSize
    from airflow_tx.sources.api import Json as Json
    from airflow_tx.sources.api import Source as Source
    from airflow_tx.sources.api import SourceKind as SourceKind
    from airflow_tx.sources.api import TransactionalSource as TransactionalSource
    from airflow_tx.sources.partitions import Gone as Gone
    from airflow_tx.sources.partitions import LogBatch as LogBatch
    from airflow_tx.sources.partitions import LogSnapshot as LogSnapshot
    from airflow_tx.sources.partitions import LogSource as LogSource
    from airflow_tx.sources.partitions import PartitionLog as PartitionLog

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
