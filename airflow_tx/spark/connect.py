"""Sessions on a warm Spark Connect server: one per batch, always ended."""

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
# Seconds to wait for a server that does not listen.
SERVER_PATIENCE = 30.0
# PySpark reads it, for the whole process, to use the functions and types of a client.
_MODE = "SPARK_CONNECT_MODE_ENABLED"


class _ClientMode:
    """Whether PySpark is a client: as long as one of the sessions of this process is open, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._before: str | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one session more within the block."""
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
    """A Spark Connect server that does not answer."""

    template = (
        "Spark Connect server of {server} cannot be reached: {reason}.",
        "Nothing was processed. Start the server, or correct host and port; the task tries again.",
    )


def import_client() -> None:
    """Import PySpark's client, in a program without a file too.

    Airflow starts tasks by ``python -c`` on macOS and for `run_as_user`. PySpark takes such a program for its own
    tests. It would load them, and end the process where the jars are not installed.
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
    """Open a session for the block. When the block ends, everything that the session runs ends on the server.

    :param url: ``sc://host:port/;parameters``; it may hold a token and is not shown.
    :param tag: shows the work of the session in Spark's UI.
    :param server: how messages name it, such as the connection.
    :param patience: seconds to wait for a server that does not listen.
    :param traces: sees what is left in the session.
    :raises SparkUnreachable: it does not.
    :raises ConfigError: the client is not of the release of the pyspark beside it.
    """
    check_release()
    # PySpark itself would try for minutes.
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
    """End a session from outside of its block, as when its task is killed."""
    with suppress(Exception):
        spark.interruptAll()
    with suppress(Exception):
        spark.stop()


def rehearse(spark: SparkSession, where: TryDir) -> None:
    """Let the server load and compile what batches need: read a small file, sum it up, write and fetch the sums.

    Nothing is left in the session or in the folder.

    :param where: a folder of its own.
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
    """An application that runs in this process, in a session on a server.

    :param arguments: as `batch.args`.
    :param beside: a file whose folder can be imported from, besides the application's own: the DAG file.
    """

    path: str
    arguments: tuple[str, ...]
    beside: str

    @property
    def folders(self) -> list[str]:
        """List the folders that it imports from."""
        return [str(Path(self.path).parent), str(Path(self.beside).parent)]

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let it import modules beside it, as long as the block."""
        added = self.folders
        sys.path[:0] = added
        try:
            yield
        finally:
            for folder in added:
                sys.path.remove(folder)

    def load(self) -> BatchApp:
        """Execute its file.

        :raises ConfigError: it has no application, or more than one.
        """
        return load_app(self.path)


def process(
    spark: SparkSession,
    application: ConnectApplication,
    descriptor: Descriptor,
    load: Callable[[], BatchApp],
) -> Manifest:
    """Let an application process a batch; what it has emitted.

    :param load: gives its function.
    :raises FailedBatch, ApplicationFailed: it failed.
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
# The traces of an application in its session on a server, seen in its requests to the server.
#
# A session without traces is as good as a new one, and has its classes compiled.


# They only read, or write files and tables, which all sessions see.
_COMMANDS = frozenset({"write_operation", "write_operation_v2", "merge_into_table_command"})
_QUERY = re.compile(r"\s*(SELECT|WITH|VALUES)\b", re.IGNORECASE)
_CHANGES = frozenset({"set", "unset"})


class SessionTraces(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Sees the requests of one session.

    :ivar found: whether something may stay in it: a view, a function, a setting, or an unknown request.
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
    """Ask whether a plan, as a client sends it, may leave something in its session."""
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
