"""Other programs that read a Delta table without this package: duckdb, polars, and Spark with delta-spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers.jars import DELTA, delta_jars

PACKAGES = Path(sys.prefix) / "readers"
"""The folder in which `script/env readers` installs the readers.

The cluster's image has them in its environment.
"""
Rows = list[tuple[Any, ...]]
Reader = Callable[[str, Mapping[str, str], str], Rows]
_SPARK = {
    **DELTA,
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
}


def are_installed() -> bool:
    """Return whether duckdb and polars are installed."""
    _find()
    return all(find_spec(name) is not None for name in ("duckdb", "polars"))


def read_by_duckdb(uri: str, options: Mapping[str, str], query: str) -> Rows:
    """Run a query in duckdb, which has its own reader of Delta tables.

    :param options: the storage options of deltalake. They override the `AWS_*` variables of the environment.
    :param query: an SQL query on the table `t`.
    """
    _find()
    import duckdb  # type: ignore[import-not-found, unused-ignore]

    # duckdb cannot check the signature of an extension from a Python package.
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{_extension('delta')}'")
    connection.execute("SET TimeZone = 'UTC'")
    if "://" in uri:
        connection.execute(f"LOAD '{_extension('httpfs')}'")
        connection.execute(f"CREATE SECRET (TYPE s3, {_secret(_given(uri, options))})")
    connection.execute(f"CREATE VIEW t AS SELECT * FROM delta_scan('{_quoted(uri)}')")
    return [tuple(row) for row in connection.execute(query).fetchall()]


def read_by_polars(uri: str, options: Mapping[str, str], query: str) -> Rows:
    """Run a query in polars, which has its own reader of Parquet. See `read_by_duckdb` for the parameters."""
    _find()
    import polars  # type: ignore[import-not-found, unused-ignore]

    table = polars.scan_delta(uri, storage_options=_given(uri, options))
    return list(polars.SQLContext(t=table).execute(query).collect().rows())


def read_by_spark(uri: str, options: Mapping[str, str], query: str) -> Rows:
    """Run a query in a new Spark session with delta-spark. See `read_by_duckdb` for the parameters."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    own = {**_SPARK, "spark.jars": ",".join(map(str, delta_jars()))}
    for name, value in own.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        spark.read.format("delta").load(uri.replace("s3://", "s3a://", 1)).createOrReplaceTempView("t")
        return [tuple(row) for row in spark.sql(query).collect()]
    finally:
        spark.stop()


READERS: dict[str, Reader] = {
    "duckdb": read_by_duckdb,
    "polars": read_by_polars,
    "Spark": read_by_spark,
}


def _find() -> None:
    if str(PACKAGES) not in sys.path and PACKAGES.is_dir():
        sys.path.append(str(PACKAGES))


def _extension(name: str) -> str:
    spec = find_spec(f"duckdb_extension_{name}")
    assert spec is not None
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.rglob(f"{name}.duckdb_extension")
    return _quoted(str(found))


def _given(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    if "://" not in uri:
        return dict(options)
    around = {name.lower(): value for name, value in os.environ.items() if name.startswith("AWS_")}
    return {**around, **options}


def _secret(given: Mapping[str, str]) -> str:
    server = urlsplit(given["aws_endpoint_url"])
    parts = {
        "KEY_ID": given["aws_access_key_id"],
        "SECRET": given["aws_secret_access_key"],
        "REGION": given["aws_region"],
        "ENDPOINT": server.netloc,
        "URL_STYLE": "path",
        "USE_SSL": str(server.scheme == "https").lower(),
    }
    return ", ".join(f"{name} '{_quoted(value)}'" for name, value in parts.items())


def _quoted(text: str) -> str:
    return text.replace("'", "''")
