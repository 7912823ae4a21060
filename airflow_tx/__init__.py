"""Airflow DAG runs as transactions: clear, retry, backfill, correct – and never count twice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names
from airflow_tx.provider_info import __version__ as __version__

if "airflow" in sys.modules:
    # Airflow loads this package in each of its processes. An older one lacks names that a task would miss much later.
    _airflow = vars(sys.modules["airflow"]).get("__version__", "3.2")
    if tuple(map(int, _airflow.split(".")[:2])) < (3, 2):
        raise ImportError(
            f"airflow_tx {__version__} needs Airflow 3.2 or newer, and this is Airflow {_airflow}. "
            "Upgrade it: pip install 'apache-airflow>=3.2'"
        )

if TYPE_CHECKING:
    from airflow_tx.base.errors import FailedBatch as FailedBatch, TxError as TxError
    from airflow_tx.coordinator import (
        coordinator_dag as coordinator_dag,
        dag_is_needed as dag_is_needed,
    )
    from airflow_tx.operators import (
        BeginTransactionOperator as BeginTransactionOperator,
        CommitOperator as CommitOperator,
        SparkBatchOperator as SparkBatchOperator,
        SparkConnectBatchOperator as SparkConnectBatchOperator,
        Transaction as Transaction,
        TransactionCommittedSensor as TransactionCommittedSensor,
        commit_phase as commit_phase,
    )
    from airflow_tx.sources import (
        DataIntervalSource as DataIntervalSource,
        FileSource as FileSource,
        KafkaSource as KafkaSource,
        MemorySource as MemorySource,
        OpaquePartitionedTransactionalSource as OpaquePartitionedTransactionalSource,
        PartitionedFileSource as PartitionedFileSource,
        PartitionedSqlSource as PartitionedSqlSource,
        PartitionedTransactionalSource as PartitionedTransactionalSource,
        RabbitQueueSource as RabbitQueueSource,
        RedisListSource as RedisListSource,
        RedisNumberedSource as RedisNumberedSource,
        RedisStreamSource as RedisStreamSource,
        RunPartitionSource as RunPartitionSource,
        Source as Source,
        SqlSource as SqlSource,
        TransactionalSource as TransactionalSource,
        UpstreamSource as UpstreamSource,
    )
    from airflow_tx.transaction import (
        Alarm as Alarm,
        AlarmKind as AlarmKind,
        append as append,
        check as check,
        current_batch as current_batch,
        partition_persist as partition_persist,
        persistent_aggregate as persistent_aggregate,
    )
    from airflow_tx.triggers import committed_asset as committed_asset

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
