"""Airflow DAG runs as transactions: clear, retry, backfill — and never count twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_tx.errors import FailedBatch, TxError
    from airflow_tx.operators.begin import BeginTransactionOperator
    from airflow_tx.operators.commit import CommitOperator
    from airflow_tx.operators.connect import SparkConnectBatchOperator
    from airflow_tx.operators.lifecycle import current_batch
    from airflow_tx.operators.process import SparkBatchOperator
    from airflow_tx.operators.updates import partition_persist, persistent_aggregate
    from airflow_tx.sources.api import Source, TransactionalSource
    from airflow_tx.sources.data_interval import DataIntervalSource
    from airflow_tx.sources.files import FileSource
    from airflow_tx.sources.folders import PartitionedFileSource
    from airflow_tx.sources.kafka import KafkaSource
    from airflow_tx.sources.memory import MemorySource
    from airflow_tx.sources.partitioned import OpaquePartitionedTransactionalSource, PartitionedTransactionalSource
    from airflow_tx.sources.redis_list import RedisListSource
    from airflow_tx.sources.redis_stream import RedisStreamSource
    from airflow_tx.sources.run_partition import RunPartitionSource
    from airflow_tx.sources.sql import SqlSource
    from airflow_tx.sources.sql_shards import PartitionedSqlSource
    from airflow_tx.topology.coordinator import coordinator_dag
    from airflow_tx.topology.phase import commit_phase
    from airflow_tx.topology.transaction import Transaction

_PUBLIC = {
    "BeginTransactionOperator": "airflow_tx.operators.begin",
    "CommitOperator": "airflow_tx.operators.commit",
    "DataIntervalSource": "airflow_tx.sources.data_interval",
    "FailedBatch": "airflow_tx.errors",
    "FileSource": "airflow_tx.sources.files",
    "KafkaSource": "airflow_tx.sources.kafka",
    "MemorySource": "airflow_tx.sources.memory",
    "OpaquePartitionedTransactionalSource": "airflow_tx.sources.partitioned",
    "PartitionedFileSource": "airflow_tx.sources.folders",
    "PartitionedSqlSource": "airflow_tx.sources.sql_shards",
    "PartitionedTransactionalSource": "airflow_tx.sources.partitioned",
    "RedisListSource": "airflow_tx.sources.redis_list",
    "RedisStreamSource": "airflow_tx.sources.redis_stream",
    "RunPartitionSource": "airflow_tx.sources.run_partition",
    "Source": "airflow_tx.sources.api",
    "SparkBatchOperator": "airflow_tx.operators.process",
    "SparkConnectBatchOperator": "airflow_tx.operators.connect",
    "SqlSource": "airflow_tx.sources.sql",
    "Transaction": "airflow_tx.topology.transaction",
    "TransactionalSource": "airflow_tx.sources.api",
    "TxError": "airflow_tx.errors",
    "commit_phase": "airflow_tx.topology.phase",
    "coordinator_dag": "airflow_tx.topology.coordinator",
    "current_batch": "airflow_tx.operators.lifecycle",
    "partition_persist": "airflow_tx.operators.updates",
    "persistent_aggregate": "airflow_tx.operators.updates",
}

__all__ = [
    "BeginTransactionOperator",
    "CommitOperator",
    "DataIntervalSource",
    "FailedBatch",
    "FileSource",
    "KafkaSource",
    "MemorySource",
    "OpaquePartitionedTransactionalSource",
    "PartitionedFileSource",
    "PartitionedSqlSource",
    "PartitionedTransactionalSource",
    "RedisListSource",
    "RedisStreamSource",
    "RunPartitionSource",
    "Source",
    "SparkBatchOperator",
    "SparkConnectBatchOperator",
    "SqlSource",
    "Transaction",
    "TransactionalSource",
    "TxError",
    "commit_phase",
    "coordinator_dag",
    "current_batch",
    "partition_persist",
    "persistent_aggregate",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
