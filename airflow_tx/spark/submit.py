"""The parts of submitting an application that do not need Airflow: arguments, paths, environment, and errors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from airflow_tx.base.errors import (
    ConfigError,
    FailedBatch,
    RowsRefused,
    SourceNotSettled,
    TxError,
)
from airflow_tx.ledger import TransactionAttempt, digest
from airflow_tx.outputs import Descriptor, TryDir

# --- release ------------------------------------------------------------------------------------------------------
# Spark for Python consists of two packages, which must have the same release.


WITH_JARS = "pip install 'airflow-provider-tx[pyspark]'"
"""The pip command that installs the programs and jars of Spark: spark-submit, a local Spark, and ZooKeeper."""


def check_release() -> None:
    """Refuse a folder `pyspark/` with files of two releases.

    The packages pyspark and pyspark-client install the same modules. The modules then come from the package that was
    installed last, and the jars from pyspark.

    :raises ConfigError: both packages are installed, with different releases.
    """
    found = {}
    for package in ("pyspark", "pyspark-client"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    releases = {_release(each) for each in found.values()}
    if len(releases) < 2:
        return
    client = found["pyspark-client"]
    wanted = " ".join(f"'{package}=={_release(client)}.*'" for package in found)
    remedy = (
        f"pyspark-client is {client}, and both packages install the folder pyspark/, so they must have the same "
        "release. "
        f"Install both again: pip install --force-reinstall --no-deps {wanted}"
    )
    raise ConfigError(option="pyspark", value=found["pyspark"], remedy=remedy)


def _release(installed: str) -> str:
    """Return the first two numbers of a version. Patch releases do not change the interface of modules and jars."""
    return ".".join(installed.split(".")[:2])


# --- submit -------------------------------------------------------------------------------------------------------


# The maximum length of a single argument on Linux, in bytes.
_LONGEST_ARGUMENT = 128 * 1024 - 1


class ApplicationFailed(TxError):
    """An application has ended without producing its output."""

    template = "Spark application {application} of task {task} in transaction {txid}.{attempt} failed: {reason}"


class KeyValues(Protocol):
    """The values that Airflow keeps for a task across all its tries (``task_state_store``)."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...

    def delete(self, key: str) -> None: ...


class AttemptStore:
    """The values that a task stores for one attempt and one request, with a common prefix.

    Airflow keeps the values of a task over its tries and clears. Without the prefix, the next attempt would continue
    with the driver of the last attempt, which processes other rows. The same would happen if the inputs were written
    again, or if an attempt has the same numbers after a repair of the ledger.

    :param store: the store of all attempts of the task.
    :param attempt: the attempt.
    :param request: the `request_digest` of the driver's work.
    """

    def __init__(self, store: KeyValues, attempt: TransactionAttempt, request: str) -> None:
        self._store = store
        self._prefix = f"tx-{attempt}-{request}"

    def _key(self, key: str) -> str:
        return f"{self._prefix}-{key}"

    def get(self, key: str, default: Any = None) -> Any:
        return self._store.get(self._key(key), default)

    def set(self, key: str, value: Any, **options: Any) -> None:
        self._store.set(self._key(key), value, **options)

    def delete(self, key: str) -> None:
        self._store.delete(self._key(key))


def request_digest(
    descriptor: Descriptor, application: str, own: Sequence[object] | None, conn_id: str
) -> str:
    """Return a digest of everything that decides a driver's output and where it runs, except the try.

    :param own: the arguments of the application.
    """
    of_any_try = replace(descriptor, task=replace(descriptor.task, task_try=""))
    return digest(
        [of_any_try.to_json(), application, [str(argument) for argument in own or ()], conn_id]
    )


def application_args(descriptor_uri: str, own: Sequence[object] | None) -> list[str]:
    """Return all arguments of the application. The first argument is the URI of the descriptor.

    :raises ConfigError: an argument is too long for the system.
    """
    arguments = [descriptor_uri, *(str(argument) for argument in own or ())]
    for argument in arguments:
        if len(argument.encode()) > _LONGEST_ARGUMENT:
            remedy = (
                f"It has {len(argument.encode())} bytes, but the system allows {_LONGEST_ARGUMENT}: pass the name of "
                "a file."
            )
            raise ConfigError(option="application_args", value=argument[:40] + "...", remedy=remedy)
    return arguments


def find_application(application: str, dag_file: str) -> str:
    """Return the path or the URI of an application.

    A relative path is searched next to the DAG file, and one folder above.

    :raises ConfigError: the file does not exist.
    """
    if "://" in application:
        return application
    folder = Path(dag_file).parent
    # Joining an absolute path to a folder returns the absolute path.
    tried = dict.fromkeys([folder / application, folder.parent / application])
    for path in tried:
        if path.is_file():
            return os.path.abspath(path)
    remedy = f"No such file: {' or '.join(map(str, tried))}. Give a path relative to the DAG file, or an absolute one."
    raise ConfigError(option="application of SparkBatchOperator", value=application, remedy=remedy)


def driver_environment(
    environ: Mapping[str, str], *, dag_file: str, binary: str, local: bool
) -> dict[str, str]:
    """Return the environment variables that a driver on this machine needs in addition to `environ`.

    With these variables, the driver uses this Python, its packages, and the modules next to the DAG file.

    :param dag_file: path of the DAG file.
    :param binary: the name or the path of spark-submit. If it is not on PATH, the spark-submit of this Python is used.
    :param local: whether the executors are also on this machine.
    :raises ConfigError: the binary does not exist, or its release differs from this Python's pyspark-client.
    """
    added = {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [environ.get("PYTHONPATH"), str(Path(dag_file).parent)])
        )
    }
    # The driver may import Airflow. Without this variable, Airflow would connect to its database,
    # which is hidden from tasks.
    added["_AIRFLOW__AS_LIBRARY"] = "1"
    path = environ.get("PATH", os.defpath)
    if shutil.which(binary, path=path) is None:
        added["PATH"] = path = os.pathsep.join([path, str(Path(sys.executable).parent)])
    program = shutil.which(binary, path=path)
    if program is None:
        remedy = (
            f"No such command: put Spark's bin on PATH, give its path, or install it: {WITH_JARS}"
        )
        raise ConfigError(option="spark_binary of SparkBatchOperator", value=binary, remedy=remedy)
    if Path(program).parent == Path(sys.executable).parent:
        check_release()
    if "PYSPARK_PYTHON" not in environ:
        added["PYSPARK_DRIVER_PYTHON"] = environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)
        if local:
            added["PYSPARK_PYTHON"] = sys.executable
    if local and "SPARK_LOCAL_IP" not in environ:
        # No other machine connects to the driver. The name of this machine may have no address.
        added["SPARK_LOCAL_IP"] = "127.0.0.1"
    return added


def explain(where: TryDir, application: str, error: BaseException) -> TxError:
    """Return the error for a failed application. Its text is the application's own failure, or `error`."""
    from airflow_tx.spark.app import read_failure

    failure = read_failure(where)
    if failure and failure.on_purpose:
        return FailedBatch(failure.message)
    if failure and failure.refused:
        ours = SourceNotSettled if failure.error == SourceNotSettled.__name__ else RowsRefused
        return ours.from_stored(failure.refused)
    if failure is None and isinstance(error, TxError):
        return error
    # Use only the first line of spark-submit's text, since the log already contains all lines.
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = (
        str(failure) if failure else f"the driver printed no reason; its log is above ({lines[0]})"
    )
    return ApplicationFailed(
        application=os.path.basename(application),
        task=str(where.task),
        txid=where.attempt.txid,
        attempt=where.attempt.attempt,
        reason=reason,
    )
