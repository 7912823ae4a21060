"""The Spark of this Python: it comes in two packages, and whether they fit each other."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from airflow_tx.errors import ConfigError

WITH_JARS = "pip install 'airflow-provider-tx[pyspark]'"
"""What installs Spark's programs and jars: spark-submit, a local Spark, and ZooKeeper."""


def check_release() -> None:
    """Refuse a folder `pyspark/` that is made of two releases.

    The packages pyspark and pyspark-client own the same modules. The package that was installed last has written
    them, and the jars belong to pyspark.

    :raises ConfigError: both are installed, and they are not of one release.
    """
    found = {}
    for package in ("pyspark", "pyspark-client"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    releases = {_release(each) for each in found.values()}
    if len(releases) < 2:
        return
    client = found["pyspark-client"]
    wanted = " ".join(f"'{package}=={_release(client)}.*'" for package in found)
    remedy = (
        f"pyspark-client is {client}, and both packages own the folder pyspark/, so they must be of one release. "
        f"Install both again: pip install --force-reinstall --no-deps {wanted}"
    )
    raise ConfigError(option="pyspark", value=found["pyspark"], remedy=remedy)


def _release(installed: str) -> str:
    """Give the first two numbers of a version: a patch changes no interface between the modules and the jars."""
    return ".".join(installed.split(".")[:2])
