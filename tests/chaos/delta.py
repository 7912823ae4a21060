"""A table of Delta Lake that the driver under fire commits: each process that writes or reads it joins that driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StateUnavailable
from airflow_tx.state.delta.session import spark_errors
from airflow_tx.state.delta.state import DeltaState
from tests.chaos.spark import DRIVER

if TYPE_CHECKING:
    from airflow_tx.state.delta.table import DeltaTable


class FiredDelta(DeltaState):
    """A `DeltaState` in the session of a driver that lives on, as on a cluster: what it was asked by a process that
    is dead by now, it does all the same."""

    _reached = ""

    @property
    def _table(self) -> DeltaTable:
        errors: tuple[type[Exception], ...] = (*spark_errors(), RuntimeError)
        try:
            reached = Path(os.environ[DRIVER]).read_text()
            if reached != self._reached:
                self._spark, self._opened = joined(reached), None
                self._reached = reached
            return super()._table
        except errors as error:
            raise StateUnavailable(state=self.name, where=self.path, reason=f"the driver: {error}") from error


def joined(reached: str) -> Any:
    """Take the session of a driver.

    :param reached: what the driver said of itself.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # That of an earlier driver, if this process had one.
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    port, secret, _ = reached.split()
    os.environ.update({"PYSPARK_GATEWAY_PORT": port, "PYSPARK_GATEWAY_SECRET": secret})
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):  # a driver that this process starts has its own
        del os.environ[name]
    jvm = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jvm=jvm, _jconf=java.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=java, conf=conf))
