"""The cluster of docker/ as tests need it: its containers, its Airflow, its states, and faults inside its processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from airflow_tx.base.failpoints import Rule
from airflow_tx.testing.airflow_client import AirflowClient
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cluster"
WORKERS = ("worker-1", "worker-2")
FILES = "triggerer"  # sees the volume that all share, and nothing happens to it
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
PROJECT = "airflow-tx"
PATIENCE = 900.0
_COMMAND = 120
_FAILPOINTS = "/shared/failpoints"


class Cluster(AirflowClient):
    """A cluster that is up.

    :param engine: docker or podman.
    """

    def __init__(self, engine: str) -> None:
        lines = (HOME / ".env").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines)
        super().__init__(f"http://127.0.0.1:{settings['AIRFLOW_PORT']}", "admin", settings["AIRFLOW_PASSWORD"])
        self._engine = engine
        own = HOME / "containers.conf"
        self._env = {**os.environ, **({"CONTAINERS_CONF": str(own)} if own.exists() else {})}

    # --- containers

    def container(self, service: str) -> str:
        """The id of the container of a service, running or not."""
        labels = (f"label=com.docker.compose.{key}" for key in (f"project={PROJECT}", f"service={service}"))
        filters = [part for label in labels for part in ("--filter", label)]
        return self._run(self._engine, "ps", "--all", "--quiet", *filters).split()[0]

    def inside(self, service: str, *command: str) -> str:
        """Run a command in a container and return what it printed.

        :raises CalledProcessError: it did not end with 0.
        """
        return self._run(self._engine, "exec", self.container(service), *command)

    def kill(self, service: str) -> None:
        """End all of a container at once, as a host that loses its power."""
        self._run(self._engine, "kill", self.container(service))

    def start(self, service: str) -> None:
        """Start a container that was killed, and wait until it serves."""
        self._run(self._engine, "start", self.container(service))
        eventually(lambda: self.serves(service), PATIENCE, f"{service} serves", interval=2)

    def freeze(self, service: str) -> None:
        """Let no process of a container go on, nor notice that it stands still."""
        self._run(self._engine, "pause", self.container(service))

    def thaw(self, service: str) -> None:
        """Let a frozen container go on."""
        self._run(self._engine, "unpause", self.container(service))

    def serves(self, service: str) -> bool:
        """Whether a container says that it is healthy."""
        try:
            self.inside(service, "run", "healthy", re.sub(r"-\d$", "", service))
        except subprocess.CalledProcessError:
            return False
        return True

    def leader(self) -> str:
        """The ZooKeeper that leads."""
        ask = "echo srvr | openssl s_client -quiet -connect localhost:2281 -CAfile /certificates/ca.pem 2>/dev/null"

        def found() -> str | None:
            return next((each for each in ZOOKEEPERS if "Mode: leader" in self.inside(each, "sh", "-c", ask)), None)

        return str(eventually(found, PATIENCE, "a ZooKeeper leads"))

    # --- files, faults and totals

    def write(self, name: str, number: int, keys: Mapping[str, int]) -> None:
        """Put file `number` into the folder of topology `name`: so many rows of each key."""
        lines = "\n".join(["key", *(key for key, rows in keys.items() for _ in range(rows))])
        folder = f"/shared/data/{name}"
        script = f"mkdir -p {folder} && cat >{folder}/.{number:02} && mv {folder}/.{number:02} {folder}/{number:02}.csv"
        command = [self._engine, "exec", "--interactive", self.container(FILES), "sh", "-c", script]
        run_command(command, input=f"{lines}\n", check=True, timeout=_COMMAND, env=self._env)

    def arm(self, point: str, topology: str, **match: object) -> Rule:
        """Let the first process that comes by the point stand still until `release`."""
        stem = f"{_FAILPOINTS}/{topology}"
        context = tuple((key, str(value)) for key, value in match.items())
        rule = Rule(
            name=point,
            match=(("topology", topology), *context),
            action="pause",
            marker=f"{stem}.reached",
            until=f"{stem}.release",
        )
        self.inside(FILES, "sh", "-c", f"echo '{rule}' >>{_FAILPOINTS}/rules")
        return rule

    def wait_reached(self, rule: Rule) -> None:
        """Wait until a process stands still at the point."""
        eventually(lambda: self.exists(rule.marker), PATIENCE, f"{rule.name} is reached", interval=1)

    def release(self, rule: Rule) -> None:
        """Let it go on."""
        self.inside(FILES, "touch", rule.until)

    def totals(self, table: str) -> Counter[str]:
        """Rows per key, from the state's own database."""
        query = f'SELECT key, "rows" FROM {table}'
        command = f"PGPASSWORD=$POSTGRES_PASSWORD psql -h 127.0.0.1 -U tx -tA -F ' ' -c '{query}'"
        pairs = (line.rsplit(" ", 1) for line in self.inside("state", "sh", "-c", command).splitlines())
        return Counter({key: int(rows) for key, rows in pairs})

    def staged(self, topology: str) -> list[str]:
        """Name the objects of a topology in the staging area, as they lie on the disk of the S3 server."""
        return self.inside("s3", "find", "/data/s3/staging", "-path", f"*/{topology}/*", "-type", "f").split()

    def exists(self, path: str) -> bool:
        """Whether a file is in the volume that all share."""
        return self.inside(FILES, "sh", "-c", f"test -e {path} && echo yes || true").strip() == "yes"

    def _run(self, *command: str) -> str:
        done = run_command(command, capture_output=True, check=True, timeout=_COMMAND, env=self._env)
        return done.stdout


def find_engine() -> str:
    """The engine that script/cluster takes."""
    found = shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False)
    return "docker" if found and found.returncode == 0 else "podman"
