"""`batch_app`: the same function runs under spark-submit and in a Spark Connect session."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.base.connections import all_for_airflow
from airflow_tx.base.errors import (
    ConfigError,
    FailedBatch,
    RowsRefused,
    SourceNotSettled,
    StagingError,
    TxError,
)
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import file_digest
from airflow_tx.outputs import (
    Descriptor,
    OutputRef,
    StagingArea,
    TryDir,
    dir_of,
    read_descriptor,
    read_manifest,
)
from airflow_tx.spark.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- failure ------------------------------------------------------------------------------------------------------
# An application that fails writes the reason to a file next to its output. The task that submitted
# the application reads this file. The output of spark-submit is the log of a whole cluster, and in
# cluster mode it is on another machine.


FAILED = "_failed.json"
_LONGEST = 2000
# The last line of the traceback when a Python worker raises an error of airflow_tx. Spark reports
# the traceback.
_IN_A_WORKER = re.compile(r"^airflow_tx(?:\.\w+)*\.(?P<error>\w+): (?P<message>.+)$", re.MULTILINE)
# py4j reports an error in the JVM with this line, the error, its stack, and its causes.
_IN_THE_JVM = "An error occurred while calling "
_CAUSE = re.compile(r"^(?:: |Caused by: )(?P<error>[\w.$]+)(?:: (?P<message>.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """The reason why an application has failed.

    :param error: the class of the exception.
    :param message: the first line of the exception's message.
    :param on_purpose: whether the application has raised `FailedBatch`, in the driver or in an executor.
    :param refused: the fields of the exception, if it is a `RowsRefused` or a `SourceNotSettled`.
    """

    error: str
    message: str
    on_purpose: bool
    refused: dict[str, Any] | None = None

    def __str__(self) -> str:
        if self.on_purpose:
            return self.message
        return f"{self.error}: {self.message}" if self.message else self.error

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Create the failure for an exception, with the first line of its message."""
        if (root := worker_cause(error) or jvm_cause(error)) is not None:
            return root
        lines = str(error).strip().splitlines()
        message = lines[0][:_LONGEST] if lines else ""
        refused = None
        if isinstance(error, RowsRefused | SourceNotSettled):
            refused = error.stored_fields
        return cls(type(error).__name__, message, isinstance(error, FailedBatch), refused)


def worker_cause(error: BaseException) -> Failure | None:
    """Return the airflow_tx error that a Python worker has raised, or None if Spark reports another error."""
    is_of_spark = type(error).__module__.startswith(("pyspark.", "py4j."))
    ours = _IN_A_WORKER.search(str(error)) if is_of_spark else None
    if ours is None:
        return None
    message = ours["message"].strip()[:_LONGEST]
    return Failure(ours["error"], message, on_purpose=ours["error"] == FailedBatch.__name__)


def jvm_cause(error: BaseException) -> Failure | None:
    """Return the root cause of a JVM error that py4j reports, or None for any other error."""
    causes = [*_CAUSE.finditer(str(error))] if str(error).startswith(_IN_THE_JVM) else []
    if not causes:
        return None
    return Failure(
        causes[-1]["error"], (causes[-1]["message"] or "").strip()[:_LONGEST], on_purpose=False
    )


def write_failure(where: TryDir, failure: Failure) -> None:
    where.files.write(where.child(FAILED), json.dumps(asdict(failure)).encode())


def read_failure(where: TryDir) -> Failure | None:
    """Return the failure that the application has written, or None if it was killed or has not started."""
    try:
        return Failure(**json.loads(where.files.read(where.child(FAILED))))
    except (FileNotFoundError, ValueError, TypeError):
        return None


# --- app ----------------------------------------------------------------------------------------------------------


Function = Callable[["SparkSession", Batch], Any]


