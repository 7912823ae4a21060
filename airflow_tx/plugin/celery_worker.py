"""What `airflow celery worker` loads of this package by itself: an entry point of Celery, in group `celery.commands`.

A Celery worker loads no plugin of Airflow before it forks its pool. Celery loads this module before that.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import click
from celery.signals import worker_init  # type: ignore[import-not-found,import-untyped,unused-ignore]

from airflow_tx.plugin.preload import client_used_by_worker, import_ahead

# Only in a worker of Airflow's own Celery application: the environment may have others.
_OF_AIRFLOW = "airflow.providers.celery.executors.celery_executor_utils"

celery_command = click.Command("airflow-tx", hidden=True)
"""The entry point must be a command. It does nothing."""


@worker_init.connect  # type: ignore[untyped-decorator,unused-ignore]
def on_worker_init(**_: Any) -> None:
    """Import ahead when a worker of Airflow begins, before it forks its pool."""
    if _OF_AIRFLOW in sys.modules:
        import_ahead("the Celery worker", client_used=client_used_by_worker)
        # Airflow froze what it imported itself, so that processes share its memory. It thaws all when the pool runs.
        gc.freeze()
