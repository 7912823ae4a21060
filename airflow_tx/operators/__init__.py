"""The classes that a DAG file uses: the `Transaction` block, its operators, and the sensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.operators.commit import (
        BeginTransactionOperator as BeginTransactionOperator,
        CommitOperator as CommitOperator,
        RetriedOperator as RetriedOperator,
    )
    from airflow_tx.operators.phase import commit_phase as commit_phase
    from airflow_tx.operators.sensor import TransactionCommittedSensor as TransactionCommittedSensor
    from airflow_tx.operators.spark import SparkBatchOperator as SparkBatchOperator
    from airflow_tx.operators.spark_connect import (
        SparkConnectBatchOperator as SparkConnectBatchOperator,
    )
    from airflow_tx.operators.transaction import (
        Transaction as Transaction,
        defined as defined,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
