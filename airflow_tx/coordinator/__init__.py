"""The coordinator, which starts and replays the runs of transactions, and works a lane that needs no runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.coordinator.dag import (
        coordinator_dag as coordinator_dag,
        dag_is_needed as dag_is_needed,
    )
    from airflow_tx.coordinator.trigger import CoordinatorTrigger as CoordinatorTrigger

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
