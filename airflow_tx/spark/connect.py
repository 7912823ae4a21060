"""Sessions on a Spark Connect server that is already running. Each batch gets a session, which is always closed."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]

from airflow_tx.base.errors import TxError
from airflow_tx.base.rows import spark_reader
from airflow_tx.outputs import (
    Descriptor,
    Manifest,
    StagingArea,
    TryDir,
    dir_of,
    literal,
    read_manifest,
    scan_output,
)
from airflow_tx.spark.app import BatchApp, load_app
from airflow_tx.spark.batch import Batch
from airflow_tx.spark.submit import check_release, explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- connect ------------------------------------------------------------------------------------------------------


PORT = 15002
# The maximum wait for a server that does not listen, in seconds.
SERVER_PATIENCE = 30.0
# If this environment variable is set, PySpark uses client functions and types in the whole process.
_MODE = "SPARK_CONNECT_MODE_ENABLED"


class _ClientMode:
    """PySpark's client mode, which is on while any thread of this process has an open session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._before: str | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count this session as open until the `with` block ends."""
        with self._lock:
            if not self._sessions:
                self._before = os.environ.get(_MODE)
                os.environ[_MODE] = "1"
            self._sessions += 1
        try:
            yield
        finally:
            with self._lock:
                self._sessions -= 1
                if not self._sessions:
                    os.environ.pop(_MODE, None)
                    os.environ.update({} if self._before is None else {_MODE: self._before})


_mode = _ClientMode()


class SparkUnreachable(TxError):
    """A Spark Connect server does not respond."""

    template = (
        "Spark Connect server of {server} cannot be reached: {reason}.",
        "Nothing was processed. Start the server, or correct its host and port. The task tries again.",
    )


def import_client() -> None:
    """Import PySpark's client. The import also works in a program without a file.

    On macOS and for `run_as_user`, Airflow starts tasks with ``python -c``. PySpark mistakes such a program for its own
    tests. It would load the tests, and end the process if the jars are not installed.
    """
    main = vars(sys.modules["__main__"])
    nameless = "__file__" not in main
    if nameless:
        main["__file__"] = sys.executable
    try:
        importlib.import_module("pyspark.sql.connect.session")
    finally:
        if nameless:
            del main["__file__"]


@contextmanager
def session(
    url: str,
    *,
    tag: str,
    server: str,
    patience: float = SERVER_PATIENCE,
    traces: SessionTraces | None = None,
) -> Iterator[SparkSession]:
    """Open a session for a `with` block. At its end, the server ends all work of the session.

    :param url: ``sc://host:port/;parameters``. It may contain a token, so errors do not show it.
    :param tag: the tag of the session's work in Spark's UI.
    :param server: the name of the server for error messages, such as the id of the connection.
    :param patience: the longest time to wait for a server that does not listen, in seconds.
    :param traces: an observer that finds out whether the session was changed.
    :raises SparkUnreachable: the server does not listen.
    :raises ConfigError: pyspark-client and pyspark are of different releases.
    """
    check_release()
    # Check the port first. PySpark itself would try to connect for minutes.
    _await_port(url, server, patience)
    with _mode.entered():
        import_client()
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        channel = DefaultChannelBuilder(url)
        if traces is not None:
            channel.add_interceptor(traces)
        spark = cast("SparkSession", ConnectSession.builder.channelBuilder(channel).create())
        try:
            spark.addTag(tag.replace(",", " "))
            yield spark
        finally:
            spark.stop()


def end(spark: SparkSession) -> None:
    """End a session from outside its `with` block, for example when Airflow kills the task."""
    with suppress(Exception):
        spark.interruptAll()
    with suppress(Exception):
        spark.stop()


