"""The part of submitting that needs no Airflow: names, arguments, paths, environment, and reading why it failed."""

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
# The Spark of this Python: it comes in two packages, and whether they fit each other.


WITH_JARS = "pip install 'airflow-provider-tx[pyspark]'"
"""What installs Spark's programs and jars: spark-submit, a local Spark, and ZooKeeper."""


def check_release() -> None:
    """Refuse a folder `pyspark/` that is made of two releases.

    The packages pyspark and pyspark-client own the same modules. The package that was installed last has written
    them, and the jars belong to pyspark.

    :raises ConfigError: both are installed, and they are not of one release.
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
        f"pyspark-client is {client}, and both packages own the folder pyspark/, so they must be of one release. "
        f"Install both again: pip install --force-reinstall --no-deps {wanted}"
    )
    raise ConfigError(option="pyspark", value=found["pyspark"], remedy=remedy)


def _release(installed: str) -> str:
    """Give the first two numbers of a version: a patch changes no interface between the modules and the jars."""
    return ".".join(installed.split(".")[:2])


# --- submit -------------------------------------------------------------------------------------------------------


# Linux takes no longer single argument.
_LONGEST_ARGUMENT = 128 * 1024 - 1


class ApplicationFailed(TxError):
    """An application that ended without its output."""

    template = "Spark application {application} of task {task} in transaction {txid}.{attempt} failed: {reason}"


class KeyValues(Protocol):
    """What Airflow keeps for a task over its tries (``task_state_store``)."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...

    def delete(self, key: str) -> None: ...


class AttemptStore:
    """Keys of one attempt, for one request.

    Airflow keeps the values of a task over its tries and clears alike, so the next attempt would take the driver of
    the last one, which works on other rows, for its own. So would a try of the same attempt whose inputs were written
    again, and the attempt that gets the same numbers again when the ledger has been repaired.

    :param store: where all attempts of the task keep theirs.
    :param request: what a driver is to do: its `request_digest`.
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
    """Digest everything that decides what a driver writes and where it runs. The try is not part of it.

    :param own: the application's own arguments.
    """
    of_any_try = replace(descriptor, task=replace(descriptor.task, task_try=""))
    return digest(
        [of_any_try.to_json(), application, [str(argument) for argument in own or ()], conn_id]
    )


def application_args(descriptor_uri: str, own: Sequence[object] | None) -> list[str]:
    """List the arguments of the application: the reference to its batch, then its own.

    :raises ConfigError: if the system takes no argument of that length.
    """
    arguments = [descriptor_uri, *(str(argument) for argument in own or ())]
    for argument in arguments:
        if len(argument.encode()) > _LONGEST_ARGUMENT:
            remedy = f"It has {len(argument.encode())} bytes, the system takes {_LONGEST_ARGUMENT}: pass a file's name."
            raise ConfigError(option="application_args", value=argument[:40] + "...", remedy=remedy)
    return arguments


def find_application(application: str, dag_file: str) -> str:
    """Find the application: a URI or absolute path unchanged, else beside the DAG file, or beside its folder.

    :raises ConfigError: if there is no such file.
    """
    if "://" in application:
        return application
    folder = Path(dag_file).parent
    # An absolute path stays what it is, joined to any folder.
    tried = dict.fromkeys([folder / application, folder.parent / application])
    for path in tried:
        if path.is_file():
            return os.path.abspath(path)
    remedy = f"No such file: {' or '.join(map(str, tried))}. Give a path relative to the DAG file, or an absolute one."
    raise ConfigError(option="application of SparkBatchOperator", value=application, remedy=remedy)


def driver_environment(
    environ: Mapping[str, str], *, dag_file: str, binary: str, local: bool
) -> dict[str, str]:
    """Build what a driver on this machine needs besides `environ`: this Python and its packages, and the DAG's modules.

    :param binary: name or path of spark-submit; where PATH has none, the one of this Python's pyspark is taken.
    :param local: whether the executors are on this machine too.
    :raises ConfigError: if there is no such binary, or it is of another release than this Python's pyspark-client.
    """
    added = {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [environ.get("PYTHONPATH"), str(Path(dag_file).parent)])
        )
    }
    # Code of the driver may import Airflow, which else connects to a database that Airflow hides from tasks.
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
        # Nothing else has to reach it, and the machine's name need not resolve.
        added["SPARK_LOCAL_IP"] = "127.0.0.1"
    return added


def explain(where: TryDir, application: str, error: BaseException) -> TxError:
    """Make the error for a failed application: what it said itself, else what else is known."""
    from airflow_tx.spark.app import read_failure

    failure = read_failure(where)
    if failure and failure.on_purpose:
        return FailedBatch(failure.message)
    if failure and failure.refused:
        ours = SourceNotSettled if failure.error == SourceNotSettled.__name__ else RowsRefused
        return ours.from_stored(failure.refused)
    if failure is None and isinstance(error, TxError):
        return error
    # spark-submit's own words are many lines, and all of them are in the log already.
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = str(failure) if failure else f"it said nothing, its log is above ({lines[0]})"
    return ApplicationFailed(
        application=os.path.basename(application),
        task=str(where.task),
        txid=where.attempt.txid,
        attempt=where.attempt.attempt,
        reason=reason,
    )
