"""Trees of messages for work that leaves the DAG: what a worker needs, with or without Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.errors import AckersUnavailable as AckersUnavailable
    from airflow_tx.base.errors import MessageError as MessageError
    from airflow_tx.base.errors import NotAReference as NotAReference
    from airflow_tx.base.errors import StaleMessage as StaleMessage
    from airflow_tx.outputs.messages.messages import Collector as Collector
    from airflow_tx.outputs.messages.messages import Message as Message
    from airflow_tx.outputs.messages.stores import AckerStore as AckerStore
    from airflow_tx.outputs.messages.stores import open_ackers as open_ackers
    from airflow_tx.outputs.messages.tree import Reference as Reference

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
