"""Digests of the code that tasks run. Receipts contain the digests, and commands compare them with the current DAG."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger import file_digest, function_digest
from airflow_tx.transaction.spec import RunsApplication, TransactionSpec


def digest_of_callable(task: Any) -> str:
    """Return the digest of the function that a task calls, or "" if there is none, or its source is not readable.

    :param task: an operator, mapped or not, with its function in `python_callable`.
    """
    try:
        function = inspect.unwrap(compat.argument_of(task, "python_callable"))
        lines, _ = inspect.findsource(function)
        return function_digest("".join(lines), function.__code__.co_firstlineno)
    except (AttributeError, OSError, TypeError):
        return ""


def code_of_dag(dag: Any, spec: TransactionSpec) -> dict[str, str]:
    """Return the code digest of each task that must ack, by task. It equals the digest in the task's ack.

    It is "" if the code cannot be read.
    """
    tasks = (task for task in dag.tasks if task.task_id in spec.tasks)
    return {task.task_id: _digest_of_task(task, dag.fileloc) for task in tasks}


def _digest_of_task(task: Any, dag_file: str) -> str:
    operator = task.operator_class if task.is_mapped else type(task)
    if not issubclass(operator, RunsApplication):
        return digest_of_callable(task)
    from airflow_tx.spark import find_application

    application = compat.argument_of(task, "application")
    with suppress(ConfigError, OSError):
        if isinstance(application, str):
            return file_digest(Path(find_application(application, dag_file)).read_bytes())
    return ""
