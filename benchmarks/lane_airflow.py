"""What a small transaction costs in a whole Airflow, process by process: ten rows of Python each, through the lane.

ZooKeeper and PostgreSQL force their logs; Airflow's metadata lie in the same PostgreSQL.
Usage: script/bench lane_airflow [transactions] [command that is given the id of the lane's process, such as a profiler]
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_tx.base.errors import TxError
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from benchmarks.peers.jobs import SMALL, Data
from benchmarks.peers.place import Place
from benchmarks.peers.stopwatch import adopt_orphans
from benchmarks.peers.through_airflow import DAGS
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

WARM = 100
PATIENCE = 200.0
COUNT = 2000
_TICKS = os.sysconf("SC_CLK_TCK")
_GROUPS = (
    ("ZooKeeper", "zookeeper"),
    ("PostgreSQL: states", "postgres: .* {states} "),
    ("PostgreSQL: Airflow's metadata", "postgres: .* {metadata} "),
    ("PostgreSQL: the others", "postgres"),
    ("api-server", "airflow api_server"),
    ("supervisor of the coordinator", "airflow supervisor|LocalExecutor: (?!<idle>)"),
    ("triggerer", "airflow triggerer"),
    ("dag-processor", "airflow dag-processor|airflow dag_processor"),
    ("scheduler", "airflow scheduler|LocalExecutor|serve-logs"),
    ("this benchmark, which looks", "benchmarks.lane_airflow"),
)


def processes() -> dict[int, tuple[int, str, float]]:
    """By id, the parent, the command and the processor time of each process."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        found[int(name)] = int(fields[1]), command, sum(map(int, fields[11:13])) / _TICKS
    return found


def below(found: dict[int, tuple[int, str, float]]) -> set[int]:
    """The processes that this one has started, and itself."""
    own = {os.getpid()}
    while more := {pid for pid, (parent, _, _) in found.items() if parent in own} - own:
        own |= more
    return own


def lane_process(found: dict[int, tuple[int, str, float]]) -> int:
    """The task process of the coordinator: what has a worker with something to do as its parent."""
    own = below(found)
    workers = {pid for pid in own if re.search("airflow supervisor|LocalExecutor: (?!<idle>)", found[pid][1])}
    return max(pid for pid in own if found[pid][0] in workers)


def group_of(pid: int, command: str, lane: int, databases: dict[str, str]) -> str:
    """Name what a process belongs to."""
    if pid == lane:
        return "the lane's process"
    matching = (name for name, pattern in _GROUPS if re.search(pattern.format(**databases), command, re.IGNORECASE))
    return next(matching, "others of this benchmark")


@contextmanager
def profiled(command: str, lane: int) -> Iterator[None]:
    """Let a profiler look at the lane within the block."""
    if not command:
        yield
        return
    profiler = subprocess.Popen([*shlex.split(command), str(lane)])
    yield
    profiler.wait(60)


def measure(place: Place, airflow: LocalAirflow, databases: dict[str, str], count: int, profiler: str) -> None:
    """Let the lane commit so many transactions; print what each cost in which process."""
    table = f"lane_{SMALL.name}"
    folder = place.folder / table

    def reach(batches: int) -> None:
        place.data.appear(SMALL, folder, batches)
        rows = place.data.rows(SMALL, batches)
        eventually(lambda: place.rows(table) >= rows, PATIENCE, f"{batches} batches are committed", interval=0.05)

    airflow.wait_dag(table)
    airflow.pause(f"{table}_coordinator", False)
    reach(WARM)
    time.sleep(2)
    before = processes()
    lane = lane_process(before)
    began = time.perf_counter()
    with profiled(profiler, lane):
        reach(WARM + count)
        took = time.perf_counter() - began
        after = processes()
    place.check(SMALL, WARM + count, table)
    if airflow.runs(table):
        raise TxError(message=f"There are runs of {table}: its transactions left the lane")
    spent = dict[str, float]()
    for pid in below(after):
        _, command, busy = after[pid]
        name = group_of(pid, command, lane, databases)
        spent[name] = spent.get(name, 0.0) + busy - (before[pid][2] if pid in before else 0.0)
    each = sum(spent.values()) / count * 1000
    print(f"  {count / took:.1f} transactions/s; {each:.1f} ms of a core each; {machine()}")
    for name, busy in sorted(spent.items(), key=lambda found: -found[1]):
        print(f"  {name:<36} {busy / count * 1000:6.2f} ms a transaction, {busy / took * 100:5.1f} % of a core")


def main(count: int = COUNT, profiler: str = "") -> None:
    """Measure and print."""
    quiet()
    adopt_orphans()
    print(f"Transactions of ten Python rows through the lane of a whole Airflow; {machine()}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPostgres(fsync=True) as postgres,
        LocalZooKeeper() as zookeeper,
    ):
        databases = {"states": postgres.new_database(), "metadata": postgres.new_database()}
        place = Place(Path(folder), Data(Path(folder)), postgres, databases["states"])
        state = {"host": "127.0.0.1", "port": postgres.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("postgres", schema=databases["states"], **state),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url(databases["metadata"]),
            "AIRFLOW__TX__STAGING": (place.folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": str(place.folder),
        }
        with LocalAirflow(place.folder / "airflow", DAGS, env) as airflow:
            measure(place, airflow, databases, count, profiler)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT, " ".join(sys.argv[2:]))
