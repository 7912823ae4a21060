"""A real Spark Connect server on this machine, from the jars that pyspark ships."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from airflow_tx.errors import TxError
from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.processes import ProcessFamily

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
# A server of minutes for small batches: no UI, no more partitions than there is work for, and the first compiler only.
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


class LocalSparkConnect:
    """One Spark Connect server on 127.0.0.1 at a free port; a context manager that starts and stops it.

    Its executors are threads of the server, its Python is this one. It ends with this process, even if that is killed.

    :param folder: for its log and its temporary files, kept afterwards; default: a temporary one, removed at the end.
    :param master: of the session, such as ``local[2]``.
    :param conf: settings of Spark, on top of those for a small server.
    :param env: what its processes get besides this process's environment.
    :param start_timeout: seconds that a start may take.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="airflow-tx-spark-connect-")).absolute()
        self.port = _free_port()
        self.log = self.folder / "spark-connect.log"
        self._master = master
        self._conf = {**_CONF, "spark.local.dir": str(self.folder / "local"), **(conf or {})}
        self._env = dict(env or {})
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``SparkSession.builder.remote()``."""
        return f"sc://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> LocalSparkConnect:
        """Start the server and wait until it listens; does nothing if it runs already.

        :raises TxError: pyspark or Java is missing, or the server does not come up.
        """
        if self.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = {**self._conf, "spark.connect.grpc.binding.port": str(self.port)}
        settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        command = [_spark_submit(), "--master", self._master, "--class", _MAIN, *settings, "spark-internal"]
        python = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment = {**_inherited(), **python, **self._env}
        self._process = self._family.spawn(command, env=environment, log=self.log, cwd=self.folder)
        try:
            eventually(self._ended_or_serving, self._start_timeout, "the Spark Connect server listens", interval=0.1)
        except NotInTime as error:
            self.kill()
            raise self._failed(f"did not listen in {self._start_timeout:g} s") from error
        if not self.running:
            self.kill()
            raise self._failed("ended")
        return self

    def kill(self) -> None:
        """End the server with all its processes as a crash would (SIGKILL); nothing is left."""
        if self._process is not None:
            self._family.end()
            self._process = None

    def close(self) -> None:
        """End the server (SIGTERM, after some seconds SIGKILL) and remove its temporary files."""
        if self._process is not None and self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()
        shutil.rmtree(self.folder if self._temporary else self.folder / "local", ignore_errors=True)

    def __enter__(self) -> LocalSparkConnect:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ended_or_serving(self) -> bool:
        if not self.running:
            return True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return True
        return False

    def _failed(self, how: str) -> TxError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        told = " | ".join([line.strip() for line in lines if line.strip() and not line.startswith("\t")][-5:])
        return TxError(message=f"The Spark Connect server on port {self.port} {how}; its log {self.log} ends: {told}")


def _spark_submit() -> str:
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise TxError(message="pyspark, which brings the Spark Connect server, is not installed. pip install pyspark")
    home = Path(found.submodule_search_locations[0])
    if not list((home / "jars").glob("spark-connect_*.jar")):
        raise TxError(message=f"{home}/jars holds no Spark Connect server. Install pyspark, not pyspark-client alone.")
    return str(home / "bin" / "spark-submit")


def _inherited() -> dict[str, str]:
    # What says of this process that it is a client would make the server one.
    ours = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_HOME", "PYSPARK_DRIVER_PYTHON")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
