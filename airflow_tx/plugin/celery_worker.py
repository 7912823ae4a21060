"""The entry point in Celery's group `celery.commands`, which `airflow celery worker` loads.

A Celery worker loads Airflow's plugins only after it has forked its pool, but Celery loads this module before.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import click
from celery.signals import worker_init  # type: ignore[import-not-found,import-untyped,unused-ignore]

from airflow_tx.plugin.preload import client_used_by_worker, import_ahead

# The module of Airflow's Celery application. Other Celery applications in the environment need no imports.
_OF_AIRFLOW = "airflow.providers.celery.executors.celery_executor_utils"

celery_command = click.Command("airflow-tx", hidden=True)
"""The entry point must be a command. It does nothing."""


@worker_init.connect  # type: ignore[untyped-decorator,unused-ignore]
def on_worker_init(**_: Any) -> None:
    """Import modules when a worker of Airflow starts, before it forks its pool."""
    if _OF_AIRFLOW in sys.modules:
        import_ahead("the Celery worker", client_used=client_used_by_worker)
        # Airflow has frozen its own modules, so that processes share their memory. Freeze the new modules, too.
        gc.freeze()
