"""Airflow DAG runs as transactions: clear, retry, backfill — and never count twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_tx.commit.update import partition_persist, persistent_aggregate
    from airflow_tx.coordinator.dag import coordinator_dag
    from airflow_tx.errors import FailedBatch, TxError
    from airflow_tx.operators.begin import BeginTransactionOperator
    from airflow_tx.operators.commit import CommitOperator
    from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
    from airflow_tx.operators.spark_submit import SparkBatchOperator
    from airflow_tx.processing.batch import current_batch
    from airflow_tx.sources.api import Source, TransactionalSource
    from airflow_tx.sources.files.folders import PartitionedFileSource
    from airflow_tx.sources.files.source import FileSource
    from airflow_tx.sources.kafka.source import KafkaSource
    from airflow_tx.sources.memory import MemorySource
    from airflow_tx.sources.partitioned import OpaquePartitionedTransactionalSource, PartitionedTransactionalSource
    from airflow_tx.sources.redis.list import RedisListSource
    from airflow_tx.sources.redis.stream import RedisStreamSource
    from airflow_tx.sources.run.data_interval import DataIntervalSource
    from airflow_tx.sources.run.partition import RunPartitionSource
    from airflow_tx.sources.sql.shards import PartitionedSqlSource
    from airflow_tx.sources.sql.source import SqlSource
    from airflow_tx.topology.phase import commit_phase
    from airflow_tx.topology.transaction import Transaction

_PUBLIC = {
    "BeginTransactionOperator": "airflow_tx.operators.begin",
    "CommitOperator": "airflow_tx.operators.commit",
    "DataIntervalSource": "airflow_tx.sources.run.data_interval",
    "FailedBatch": "airflow_tx.errors",
    "FileSource": "airflow_tx.sources.files.source",
    "KafkaSource": "airflow_tx.sources.kafka.source",
    "MemorySource": "airflow_tx.sources.memory",
    "OpaquePartitionedTransactionalSource": "airflow_tx.sources.partitioned",
    "PartitionedFileSource": "airflow_tx.sources.files.folders",
    "PartitionedSqlSource": "airflow_tx.sources.sql.shards",
    "PartitionedTransactionalSource": "airflow_tx.sources.partitioned",
    "RedisListSource": "airflow_tx.sources.redis.list",
    "RedisStreamSource": "airflow_tx.sources.redis.stream",
    "RunPartitionSource": "airflow_tx.sources.run.partition",
    "Source": "airflow_tx.sources.api",
    "SparkBatchOperator": "airflow_tx.operators.spark_submit",
    "SparkConnectBatchOperator": "airflow_tx.operators.spark_connect",
    "SqlSource": "airflow_tx.sources.sql.source",
    "Transaction": "airflow_tx.topology.transaction",
    "TransactionalSource": "airflow_tx.sources.api",
    "TxError": "airflow_tx.errors",
    "commit_phase": "airflow_tx.topology.phase",
    "coordinator_dag": "airflow_tx.coordinator.dag",
    "current_batch": "airflow_tx.processing.batch",
    "partition_persist": "airflow_tx.commit.update",
    "persistent_aggregate": "airflow_tx.commit.update",
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
