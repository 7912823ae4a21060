"""What the servers of the whole run are started with: Spark in this process is one JVM with every jar of every test."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.jars import DELTA, JarsUnavailable, delta_jars, fetch_jars, kafka_connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Of the clients of the fixture `kafka`.
KAFKA_PASSWORD = 'sesame-"opens"'


@contextmanager
def skipped_without_jars() -> Iterator[None]:
    """Skip the test whose jars are not here and cannot be fetched; under CI let it fail."""
    try:
        yield
    except JarsUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def jdbc_jars() -> list[Path]:
    """The drivers of PostgreSQL and MySQL.

    :raises JarsUnavailable: they are not here and cannot be fetched.
    """
    drivers = fetch_jars("org.postgresql", "postgresql", "42.7.7")
    return [*drivers, *fetch_jars("com.mysql", "mysql-connector-j", "9.3.0")]


def skip_without(jars: Callable[[], list[Path]]) -> None:
    """Skip a test whose jars cannot be had, except in CI."""
    with skipped_without_jars():
        jars()


def available_kafka_jars() -> list[Path]:
    """Spark's connector to Kafka, if it can be had."""
    return _available(kafka_connector_jars)


@contextmanager
def in_this_process() -> Iterator[SparkSession]:
    """Start the JVM; what it cannot be given for want of jars is skipped by the tests that need it."""
    from pyspark.sql import SparkSession

    delta = _available(delta_jars)
    settings = {
        **(DELTA if delta else {}),
        "spark.jars": ",".join(map(str, [*delta, *_available(jdbc_jars)])),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Every statement is new and small: to compile it takes longer than to run it.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        # That of no server.
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    # A UDF of a test needs this Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    # It tells of its end when the streams of the test run are closed already.
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _available(jars: Callable[[], list[Path]]) -> list[Path]:
    try:
        return jars()
    except JarsUnavailable:
        return []
