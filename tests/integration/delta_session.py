"""A small Spark with Delta Lake in this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_tx.state.delta.state import CONF
from airflow_tx.testing.jars import delta_jars, skipped_without_jars
from tests.integration.fresh_jvm import end_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_session() -> Iterator[SparkSession]:
    """A session until the generator is closed; where its jars cannot be had, the test is skipped, except in CI."""
    from pyspark.sql import SparkSession

    with skipped_without_jars():
        jars = delta_jars()
    settings = {
        **CONF,
        "spark.jars": ",".join(map(str, jars)),
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
    }
    # A UDF of a test needs this Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    end_jvm()
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    # It tells of its end when the streams of the test run are closed already.
    logging.getLogger("py4j").setLevel(logging.WARNING)
