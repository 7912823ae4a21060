"""A JVM for the next Spark session of this process: jars of a session are on the driver's path only if it starts it."""

from __future__ import annotations

from typing import Any


def end_jvm() -> None:
    """End the JVM that an earlier session of this process has left, if there is one."""
    from pyspark import SparkContext

    context: Any = SparkContext
    assert context._active_spark_context is None, "a session is still in use"
    gateway = context._gateway
    if gateway is None:
        return
    context._gateway = context._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which it ends
    gateway.proc.wait(30)
