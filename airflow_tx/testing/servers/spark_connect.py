"""A real Spark Connect server on this machine, from the jars in pyspark."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_tx.base.errors import TxError
from airflow_tx.spark.submit import WITH_JARS, check_release
from airflow_tx.testing.servers.server import LocalServer, pyspark_jars

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Settings for small batches and a server that runs for minutes: no UI, and few partitions. Java
# uses only its first compiler. The client reads the files, so Spark has too little work for the
# second compiler to save time (docs/lane.md, Costs).
_CONF = {
    "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class LocalSparkConnect(LocalServer):
    """A Spark Connect server on 127.0.0.1, at a free port. As a context manager, it starts and stops the server.

    Its executors are threads of the server, and it uses this Python. The server ends when this process ends, even if
    this process is killed.

    :param folder: the folder for the log and temporary files, which is kept. If it is None, a temporary folder is used
        and removed at the end.
    :param master: the Spark master, such as ``local[2]``.
    :param conf: further settings of Spark.
    :param env: additional environment variables for the processes of the server.
    :param start_timeout: the longest time that a start may take, in seconds.
    """

    title = "Spark Connect"
    slug = "spark-connect"
    poll_interval = 0.1

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        super().__init__(folder, start_timeout=start_timeout)
        self._master = master
        self._conf = {**_CONF, "spark.local.dir": str(self.data_dir / "local"), **(conf or {})}
        self._env = dict(env or {})

    @property
    def folder(self) -> Path:
        return self.data_dir

    @property
    def url(self) -> str:
        """Return the URL for ``SparkSession.builder.remote()``."""
        return f"sc://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        conf = {**self._conf, "spark.connect.grpc.binding.port": str(self.port)}
        settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return [
            _spark_submit(),
            "--master",
            self._master,
            "--class",
            _MAIN,
            *settings,
            "spark-internal",
        ]

    def _environment(self) -> dict[str, str]:
        return {
            **_inherited(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self._env,
        }

    def _serves(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return True

    def _remove_data(self) -> None:
        super()._remove_data()
        shutil.rmtree(self.folder / "local", ignore_errors=True)


def _spark_submit() -> str:
    found = pyspark_jars("spark-connect_*.jar")
    if not found:
        raise TxError(message=f"No Spark Connect server found: pyspark has it. Run: {WITH_JARS}")
    check_release()
    return str(found[0].parents[1] / "bin" / "spark-submit")


def _inherited() -> dict[str, str]:
    # Some variables make this process a Spark Connect client, and would also make the server one.
    ours = (
        "SPARK_REMOTE",
        "SPARK_LOCAL_REMOTE",
        "SPARK_CONNECT_MODE_ENABLED",
        "SPARK_HOME",
        "PYSPARK_DRIVER_PYTHON",
    )
    return {name: value for name, value in os.environ.items() if name not in ours}
