"""Import modules once before a component forks the processes of tasks.

Each task is a new process, which inherits the modules of the process that forked it, and need not import them again. A
module that is imported before the fork opens no connection and takes no lock, so that the fork is safe.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import airflow_tx
from airflow_tx.base import compat
from airflow_tx.base.config import Settings

log = logging.getLogger(__name__)

# Modules that every task imports in addition to this package: Airflow's task runner, the decorator,
# and the digests of rows.
_OF_OTHERS = (
    "airflow.dag_processing.bundles.local",
    "airflow.dag_processing.dagbag",
    "airflow.providers.standard.decorators.python",
    "airflow.sdk.definitions.decorators",
    "airflow.sdk.execution_time.task_runner",
    "xxhash",
)
# Subpackages that no task imports.
_LEFT_OUT = (
    "airflow_tx.operations.actions",
    "airflow_tx.operations.cli",
    "airflow_tx.plugin",
    "airflow_tx.testing",
)

_AUTO = "auto"
_CLIENT = "pyspark.sql.connect.session"
_TYPE = "spark_connect"
# The value of a connection in an environment variable: a JSON object, or a URL.
_CONNECTION = re.compile(
    r"""\s*(spark[-_]connect:|\{.*"conn_type"\s*:\s*"spark[-_]connect")""", re.DOTALL
)
# A DAG file with this text uses Spark Connect: an operator, a hook, a connection, or the client
# itself.
_USE = re.compile(rb"SparkConnect|spark_connect|pyspark\.sql\.connect")
_PATIENCE = 2.0


def import_ahead(component: str, *, client_used: Callable[[], bool]) -> None:
    """Import the modules in `[tx] preload`. If an import fails, the component starts without this module.

    :param component: the name of the Airflow component, for the log.
    :param client_used: a function that returns whether tasks of this process use the Spark Connect client. Called only
        for `auto`.
    """
    try:
        modules = [*_modules(Settings.load().preload, client_used)]
    except Exception as error:  # noqa: BLE001 - whatever a database or a disk does
        log.warning(
            "%s does not preload the modules of [tx] preload: %s. Each task imports them itself and takes longer.",
            component, error,
        )  # fmt: skip
        return
    for module in modules:
        _import(module, component)


def client_used_by_scheduler() -> bool:
    """Return whether this process is a scheduler that forks tasks, and some tasks use Spark Connect."""
    return compat.scheduler_forks_tasks() and (
        _in_environment() or _is_true_in_time(lambda: compat.connection_exists(_TYPE) or _in_dags())
    )


def client_used_by_worker() -> bool:
    """Return whether tasks of a worker use Spark Connect. A worker cannot read the metadata database."""
    return _in_environment() or _is_true_in_time(_in_dags)


def _modules(names: tuple[str, ...], client_used: Callable[[], bool]) -> Iterator[str]:
    for name in names:
        if name not in (_AUTO, airflow_tx.__name__):
            yield name
            continue
        yield from _OF_OTHERS
        yield from _rooms()
        if name == _AUTO and client_used():
            yield _CLIENT


def _rooms() -> Iterator[str]:
    for module in walk_packages(airflow_tx.__path__, "airflow_tx."):
        if not module.name.startswith(_LEFT_OUT):
            yield module.name


def _import(module: str, component: str) -> None:
    try:
        import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a module does when it is imported, SystemExit too
        log.warning(
            "%s cannot preload module %r: %s. Each task imports it itself. Correct [tx] preload, or install the "
            "module where %s runs.",
            component, module, str(error) or type(error).__name__, component,
        )  # fmt: skip


def _in_environment() -> bool:
    return any(
        name.startswith("AIRFLOW_CONN_") and _CONNECTION.match(value) is not None
        for name, value in os.environ.items()
    )


def _in_dags() -> bool:
    return any(_USE.search(text) for root in compat.dag_folders() for text in _python_files(root))


def _python_files(root: str) -> Iterator[bytes]:
    for folder, _, files in os.walk(root, followlinks=True):
        for file in files:
            with suppress(OSError):
                yield Path(folder, file).read_bytes() if file.endswith(".py") else b""


def _is_true_in_time(question: Callable[[], bool]) -> bool:
    """Call a function in a new process.

    If a database or a disk hangs, the component waits at most `_PATIENCE` seconds.
    """
    asked = multiprocessing.get_context("fork").Process(
        target=_answer, args=(question,), daemon=True
    )
    asked.start()
    asked.join(_PATIENCE)
    if asked.exitcode is None:
        asked.kill()
        log.warning(
            "After %s s it is still unknown whether tasks use Spark Connect, so its client is not preloaded. If tasks "
            "use Spark Connect, set [tx] preload to 'airflow_tx, %s'.",
            _PATIENCE, _CLIENT,
        )  # fmt: skip
    return asked.exitcode == 0


def _answer(question: Callable[[], bool]) -> None:
    code = 1
    try:
        code = 0 if question() else 1
    finally:
        # Skip the exit handlers that the component has registered, since this process is only a
        # fork.
        os._exit(code)
