"""Storm Trident in Storm's local mode: one JVM for each job, with a ZooKeeper of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_tx.testing.servers.server import find_java
from benchmarks.peers.jobs import Job
from benchmarks.peers.place import MissingPart, Peer, Place, running
from tests.servers.jars import JarsUnavailable, fetch_jars
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER

NAME = "Storm Trident"
STORM, JDBC = "2.8.3", "42.7.7"
_PROGRAM = Path(__file__).with_name("Trident.java")


class Trident:
    """Storm Trident.

    :param classpath: of Storm, of the JDBC driver and of the compiled program.
    """

    key = "trident"
    title = f"{NAME} {STORM}, opaque state, one pending"
    counts: Mapping[str, int] = {"small": 1000, "days": 300, "big": 36}

    def __init__(self, place: Place, classpath: str) -> None:
        self._place = place
        self._classpath = classpath

    @contextmanager
    def opened(self, job: Job, table: str) -> Iterator[Callable[[], bool]]:
        count, folder = self.counts[job.name], self._place.folder / table
        self._place.make_table(table)
        self._place.data.appear(job, folder, count)
        jdbc = f"jdbc:postgresql://127.0.0.1:{self._place.postgres.port}/{self._place.database}"
        command = [find_java(), "-Xmx2g", "-Djava.net.preferIPv4Stack=true", "-cp", self._classpath, "Trident"]
        command += [str(folder), str(job.files), str(count), jdbc, POSTGRES_USER, table]
        with running(command, folder, {**os.environ, "PGPASSWORD": POSTGRES_PASSWORD}) as has_begun:
            yield has_begun


@contextmanager
def started(place: Place) -> Iterator[list[Peer]]:
    """Fetch Storm and compile the program.

    :raises MissingPart: there is no compiler, or no Storm.
    """
    java = Path(find_java())
    compiler = shutil.which("javac", path=str(java.resolve().parent)) or shutil.which("javac")
    if compiler is None:
        raise MissingPart(peer=NAME, reason="there is no javac. Install a JDK (Debian: openjdk-17-jdk-headless).")
    try:
        jars = fetch_jars("org.apache.storm", "storm-server", STORM, all_of_it=True, timeout=300)
        jars = [*jars, *fetch_jars("org.postgresql", "postgresql", JDBC, alone=True)]
    except JarsUnavailable as error:
        raise MissingPart(peer=NAME, reason=str(error)) from None
    classes = place.folder / "classes"
    classpath = os.pathsep.join([*map(str, jars), str(classes)])
    subprocess.run([compiler, "-nowarn", "-cp", classpath, "-d", str(classes), str(_PROGRAM)], check=True)
    yield [Trident(place, classpath)]