class BatchApp:
    """An application: a function that processes one batch, and the steps before and after the call.

    :param function: ``main(spark, batch)``, which reads `batch` and emits at least one output.
    :ivar code: the digest of the function's file. It is "" for a notebook or an archive, which has no such file.
    :ivar small: the names of the outputs that had few rows in the last batch.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.small: set[str] = set()
        file = function.__code__.co_filename
        self.name = os.path.basename(file)
        self.code = ""  # A notebook or an archive has no such file.
        with suppress(OSError):
            self.code = file_digest(Path(file).read_bytes())
        self.__doc__ = function.__doc__

    def __call__(self, spark: SparkSession, batch: Batch) -> Any:
        """Call only the function, without the steps around it, for a test."""
        return self.function(spark, batch)

    def run(self, spark: SparkSession, batch: Batch) -> dict[str, OutputRef]:
        """Call the function, and make its output visible. After an error, write the reason next to the output.

        The manifest is written last. If the try dies before that, its output is incomplete, and no task reads it. If
        this try has already written its manifest, the function is not called again.

        :return: references to the outputs, by name.
        """
        where = batch.descriptor
        with suppress(StagingError):
            # Some clusters restart a driver that has ended or has lost its node.
            return read_manifest(dir_of(StagingArea(where.root), where)).refs()
        try:
            self.function(spark, batch)
            failpoint(
                "spark.batch",
                topology=where.topology,
                txid=batch.txid,
                attempt=batch.attempt.attempt,
                task=where.task.task_id,
            )
            return batch.finish(self.name, self.code)
        except Exception as error:
            known = batch.explain_error(error)
            _report(where, known or error)
            if known is not None:
                raise known from error
            raise
        except BaseException as error:
            _report(where, error)
            raise
        finally:
            batch.close()


def batch_app(function: Function) -> BatchApp:
    """Turn the function ``main(spark, batch)`` into an application.

    In an executed script, the decorator processes a batch and ends the process. The first argument of the script is the
    URI of the batch's descriptor. The exit code is 0 if all output is visible. Otherwise the last line on stderr is the
    reason. In an imported module, the decorator returns a `BatchApp`.

    :param function: a function of the Spark session and the batch of a transaction.
    """
    if function.__module__ != "__main__":
        return BatchApp(function)
    # The code below the function has not run yet. So `main` runs the whole script again under
    # another module name, and processes the batch with the application in that module. This
    # execution of the script ends here.
    sys.exit(main(function.__code__.co_filename, sys.argv[1:]))


def load_app(script: str) -> BatchApp:
    """Return the application defined in a script.

    :raises ConfigError: the script has no application, or several applications.
    """
    name = os.path.splitext(os.path.basename(script))[0]
    found = [
        value
        for value in runpy.run_path(script, run_name=name).values()
        if isinstance(value, BatchApp)
    ]
    apps = {app.function for app in found}
    if len(apps) != 1:
        remedy = "Decorate exactly one function main(spark, batch) with @batch_app."
        raise ConfigError(
            option="application",
            value=script,
            remedy=f"The file has {len(apps)} batch apps. {remedy}",
        )
    return found[0]


def main(script: str, arguments: Sequence[str]) -> int:
    """Run the application in a script under spark-submit.

    :param arguments: the URI of the descriptor, followed by the arguments of the application.
    :return: the exit code.
    """
    name = os.path.basename(script)
    if not arguments:
        return _failed(
            f"{name}: no batch was passed. Submit the application with SparkBatchOperator, which passes a descriptor."
        )
    descriptor = None
    all_for_airflow()
    try:
        descriptor = read_descriptor(arguments[0])
        app = load_app(script)
        refs = _in_session(app, descriptor, arguments[1:])
    except TxError as error:
        if descriptor:
            _report(descriptor, error)
        return _failed(f"{name}, {descriptor or arguments[0]}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever an application raises ends up in one line
        if descriptor:
            _report(descriptor, error)
        traceback.print_exc()
        return _failed(f"{name}, {descriptor or arguments[0]}: {Failure.of(error)}")
    emitted = ", ".join(f"{ref.name} ({ref.rows} rows)" for ref in refs.values())
    print(f"{name}, {descriptor}: emitted {emitted}", flush=True)
    return 0


def _in_session(
    app: BatchApp, descriptor: Descriptor, arguments: Sequence[str]
) -> dict[str, OutputRef]:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(str(descriptor)).getOrCreate()
    try:
        return app.run(spark, Batch(descriptor, spark, arguments))
    finally:
        spark.stop()


def _report(descriptor: Descriptor, error: BaseException) -> None:
    # If the staging area is not writable, that is probably the reported error. A second error must
    # not hide it.
    with suppress(Exception):
        write_failure(dir_of(StagingArea(descriptor.root), descriptor), Failure.of(error))


def _failed(line: str) -> int:
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
    return 1
