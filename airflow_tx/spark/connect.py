"""Sessions on a warm Spark Connect server: one per batch, always ended."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_tx.errors import TxError
from airflow_tx.spark.app import load_app
from airflow_tx.spark.batch import Batch
from airflow_tx.staging import Descriptor, OutputRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT = 15002
# How PySpark knows, for the whole process, that functions and types are those of a client.
_MODE = "SPARK_CONNECT_MODE_ENABLED"


class SparkUnreachable(TxError):
    """A Spark Connect server that does not answer."""

    template = (
        "Spark Connect server of {server} cannot be reached: {reason}. Nothing was processed. Start the server, or "
        "correct host and port; the task tries again."
    )


@contextmanager
def session(url: str, *, tag: str, server: str, patience: float = 30.0) -> Iterator[SparkSession]:
    """A session of its own as long as the block; with it, whatever it still runs ends on the server.

    :param url: ``sc://host:port/;parameters``; it may hold a token and is not shown.
    :param tag: shows the work of the session in Spark's UI.
    :param server: how messages name it, such as the connection.
    :param patience: seconds to wait for a server that does not listen.
    :raises SparkUnreachable: it does not.
    """
    # PySpark itself would try for minutes.
    _await_port(url, server, patience)
    from pyspark.sql import SparkSession

    before = os.environ.get(_MODE)
    spark = SparkSession.builder.remote(url).create()
    try:
        spark.addTag(tag.replace(",", " "))
        yield spark
    finally:
        spark.stop()
        if before is None:
            os.environ.pop(_MODE, None)


def end(spark: SparkSession) -> None:
    """End a session from outside of its block, as when its task is killed."""
    with suppress(Exception):
        spark.interruptAll()
    with suppress(Exception):
        spark.stop()


def process(
    spark: SparkSession, script: str, descriptor: Descriptor, arguments: Sequence[str], *, beside: str
) -> dict[str, OutputRef]:
    """Run a script's application in a session, in this process.

    :param beside: a file whose folder can be imported from, besides the script's own: that of the DAG.
    :return: references to what was emitted, by name.
    """
    added = [str(Path(script).parent), str(Path(beside).parent)]
    sys.path[:0] = added
    try:
        return load_app(script).run(spark, Batch(descriptor, spark, arguments))
    finally:
        for folder in added:
            sys.path.remove(folder)


def _await_port(url: str, server: str, patience: float) -> None:
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or PORT)
    give_up = time.monotonic() + patience
    while True:
        try:
            socket.create_connection(address, timeout=10).close()
        except OSError as error:
            if time.monotonic() > give_up:
                raise SparkUnreachable(server=server, reason=f"{address[0]}:{address[1]}: {error}") from None
            time.sleep(0.5)
        else:
            return
