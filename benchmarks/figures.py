"""How the benchmarks print what they found."""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil  # type: ignore[import-untyped]


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(part * 100) // 100) - 1)]


def spread(values: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, of seconds in milliseconds."""
    middle, most, last = statistics.median(values), percentile(values, 0.99), max(values)
    return f"median {middle * 1000:7.1f} ms   99 % {most * 1000:7.1f} ms   max {last * 1000:7.1f} ms"


def machine() -> str:
    """The processors, and how busy others keep them: figures of a busy machine are too high."""
    load = "/".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{os.cpu_count()} processors, load {load}"


def spark_session() -> Any:
    """A session of Spark."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark: Any = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def processor_seconds() -> float:
    """The processor time of this process and of all that it has started, such as a JVM, living and ended."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:4])
    return total


def quiet() -> None:
    """No lines of the operators between the figures."""
    logging.getLogger("airflow_tx").setLevel(logging.WARNING)
