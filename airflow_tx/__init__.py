"""Airflow DAG runs as transactions: clear, retry, backfill, correct – and never count twice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names
from airflow_tx.provider_info import __version__ as __version__

if "airflow" in sys.modules:
    # Airflow loads this package in each of its processes. An older one lacks names that a task would miss much later.
    _airflow = vars(sys.modules["airflow"]).get("__version__", "3.3")
    if tuple(map(int, _airflow.split(".")[:2])) < (3, 3):
        raise ImportError(
            f"airflow_tx {__version__} needs Airflow 3.3 or newer, and this is Airflow {_airflow}. "
            "Upgrade it: pip install 'apache-airflow>=3.3'"
        )

if TYPE_CHECKING:
    from airflow_tx.base.errors import FailedBatch as FailedBatch
    from airflow_tx.base.errors import TxError as TxError
    from airflow_tx.coordinator.dag import coordinator_dag as coordinator_dag
    from airflow_tx.operators.commit import BeginTransactionOperator as BeginTransactionOperator
    from airflow_tx.operators.commit import CommitOperator as CommitOperator
    from airflow_tx.operators.sensor import TransactionCommittedSensor as TransactionCommittedSensor
    from airflow_tx.operators.spark import SparkBatchOperator as SparkBatchOperator
    from airflow_tx.operators.spark import SparkConnectBatchOperator as SparkConnectBatchOperator
    from airflow_tx.operators.transaction import Transaction as Transaction
    from airflow_tx.operators.transaction import commit_phase as commit_phase
    from airflow_tx.sources.api import Source as Source
    from airflow_tx.sources.api import TransactionalSource as TransactionalSource
    from airflow_tx.sources.files.source import FileSource as FileSource
    from airflow_tx.sources.files.source import PartitionedFileSource as PartitionedFileSource
    from airflow_tx.sources.kafka.source import KafkaSource as KafkaSource
    from airflow_tx.sources.memory import MemorySource as MemorySource
    from airflow_tx.sources.partitions import (
        OpaquePartitionedTransactionalSource as OpaquePartitionedTransactionalSource,
    )
    from airflow_tx.sources.partitions import (
        PartitionedTransactionalSource as PartitionedTransactionalSource,
    )
    from airflow_tx.sources.rabbit import RabbitQueueSource as RabbitQueueSource
    from airflow_tx.sources.redis.list import RedisListSource as RedisListSource
    from airflow_tx.sources.redis.numbered import RedisNumberedSource as RedisNumberedSource
    from airflow_tx.sources.redis.stream import RedisStreamSource as RedisStreamSource
    from airflow_tx.sources.run.data_interval import DataIntervalSource as DataIntervalSource
    from airflow_tx.sources.run.partition import RunPartitionSource as RunPartitionSource
    from airflow_tx.sources.sql.source import PartitionedSqlSource as PartitionedSqlSource
    from airflow_tx.sources.sql.source import SqlSource as SqlSource
    from airflow_tx.transaction.alarms import Alarm as Alarm
    from airflow_tx.transaction.alarms import AlarmKind as AlarmKind
    from airflow_tx.transaction.commit.update import append as append
    from airflow_tx.transaction.commit.update import partition_persist as partition_persist
    from airflow_tx.transaction.commit.update import persistent_aggregate as persistent_aggregate
    from airflow_tx.transaction.processing.batch import current_batch as current_batch
    from airflow_tx.triggers.watcher import committed_asset as committed_asset

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