def rehearse(spark: SparkSession, where: TryDir) -> None:
    """Warm up the server with a small batch, which reads a file, aggregates it, writes the result, and fetches it.

    The server loads and compiles the classes that batches need. After the warm-up, the session and the folder are
    unchanged.

    :param where: a folder that is not used.
    """
    from pyspark.sql import functions as F

    from airflow_tx.spark.observed import RowsObserver

    files = where.files
    file = where.child("rows.csv")
    try:
        files.write(file, b"name,kind,number\na,x,1\nb,y,2\n")
        reader = spark_reader(spark, "csv", {"header": True})
        typed = reader.schema("name string, kind string, number int")
        rows = typed.load(literal(files.spark_uri(file)))
        observer = RowsObserver()
        total = F.coalesce(F.sum("number"), F.lit(0)).alias("total")
        counted = F.count("*").alias("rows")
        sums = observer.reading(rows).groupBy("name", "kind").agg(counted, total)
        observer.write(sums, files.spark_uri(where.child("sums")))
        scan_output(where, "sums")
        observer.fetch(sums)
    finally:
        files.remove_tree(where.name)


@dataclass(frozen=True)
class ConnectApplication:
    """An application that runs in this process, with its Spark session on a server.

    :param path: the file of the application.
    :param arguments: the arguments of the application, which it reads as `batch.args`.
    :param beside: the DAG file. The application can also import modules from its folder.
    """

    path: str
    arguments: tuple[str, ...]
    beside: str

    @property
    def folders(self) -> list[str]:
        """Return the folders that the application can import modules from."""
        return [str(Path(self.path).parent), str(Path(self.beside).parent)]

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Allow imports from `folders` until the `with` block ends."""
        added = self.folders
        sys.path[:0] = added
        try:
            yield
        finally:
            for folder in added:
                sys.path.remove(folder)

    def load(self) -> BatchApp:
        """Execute the application's file, and return the application.

        :raises ConfigError: the file has no application, or several applications.
        """
        return load_app(self.path)


def process(
    spark: SparkSession,
    application: ConnectApplication,
    descriptor: Descriptor,
    load: Callable[[], BatchApp],
) -> Manifest:
    """Process a batch with an application, and return the manifest of the output.

    :param descriptor: the descriptor of the batch.
    :param load: a function that returns the application.
    :raises FailedBatch, ApplicationFailed: the application failed.
    """
    where = dir_of(StagingArea(descriptor.root), descriptor)
    try:
        app = load()
        app.run(spark, Batch(descriptor, spark, application.arguments, app.small))
        return read_manifest(where)
    except Exception as error:
        raise explain(where, application.path, error) from error


def _await_port(url: str, server: str, patience: float) -> None:
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or PORT)
    give_up = time.monotonic() + patience
    while True:
        try:
            socket.create_connection(address, timeout=10).close()
        except OSError as error:
            if time.monotonic() > give_up:
                raise SparkUnreachable(
                    server=server, reason=f"{address[0]}:{address[1]}: {error}"
                ) from None
            time.sleep(0.5)
        else:
            return


# --- session traces -----------------------------------------------------------------------------------------------
# The requests of an application show whether it leaves changes in its session. A lane reuses a
# session without changes, which behaves like a new one, but with its classes already compiled.


# These commands only read, or write files and tables, which all sessions share.
_COMMANDS = frozenset({"write_operation", "write_operation_v2", "merge_into_table_command"})
_QUERY = re.compile(r"\s*(SELECT|WITH|VALUES)\b", re.IGNORECASE)
_CHANGES = frozenset({"set", "unset"})


class SessionTraces(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Observes the requests of one session.

    :ivar found: whether a request may have left a change in the session: a view, a function, a setting, or an unknown
        request.
    """

    def __init__(self) -> None:
        self.found = False

    def intercept_unary_unary(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        self._see(details.method, request)
        return call(details, request)

    def intercept_unary_stream(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        self._see(details.method, request)
        return call(details, request)

    def _see(self, method: str, request: Any) -> None:
        if method.endswith("/ExecutePlan"):
            self.found |= leaves_traces(request.plan)
        elif method.endswith("/Config"):
            self.found |= request.operation.WhichOneof("op_type") in _CHANGES


def leaves_traces(plan: Any) -> bool:
    """Return whether a client's plan may leave a change in its session."""
    kind = plan.WhichOneof("op_type")
    if kind == "root":
        return bool(plan.root.WhichOneof("rel_type") == "catalog")
    if kind != "command":
        return True
    command = plan.command.WhichOneof("command_type")
    if command == "sql_command":
        own = plan.command.sql_command
        return not _QUERY.match(own.input.sql.query if own.HasField("input") else own.sql)
    return command not in _COMMANDS
