"""A standalone Spark on hosts of its own, from the jars that pyspark ships: a master, and workers that can be lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from typing_extensions import Self

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import JavaServer, pyspark_jars
from tests.cluster.hosts import Host, Network

_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# So soon an application takes a silent executor for lost.
NOTICE_SOON = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "3s",
    "spark.shuffle.io.retryWait": "1s",
}


class _Daemon(JavaServer):
    """A master or a worker on one host."""

    def __init__(self, host: Host) -> None:
        super().__init__(start_timeout=240)
        self.host = host

    def _class(self, name: str, *arguments: str) -> list[str]:
        program = pyspark_jars("spark-core_*.jar")[0].parents[1] / "bin" / "spark-class"
        options = ["--host", self.host.address, "--port", str(self.port), "--webui-port", "0", *arguments]
        return self.host.command(str(program), f"org.apache.spark.deploy.{name}", *options)

    def _environment(self) -> Mapping[str, str]:
        own = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _QUICK, "SPARK_LOCAL_IP": self.host.address}
        return {**os.environ, **own}

    def _serves(self) -> bool:
        with socket.create_connection((self.host.address, self.port), timeout=3):
            return True


class SparkMaster(_Daemon):
    """Gives executors to applications."""

    title = "Spark master"
    slug = "spark-master"

    @property
    def url(self) -> str:
        return f"spark://{self.host.address}:{self.port}"

    def _command(self) -> list[str]:
        return self._class("master.Master")


class SparkWorker(_Daemon):
    """Starts executors; with it they end, and their Python."""

    title = "Spark worker"
    slug = "spark-worker"

    def __init__(self, host: Host, master: str) -> None:
        super().__init__(host)
        self._master = master
        self._registrations = 0

    def _command(self) -> list[str]:
        self._registrations = self._registered()
        work = ["--cores", "3", "--memory", "3g", "--work-dir", str(self.data_dir / "work")]
        return self._class("worker.Worker", *work, self._master)

    def _serves(self) -> bool:
        return self._registered() > self._registrations

    def _registered(self) -> int:
        return self.log.read_text().count("Successfully registered with master") if self.log.exists() else 0


class SparkCluster:
    """A master and two workers, on three hosts; a context manager."""

    def __init__(self, network: Network) -> None:
        self.master = SparkMaster(network.add())
        self.workers = [SparkWorker(network.add(), self.master.url) for _ in range(2)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in (self.master, *self.workers):
                stack.enter_context(each)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)

    @property
    def addresses(self) -> list[str]:
        """Of all of its hosts."""
        return [each.host.address for each in (self.master, *self.workers)]

    @property
    def connection(self) -> dict[str, Any]:
        """As Airflow reads it."""
        return {"conn_type": "spark", "host": f"spark://{self.master.host.address}", "port": self.master.port}

    def await_all(self, reached: Callable[[str], bool]) -> None:
        """Wait until that is true of the address of every worker."""
        eventually(
            lambda: all(reached(each.host.address) for each in self.workers),
            600,
            "every worker of Spark is at work",
            explain=lambda: "\n".join(each.log.read_text()[-1500:] for each in (self.master, *self.workers)),
        )


def driver_settings(host: Host) -> dict[str, str]:
    """Settings of a small application whose driver is on a host, with an executor on each worker."""
    return {
        "spark.driver.host": host.address,
        "spark.driver.bindAddress": host.address,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
    }
