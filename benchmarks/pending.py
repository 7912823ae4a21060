"""Runs beside each other: transactions with one, four and sixteen in flight, beside plain Airflow with as many runs.

Each transaction counts ten numbers, which takes no time: Airflow is measured, and what a transaction adds to it.
Every round is printed, with the committers that were deferred; then the median, the best and the worst of all rounds.
Usage: script/bench pending [rounds] [in flight]...
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from benchmarks.peers.jobs import NUMBERS, SMALL, Data
from benchmarks.peers.place import Place
from benchmarks.peers.stopwatch import Took, adopt_orphans, measured
from benchmarks.peers.through_airflow import FIRST, end_coordinator
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

DAGS = Path(__file__).parent / "pended"
PENDING = (1, 4, 16)
ROUNDS = 10
TRANSACTIONS = 24
"""In each round, with so many in flight or fewer."""
_DEFERRED = "SELECT count(*) FROM log WHERE event = 'deferred' AND dag_id = :dag_id"


@dataclass
class Rounds:
    """What some rounds took, of a DAG."""

    place: Place
    airflow: LocalAirflow
    dag_id: str
    metadata: str
    took: list[Took] = field(default_factory=list)

    def measure(self) -> None:
        """Measure another round, and print it."""
        before, first = self.deferred(), self.batches
        with self.ready(first):
            self.took.append(measured(partial(self._begin_and_wait, (first + TRANSACTIONS) * NUMBERS)))
        self.place.check(SMALL, self.batches, self.dag_id)
        print(f"  {self.dag_id:9}{words([self.took[-1]])}, deferred {self.deferred() - before}", flush=True)

    @property
    def batches(self) -> int:
        return TRANSACTIONS * len(self.took)

    @contextmanager
    def ready(self, first: int) -> Iterator[None]:
        """Let all be there but the start."""
        raise NotImplementedError
        yield

    def begin(self, numbers: int) -> None:
        """Start the round that ends with so many numbers."""
        raise NotImplementedError

    def deferred(self) -> int:
        """Count the deferrals of tasks so far."""
        with sa.create_engine(self.metadata, poolclass=sa.pool.NullPool).connect() as opened:
            return int(opened.execute(sa.text(_DEFERRED), {"dag_id": self.dag_id}).scalar_one())

    def _begin_and_wait(self, numbers: int) -> None:
        self.begin(numbers)
        what = f"{numbers} numbers are in {self.dag_id}"
        eventually(lambda: self.place.rows(self.dag_id) >= numbers, 900, what, interval=0.01)


class Plain(Rounds):
    """Runs that upsert their sums, in their order."""

    @contextmanager
    def ready(self, first: int) -> Iterator[None]:
        if not first:
            self.place.make_table(self.dag_id)
        self.airflow.pause(self.dag_id)
        for batch in range(first, first + TRANSACTIONS):
            self.airflow.trigger(self.dag_id, f"run{batch}", {"batch": batch}, FIRST + timedelta(days=batch))
        yield

    def begin(self, numbers: int) -> None:
        self.airflow.pause(self.dag_id, False)


class Transactions(Rounds):
    """Runs that a coordinator starts."""

    @contextmanager
    def ready(self, first: int) -> Iterator[None]:
        coordinator = f"{self.dag_id}_coordinator"
        self.airflow.pause(coordinator, False)

        def is_running() -> bool:
            return any(run["state"] == "running" for run in self.airflow.runs(coordinator))

        eventually(is_running, 120, f"{coordinator} runs", interval=0.5)
        yield
        end_coordinator(self.airflow, self.dag_id)

    def begin(self, numbers: int) -> None:
        (self.place.folder / self.dag_id / "limit").write_text(str(numbers))


def words(took: Sequence[Took]) -> str:
    """Say what rounds took: the median, the best and the worst."""
    speeds = sorted((TRANSACTIONS / each.seconds for each in took), reverse=True)
    work = median(each.processor for each in took) / TRANSACTIONS
    spread = f" (best {speeds[0]:.2f}, worst {speeds[-1]:.2f})" if len(speeds) > 1 else ""
    load = median(each.others for each in took)
    return f" {median(speeds):5.2f} a second{spread}, {work:.2f} s of a processor each, others {load:.1f}"


def main(rounds: int = ROUNDS, pendings: Sequence[int] = PENDING) -> None:
    """Measure and print."""
    quiet()
    adopt_orphans()
    print(f"Runs beside each other; {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as temporary, LocalPostgres(fsync=True) as postgres, LocalZooKeeper() as keeper:
        folder = Path(temporary)
        place = Place(folder, Data(folder), postgres, postgres.new_database())
        metadata = postgres.url(postgres.new_database())
        state = {"host": "127.0.0.1", "port": postgres.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=keeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("postgres", schema=place.database, **state),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": str(folder),
            "AIRFLOW__CORE__PARALLELISM": "32",
        }
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            measured_dags = [
                kind(place, airflow, f"{name}_{pending}", metadata)
                for pending in pendings
                for name, kind in (("plain", Plain), ("runs", Transactions))
            ]
            for each in measured_dags:
                (folder / each.dag_id).mkdir()
                (folder / each.dag_id / "limit").write_text("0")
                airflow.wait_dag(each.dag_id)
            for _ in range(rounds):
                for each in measured_dags:
                    each.measure()
            print("All rounds:")
            for each in measured_dags:
                print(f"  {each.dag_id:9}{words(each.took)}", flush=True)


if __name__ == "__main__":
    numbers = [*map(int, sys.argv[1:])]
    main(numbers[0] if numbers else ROUNDS, numbers[1:] or PENDING)
