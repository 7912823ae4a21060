"""Jars that tests need, fetched once by the Ivy that pyspark ships and kept outside of the repository."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from airflow_tx.base.errors import TxError
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.servers.server import pyspark_jars

DELTA_VERSION = "4.4.0"
# With these, and the jars of Delta Lake, a session reads and changes a `DeltaTable` as a user's does.
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_IVY = """<ivy-module version="2.0" xmlns:maven="http://ant.apache.org/ivy/maven">
  <info organisation="airflow_tx" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{org}" name="{name}" rev="{version}" conf="default->default" transitive="{transitive}">
      {artifact}
    </dependency>
    {exclude}
  </dependencies>
</ivy-module>
"""


class JarsUnavailable(TxError):
    """The registry cannot be reached, and the jars are not here."""

    template = ("{coordinate} cannot be fetched: {reason}.", "Reach a registry once, or put its jars into {folder}.")


def cache_dir() -> Path:
    """Where fetched jars are kept: AIRFLOW_TX_JARS, else below the user's cache directory."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("AIRFLOW_TX_JARS") or caches / "airflow_tx" / "jars")


def kafka_connector_jars() -> list[Path]:
    """Fetch Spark's own connector to Kafka, for the Spark that is installed. Raises as `fetch_jars`."""
    import pyspark

    scala = next(iter(pyspark_jars("spark-core_*.jar"))).name.removeprefix("spark-core_").split("-")[0]
    connector = fetch_jars("org.apache.spark", f"spark-sql-kafka-0-10_{scala}", pyspark.__version__, alone=True)
    # The connector wants that of its own release, which not every registry has; it has not changed since.
    tokens = fetch_jars("org.apache.spark", f"spark-token-provider-kafka-0-10_{scala}", "4.0.0", alone=True)
    pool = fetch_jars("org.apache.commons", "commons-pool2", "2.13.1", alone=True)
    clients = fetch_jars("org.apache.kafka", "kafka-clients", "3.9.2", alone=True)
    return [*connector, *tokens, *pool, *clients]


def delta_jars() -> list[Path]:
    """Fetch Delta Lake for the Spark that is installed. Raises as `fetch_jars`."""
    import pyspark

    release = ".".join(pyspark.__version__.split(".")[:2])
    return fetch_jars("io.delta", f"delta-spark_{release}_2.13", DELTA_VERSION)


def fetch_jars(
    org: str,
    name: str,
    version: str,
    *,
    all_of_it: bool = False,
    alone: bool = False,
    classifier: str = "",
    timeout: float = 180,
) -> list[Path]:
    """A jar and those of its dependencies that are of the same organisation: Spark has the others.

    :param all_of_it: with all of its dependencies, to run without Spark.
    :param alone: without any of them.
    :param classifier: of the jar, if it is not the module's main one.
    :param timeout: seconds that fetching may take.
    :raises JarsUnavailable: they are not here and cannot be fetched.
    """
    folder = cache_dir() / f"{org}-{name}-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(
                f"{org}:{name}:{version}", _module(org, name, version, all_of_it, alone, classifier), folder, timeout
            )
    return sorted(folder.glob("*.jar"))


def _module(org: str, name: str, version: str, all_of_it: bool, alone: bool, classifier: str) -> str:
    own = org.replace(".", r"\.")
    exclude = "" if all_of_it else f'<exclude org="^(?!{own}$).*$" matcher="regexp"/>'
    transitive = str(not alone).lower()
    artifact = f'<artifact name="{name}" type="jar" maven:classifier="{classifier}"/>' if classifier else ""
    return _IVY.format(org=org, name=name, version=version, exclude=exclude, transitive=transitive, artifact=artifact)


def _fetch(coordinate: str, module: str, folder: Path, timeout: float) -> None:
    ivy = next(iter(pyspark_jars("ivy-*.jar")), None)
    if ivy is None:
        reason = "pyspark, whose Ivy fetches them, is not installed with its jars"
        raise JarsUnavailable(coordinate=coordinate, reason=reason, folder=folder)
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    with tempfile.TemporaryDirectory(prefix="jars-", dir=folder.parent) as found:
        wanted, retrieved = Path(found, "ivy.xml"), Path(found, "jars")
        wanted.write_text(module, encoding="utf-8")
        cache = f"-Divy.default.ivy.user.dir={found}/ivy"
        command = [str(java), cache, "-jar", str(ivy), "-ivy", str(wanted), "-confs", "default"]
        command += ["-retrieve", f"{retrieved}/[artifact]-[revision].[ext]"]
        try:
            done = run_command(command, capture_output=True, timeout=timeout)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JarsUnavailable(coordinate=coordinate, reason=type(error).__name__, folder=folder) from None
        if done.returncode != 0 or not list(retrieved.glob(f"{coordinate.split(':')[1]}-*.jar")):
            # Ivy prints the addresses that it tried; they are nobody's business here.
            reason = f"Ivy ended with {done.returncode} and without the jar"
            raise JarsUnavailable(coordinate=coordinate, reason=reason, folder=folder)
        shutil.move(str(retrieved), str(folder))
