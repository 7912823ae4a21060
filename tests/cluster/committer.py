"""A worker's process on one of the hosts, from the side of a test: see `tests.cluster.runs`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.runs import ROWS

if TYPE_CHECKING:
    from tests.cluster.hosts import Host

REPOSITORY = Path(__file__).parents[2]


def expected(transactions: int) -> dict[str, int]:
    """What the state holds after so many transactions."""
    return {"all": sum(range(1, ROWS * transactions + 1)), "count": ROWS * transactions}


class Answer:
    """What the process says to one command, once it says it."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._said: dict[str, Any] | None = None

    def get(self) -> dict[str, Any]:
        while self._said is None:
            line = self._committer.process.stdout.readline()
            assert line, f"{self._committer.name} has ended; its log: {self._committer.log.read_text()[-3000:]}"
            if line.startswith('{"'):
                self._said = json.loads(line)
            else:  # Airflow's log
                with self._committer.log.open("a") as log:
                    log.write(line)
        return self._said

    @property
    def result(self) -> Any:
        said = self.get()
        assert "result" in said, said
        return said["result"]

    @property
    def error(self) -> str:
        said = self.get()
        assert "error" in said, said
        return f"{said['error']}: {said['text']}"


class Committer:
    """The process, from the side of a test.

    :param zookeeper: the connection `zk`, as Airflow reads it.
    :param before: what it is started with: a host, another clock.
    :param module: what it executes, of this repository.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: Mapping[str, Any] | str,
        url: str,
        *,
        host: Host | None = None,
        before: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        topology: str = "flights",
        module: str = "tests.cluster.runs",
    ) -> None:
        self.name = f"committer-{uuid.uuid4().hex[:6]}"
        self.log = folder / f"{self.name}.log"
        connection = {"host": zookeeper} if isinstance(zookeeper, str) else zookeeper
        given = {
            **os.environ,
            "AIRFLOW_HOME": str(folder / self.name),
            "AIRFLOW_CONN_ZK": json.dumps({"conn_type": "zookeeper", **connection}),
            "AIRFLOW__TX__SESSION_TIMEOUT": "6",
            "AIRFLOW__TX__STAGING": f"file://{folder}/staging",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "FIRE_URL": url,
            "FIRE_TOPOLOGY": topology,
            "PYTHONPATH": str(REPOSITORY),
            **(env or {}),
        }
        program = [*before, sys.executable, "-m", module]
        self.process: Any = subprocess.Popen(
            host.command(*program) if host else program,
            env=given,
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("a"),
        )
        self._ready = Answer(self)

    def ask(self, command: str, argument: str = "") -> Answer:
        """Give a command; the answer comes later."""
        self._ready.get()
        self.process.stdin.write(f"{command} {argument}\n")
        self.process.stdin.flush()
        return Answer(self)

    def __call__(self, command: str, argument: str = "") -> Any:
        """Give a command and return its result."""
        return self.ask(command, argument).result

    def pause(self) -> None:
        """Freeze it, as a worker whose machine is suspended."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
