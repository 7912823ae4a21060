"""Airflow components: forked processes and DAG folders. Part of `compat`."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import version
from typing import Any

_FORKING = ("dag-processor", "scheduler", "triggerer")


def forking_component() -> str | None:
    """Return the Airflow component of this process if the component forks processes.

    Return None for other processes.
    """
    from multiprocessing import parent_process

    # While plugins are loaded, only the command line shows which component is starting.
    name = next(iter(sys.argv[1:]), None)
    return name if name in _FORKING and parent_process() is None else None


def scheduler_forks_tasks() -> bool:
    """Whether this process is a scheduler whose executor forks its task processes."""
    from multiprocessing import get_start_method

    if forking_component() != "scheduler" or get_start_method() != "fork":
        return False
    from airflow.executors.executor_loader import ExecutorLoader

    names = ExecutorLoader.get_executor_names(validate_teams=False)
    return any(ExecutorLoader.import_executor_cls(name)[0].is_local for name in names)


def dag_folders() -> list[str]:
    """List the local folders of the DAG bundles that need no download."""
    from airflow.sdk.configuration import conf

    bundles = conf.getjson("dag_processor", "dag_bundle_config_list", fallback=[])
    arguments = [bundle.get("kwargs", {}) for bundle in bundles if isinstance(bundle, dict)]
    paths = [given["path"] for given in arguments if given.get("path")]
    return list(dict.fromkeys([conf.get("core", "dags_folder"), *paths]))


@cache
def is_airflow_3_2() -> bool:
    """Return whether this is Airflow 3.2, which lacks some features of Airflow 3.3. See docs/versions.md."""
    return version("apache-airflow-task-sdk").startswith("1.2.")


def version_note() -> str | None:
    """Return a note if this Airflow version is untested, or None if all tests run on it."""
    from airflow import __version__ as airflow

    if is_airflow_3_2():
        return (
            f"airflow_tx on Airflow {airflow}: tasks are retried after every error. A retry starts another Spark "
            "driver. An event of a watcher counts as stored after ten seconds. See the page 'Tested versions'."
        )
    if tuple(map(int, airflow.split(".")[:2])) > (3, 3):
        return f"airflow_tx is tested with Airflow 3.2 and 3.3, and this is Airflow {airflow}."
    return None


def confirmed_stream(stream: Any) -> Any:
    """Create an event producer for the triggerer of Airflow 3.3.

    The triggerer reports to the producer which events it has stored.

    :param stream: object whose `open_stream` yields events. Its `advance` gets the events that Airflow has stored.
    """
    from airflow.triggers.shared_stream import SharedStreamProducer

    class Producer(SharedStreamProducer):
        open_stream = staticmethod(stream.open_stream)
        advance = staticmethod(stream.advance)

    return Producer()
