"""Airflow DAG runs as transactions: clear, retry, backfill — and never count twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_tx.errors import FailedBatch, TxError
    from airflow_tx.operators.begin import BeginTransactionOperator
    from airflow_tx.operators.commit import CommitOperator
    from airflow_tx.operators.lifecycle import current_batch
    from airflow_tx.operators.process import SparkBatchOperator
    from airflow_tx.operators.updates import persistent_aggregate
    from airflow_tx.topology.transaction import Transaction

_PUBLIC = {
    "BeginTransactionOperator": "airflow_tx.operators.begin",
    "CommitOperator": "airflow_tx.operators.commit",
    "FailedBatch": "airflow_tx.errors",
    "SparkBatchOperator": "airflow_tx.operators.process",
    "Transaction": "airflow_tx.topology.transaction",
    "TxError": "airflow_tx.errors",
    "current_batch": "airflow_tx.operators.lifecycle",
    "persistent_aggregate": "airflow_tx.operators.updates",
}

__all__ = [
    "BeginTransactionOperator",
    "CommitOperator",
    "FailedBatch",
    "SparkBatchOperator",
    "Transaction",
    "TxError",
    "current_batch",
    "persistent_aggregate",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
