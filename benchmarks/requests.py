"""How many requests a transaction sends to ZooKeeper, through the code of the operators. Usage: script/bench requests

What a session costs besides (connect, close, pings) is counted by the server: every task opens one or two.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import topology
from benchmarks.figures import machine, quiet

TASKS = (1, 2, 5)
RUNS = 5


def received(port: int) -> int:
    """How many packets the server has received."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"srvr")
        with connection.makefile("rb") as stream:
            text = stream.read().decode()
    return int(next(line.split(":")[1] for line in text.splitlines() if line.startswith("Received")))


class Counted:
    """A topology that counts.

    :param tasks: how many processing tasks its runs have.
    :param book: whether its ledger keeps a book of ends, as that of a table does.
    """

    def __init__(self, zookeeper: Any, folder: Path, tasks: int, *, book: bool = False) -> None:
        self.names = tuple(f"task{number}" for number in range(tasks))
        self.spec = topology.DirectSpec(
            f"requests{tasks}{'book' * book}",
            "benchmark",
            topology.Numbers(),
            max_pending=4,
            tasks=self.names,
            hosts=zookeeper.hosts,
            folder=str(folder),
            appends=book,
        )
        url = f"sqlite:///{folder / 'state.db'}"
        self.updates = [topology.update(self.names[0], topology.state(url, f"totals{tasks}{'book' * book}"))]
        self.port = zookeeper.port

    def run(self, run_id: str) -> tuple[dict[str, int], int]:
        """A whole run: requests per kind of task, and packets that the server received."""
        before = received(self.port)
        steps: dict[str, int] = {}
        begun = topology.begin(self.spec, run_id)
        steps["begin"] = self._taken()
        for name in self.names:
            topology.process(self.spec, begun, name)
            steps["a task"] = self._taken()
        self.commit(begun, run_id)
        steps["commit"] = self._taken()
        return steps, received(self.port) - before

    def commit(self, begun: Any, run_id: str) -> None:
        """What the committer does."""
        from airflow_tx.transaction.commit.committer import Commit
        from airflow_tx.transaction.commit.turn import commit_in_turn

        ti = topology.TaskInstance("commit", run_id, xcom=topology.output(begun))
        with self.spec.store() as store:
            commit = Commit(self.spec, begun, self.updates, self.spec.ledger(store), ti, Silent())
            assert commit_in_turn(commit, store, patience=0) is None

    def _taken(self) -> int:
        taken = sum(store.requests for store in self.spec.stores)
        self.spec.stores.clear()
        return taken


class Silent:
    """A log that nobody reads."""

    def info(self, text: str, *arguments: Any) -> None:
        pass

    warning = info


def main() -> None:
    """Count and print."""
    quiet()
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

    print(f"ZooKeeper requests per transaction; {machine()}")
    totals = {}
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(fsync=False) as zookeeper:
        for tasks in TASKS:
            counted = Counted(zookeeper, Path(folder), tasks)
            counted.run("first")  # makes the ledger
            found = [counted.run(f"run{number}") for number in range(RUNS)]
            totals[tasks] = statistics.median(s["begin"] + tasks * s["a task"] + s["commit"] for s, _ in found)
            steps, packets = found[-1]
            told = ", ".join(f"{step} {number}" for step, number in steps.items())
            print(f"  {tasks} task(s): {totals[tasks]:3.0f} requests ({told}); {packets} packets with the sessions")
        counted = Counted(zookeeper, Path(folder), 1, book=True)
        counted.run("first")
        steps, packets = [counted.run(f"run{number}") for number in range(RUNS)][-1]
        print(f"  1 task, with a book of ends: {sum(steps.values())} requests; {packets} packets with the sessions")
    least, *_, most = TASKS
    print(f"  each further task: {(totals[most] - totals[least]) / (most - least):.1f} requests")


if __name__ == "__main__":
    main()
