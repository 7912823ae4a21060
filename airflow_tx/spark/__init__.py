"""Spark applications that process one batch: a function, decorated with `batch_app`, submitted by an operator."""

from airflow_tx.spark.app import BatchApp, batch_app
from airflow_tx.spark.batch import Batch

__all__ = ["Batch", "BatchApp", "batch_app"]
