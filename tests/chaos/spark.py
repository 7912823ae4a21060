"""A Spark under fire: a driver that all tasks share by Spark Connect, and its own executor."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_tx.testing.processes import marked
from airflow_tx.testing.servers.server import LocalServer, pyspark_jars

DRIVER = "AIRFLOW_TX_CHAOS_DRIVER"
"""Names the file in which a driver says what its process is."""
_ROOT = Path(__file__).parents[2]
# What says of a process that it is a client of Spark Connect would make the driver one.
_OURS = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_DRIVER_PYTHON")
_EXECUTED_BY = {"CoarseGrainedExecutorBackend": "Spark executor", "pyspark/daemon": "Python of Spark's executor"}


class LocalSpark(LocalServer):
    """A driver with a Connect server in it, whose executor is another JVM; `port` is that of Spark Connect.

    :param told: the file named by DRIVER.
    """

    title = "Spark"
    slug = "spark"
    poll_interval = 0.2

    def __init__(self, told: Path) -> None:
        super().__init__(start_timeout=240)
        self._told = told

    @property
    def pid(self) -> int:
        """The JVM of the driver."""
        return int(self._told.read_text())

    def workers(self) -> list[tuple[str, int]]:
        """What works for the driver now: the name of the victim, and the process."""
        found = [(pid, _command_of(pid)) for pid in marked(self.mark)]
        return [
            (victim, pid)
            for pid, command in found
            for part, victim in _EXECUTED_BY.items()
            if part in command.replace("pyspark.daemon", "pyspark/daemon")
        ]

    def _prepare(self) -> None:
        self._told.unlink(missing_ok=True)
        home = self.data_dir / "home"
        if not home.exists():
            # A Spark home of its own: executors work in a folder there.
            (home / "work").mkdir(parents=True)
            for entry in pyspark_jars("spark-core_*.jar")[0].parents[1].iterdir():
                if entry.name != "work":
                    (home / entry.name).symlink_to(entry)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.spark_driver", str(self.port), str(self.data_dir / "local")]

    def _environment(self) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        own = {"PYTHONPATH": str(_ROOT), "SPARK_HOME": str(self.data_dir / "home"), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**inherited, **own, "PYSPARK_PYTHON": sys.executable, DRIVER: str(self._told)}

    def _serves(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2):
            return self._told.exists()


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:  # it has ended
        return ""
