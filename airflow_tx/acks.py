"""The API of workers that process messages outside the DAG, with or without Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.errors import (
        AckersUnavailable as AckersUnavailable,
        MessageError as MessageError,
        NotAReference as NotAReference,
        StaleMessage as StaleMessage,
    )
    from airflow_tx.outputs import (
        AckerStore as AckerStore,
        Collector as Collector,
        Message as Message,
        Reference as Reference,
        open_ackers as open_ackers,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
