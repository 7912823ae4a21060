"""A Spark session with Delta Lake: found in this process, or started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_tx.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "4.4.0"
CONF: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
REMEDY = (
    "Start Spark with the jars (spark.jars.packages=io.delta:delta-spark_<Spark's major.minor>_2.13:<version>, or "
    f"spark.jars) and {', '.join(f'{name}={value}' for name, value in CONF.items())}."
)


def started(conf: Mapping[str, str]) -> SparkSession:
    """Take the session of this process; if there is none, start one with Delta Lake and `conf`."""
    import pyspark
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is not None:
        return found
    release = ".".join(pyspark.__version__.split(".")[:2])
    settings = {**CONF, "spark.ui.enabled": "false", **conf}
    if "spark.jars" not in conf:
        settings.setdefault("spark.jars.packages", f"io.delta:delta-spark_{release}_2.13:{VERSION}")
    builder = SparkSession.builder.appName("airflow_tx DeltaState")
    for name, value in settings.items():
        if value:
            builder = builder.config(name, value)
    return builder.getOrCreate()


def check_session(session: SparkSession, state: str) -> None:
    """Refuse a session without Delta Lake, by a StateError that names the missing settings."""
    missing = [
        name for name, value in CONF.items() if value not in (session.conf.get(name, "") or "")
    ]
    if missing:
        raise StateError(
            state=state, problem=f"the Spark session lacks {' and '.join(missing)}", remedy=REMEDY
        )


def spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, OSError
