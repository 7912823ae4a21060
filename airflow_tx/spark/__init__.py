"""Spark applications that process one batch: a function, decorated with `batch_app`, submitted by an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.spark.app import BatchApp as BatchApp
    from airflow_tx.spark.app import batch_app as batch_app
    from airflow_tx.spark.batch import Batch as Batch

    __all__: list[str]
else:
    # A DAG file submits applications, and runs none.
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
