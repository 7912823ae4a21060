"""Modules that a component of Airflow imports once, before it forks the processes that need them: a listener.

A task is a process of its own: what the LocalExecutor's workers have is there, and costs nothing. What is imported
opens nothing and starts no thread, so that a fork may have it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from airflow.listeners import hookimpl

import airflow_tx
from airflow_tx.config import Settings

log = logging.getLogger(__name__)

# What every task imports besides this package: Airflow's own side of it, the decorator, the digests of rows.
_OF_OTHERS = (
    "airflow.dag_processing.bundles.local",
    "airflow.dag_processing.dagbag",
    "airflow.providers.standard.decorators.python",
    "airflow.sdk.definitions.decorators",
    "airflow.sdk.execution_time.task_runner",
    "xxhash",
)
# The rooms that no task enters.
_LEFT_OUT = (
    "airflow_tx.actions",
    "airflow_tx.cli",
    "airflow_tx.plugin",
    "airflow_tx.testing",
)


@hookimpl
def on_starting(component: Any) -> None:
    """Import them when a scheduler, a triggerer or a DAG processor begins."""
    import_ahead(type(component).__name__)


def import_ahead(component: str) -> None:
    """Import what `[tx] preload` names; what cannot be imported is logged.

    :param component: of Airflow, as the log names it.
    """
    for name in Settings.load().preload:
        try:
            for each in (*_OF_OTHERS, *_rooms()) if name == airflow_tx.__name__ else (name,):
                import_module(each)
        except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
            log.warning(
                "[tx] preload names %r, which cannot be imported: %s. Tasks import it themselves. Correct the name, or "
                "install the module where %s runs.",
                name, error, component,
            )  # fmt: skip


def _rooms() -> Iterator[str]:
    for module in walk_packages(airflow_tx.__path__, "airflow_tx."):
        if not module.name.startswith(_LEFT_OUT):
            yield module.name
