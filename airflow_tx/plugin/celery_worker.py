"""The entry point in Celery's group `celery.commands`, which `airflow celery worker` loads.

A Celery worker loads Airflow's plugins only after it has forked its pool. It loads this module before the fork.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import click
from celery.signals import worker_init  # type: ignore[import-not-found,import-untyped,unused-ignore]

from airflow_tx.plugin.preload import client_used_by_worker, import_ahead

# The module of Airflow's Celery application. For other Celery applications in the environment,
# nothing is imported.
_OF_AIRFLOW = "airflow.providers.celery.executors.celery_executor_utils"

celery_command = click.Command("airflow-tx", hidden=True)
"""A command that does nothing, since the entry point must be a command."""


@worker_init.connect  # type: ignore[untyped-decorator,unused-ignore]
def on_worker_init(**_: Any) -> None:
    """Import modules when an Airflow worker starts, before it forks its pool."""
    if _OF_AIRFLOW in sys.modules:
        import_ahead("the Celery worker", client_used=client_used_by_worker)
        # Airflow has frozen its own modules so that the processes share their memory. Freeze the
        # new ones as well.
        gc.freeze()
