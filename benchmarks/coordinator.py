"""How fast the coordinator reacts to new data, what it costs to wait for some, and how much it keeps going at once.

Usage: script/bench coordinator [arrivals] [transactions at each max_pending]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, percentile, quiet
from benchmarks.topology import connected

ARRIVALS = 10
TRANSACTIONS = 16
IDLE = 60.0
PENDING = (1, 4, 8)
SLEEP = 5.0
DAG_FILE = f"""
import time

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, coordinator_dag


@task
def sleep():
    time.sleep({SLEEP})
    return []


@task
def nothing():
    return []


for name, pending, work in [("arrivals", 4, nothing)] + [(f"pending{{each}}", each, sleep) for each in {PENDING}]:
    with DAG(name, schedule=None, max_active_runs=pending + 2):
        with Transaction(source=FileSource(f"{{name}}/*.csv", kind="opaque"), max_pending=pending):
            work() >> CommitOperator(task_id="commit")
    coordinator_dag(name, is_paused_upon_creation=True)
"""


class Bench:
    """An Airflow, a ledger, and a folder for each topology."""

    def __init__(self, folder: Path, airflow: LocalAirflow, hosts: str) -> None:
        self.folder = folder
        self.airflow = airflow
        self.hosts = hosts

    def add(self, name: str, files: int) -> None:
        """Files that come at once."""
        there = len(list((self.folder / name).glob("*.csv")))
        for number in range(there, there + files):
            new = self.folder / name / ".new"
            new.write_text(f"number\n{number}\n")
            new.rename(self.folder / name / f"{number:05}.csv")

    def committed(self, name: str) -> int:
        """How many transactions are committed."""
        from airflow_tx.ledger.api import Paths

        with connected(self.hosts) as store:
            found = store.children(Paths("/airflow_tx", name).histories)
        return len(found.names) if found else 0

    def start(self, name: str) -> None:
        """Let its coordinator go on, until it waits."""
        dag_id = f"{name}_coordinator"

        def unpaused() -> bool:
            self.airflow.pause(dag_id, False)
            return True

        eventually(unpaused, 60, f"{dag_id} is known")
        self.deferred(name)

    def deferred(self, name: str) -> None:
        """Wait until its coordinator waits in the triggerer."""

        def waits() -> bool:
            dag_id = f"{name}_coordinator"
            runs = [run["dag_run_id"] for run in self.airflow.runs(dag_id)]
            return bool(runs) and self.airflow.states(dag_id, runs[-1]).get("coordinate") == "deferred"

        eventually(waits, 120, f"the coordinator of {name} waits", interval=0.5)

    def reaction(self, arrivals: int, *, waits: bool) -> list[float]:
        """Seconds from a new file until its `begin` runs.

        :param waits: the coordinator is in the triggerer when it comes; else in its worker.
        """
        found = []
        for _ in range(arrivals):
            if waits:
                self.deferred("arrivals")
                time.sleep(11)  # the shortest deferral is over
            before = self.committed("arrivals")
            came = time.time()
            self.add("arrivals", 1)
            eventually(lambda before=before: self.committed("arrivals") > before, 90, "it is committed", interval=0.3)  # type: ignore[misc]
            began = self.airflow.task("arrivals", f"tx-{before + 1}", "begin")["start_date"]
            found.append(datetime.fromisoformat(began).timestamp() - came)
        return found

    def idle(self) -> dict[str, float]:
        """Percent of a core that the triggerer takes with a coordinator that waits, and without one."""
        self.deferred("arrivals")
        time.sleep(15)
        taken = {"with": self._share()}
        self.airflow.pause("arrivals_coordinator")
        for run in self.airflow.runs("arrivals_coordinator"):
            path = f"dags/arrivals_coordinator/dagRuns/{run['dag_run_id']}"
            self.airflow.call("PATCH", path, json={"state": "failed"})
        time.sleep(15)
        return {**taken, "without": self._share()}

    def _share(self) -> float:
        before, began = self._triggerer(), time.monotonic()
        time.sleep(IDLE)
        return 100 * (self._triggerer() - before) / (time.monotonic() - began)

    def _triggerer(self) -> float:
        """Seconds of processor time of the triggerer and of what it started."""
        total = 0.0
        for pid in self.airflow.processes():
            try:
                if "triggerer" not in Path(f"/proc/{pid}/cmdline").read_text():
                    continue
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except FileNotFoundError:
                continue
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def throughput(self, pending: int, transactions: int) -> float:
        """Transactions a minute, from the first commit to the last."""
        name = f"pending{pending}"
        self.start(name)
        self.add(name, transactions)
        reach: Callable[[int], float] = lambda count: self._reached(name, count)  # noqa: E731
        first = reach(1)
        last = reach(transactions)
        self.airflow.pause(f"{name}_coordinator")
        return 60 * (transactions - 1) / (last - first)

    def _reached(self, name: str, count: int) -> float:
        eventually(lambda: self.committed(name) >= count, 60 * count, f"{count} transactions", interval=0.2)
        return time.monotonic()


def measure(folder: Path, arrivals: int, transactions: int) -> None:
    """Everything, in one Airflow."""
    (folder / "dags").mkdir()
    (folder / "dags" / "coordinated.py").write_text(DAG_FILE)
    for name in ("arrivals", *(f"pending{each}" for each in PENDING)):
        (folder / name).mkdir()
    with LocalZooKeeper() as zookeeper:
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": str(folder),
            "AIRFLOW__CORE__PARALLELISM": "16",
        }
        with LocalAirflow(folder / "airflow", folder / "dags", env) as airflow:
            airflow.wait_dag("arrivals")
            bench = Bench(folder, airflow, zookeeper.hosts)
            bench.start("arrivals")
            print(f"The coordinator; {machine()}", flush=True)
            bench.reaction(1, waits=True)  # now it is in its worker
            for waits, where in ((False, "in its worker"), (True, "in the triggerer")):
                seconds = bench.reaction(arrivals, waits=waits)
                print(
                    f"  new data until begin runs, coordinator {where}: median {statistics.median(seconds):.1f} s, "
                    f"95 % {percentile(seconds, 0.95):.1f} s, {arrivals} times",
                    flush=True,
                )
            idle = bench.idle()
            shares = f"{idle['with']:.2f} % of a core, without {idle['without']:.2f} %"
            print(f"  triggerer with a coordinator that waits {shares}", flush=True)
            print(f"  transactions whose task sleeps {SLEEP:g} s", flush=True)
            for pending in PENDING:
                rate = bench.throughput(pending, transactions)
                print(f"  max_pending {pending}: {rate:.1f} transactions a minute; {machine()}", flush=True)


def main() -> None:
    """Measure and print."""
    quiet()
    arrivals = int(sys.argv[1]) if len(sys.argv) > 1 else ARRIVALS
    transactions = int(sys.argv[2]) if len(sys.argv) > 2 else TRANSACTIONS
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arrivals, transactions)


if __name__ == "__main__":
    main()
