"""Runs beside each other: transactions with one, four and sixteen in flight, beside plain Airflow with as many runs.

Each transaction counts ten numbers, which takes no time: Airflow is measured, and what a transaction adds to it.
A run of `plain` has two tasks, because its conf says which numbers to read. A run of `choosing` has three tasks, as a
transaction has. `days` measures backfills: `airflow backfill create` of a plain DAG of three tasks and of transactions,
and `airflow tx backfill`.
Every round is printed, with the committers that were deferred; then the median, the best and the worst of all rounds
but the first, in which workers start. There are 32 slots; `few`: four; `celery`: Celery has them, where Airflow's
provider for Celery is installed.
Usage: script/bench pending [rounds] [in flight]... [days] [few] [celery]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from benchmarks.overhead import celery_worker
from benchmarks.peers.jobs import FIRST, NUMBERS, SMALL, Data
from benchmarks.peers.place import Place
from benchmarks.peers.stopwatch import Took, adopt_orphans, measured
from benchmarks.peers.through_airflow import end_coordinator
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres
from tests.servers.redis import LocalRedis

DAGS = Path(__file__).parent / "pended"
PENDING = (1, 4, 16)
ROUNDS = 10
TRANSACTIONS = 24
"""In each round, with so many in flight or fewer."""
SLOTS, FEW = 32, 4
"""Where worker slots are not what is waited for, and where they are."""
_DEFERRED = "SELECT count(*) FROM log WHERE event = 'deferred' AND dag_id = :dag_id"
_WORKED = """
SELECT EXTRACT(EPOCH FROM max(ended) - min(began)) FROM (
    SELECT min(start_date) AS began, max(end_date) AS ended FROM task_instance
    WHERE dag_id = :dag_id GROUP BY run_id ORDER BY min(start_date) DESC LIMIT :runs
) AS each
"""


@dataclass
class Rounds:
    """What some rounds took, of a DAG.

    :param in_flight: how many of its runs there are at once.
    """

    place: Place
    airflow: LocalAirflow
    dag_id: str
    metadata: str
    in_flight: int
    took: list[Took] = field(default_factory=list)

    def measure(self) -> None:
        """Measure another round, and print it."""
        before, first = self.deferred(), self.batches
        with self.ready(first):
            took = measured(partial(self._begin_and_wait, (first + TRANSACTIONS) * NUMBERS))
        self.took.append(self.seen(took))
        self.place.check(SMALL, self.batches, self.dag_id)
        print(f"  {self.dag_id:13}{words(self.took[-1:])}, deferred {self.deferred() - before}", flush=True)

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

    def seen(self, took: Took) -> Took:
        """Give what a round took for those who look at its runs."""
        return took

    def deferred(self) -> int:
        """Count the deferrals of tasks so far."""
        return int(self.asked(_DEFERRED))

    def asked(self, query: str, **values: Any) -> Any:
        """Ask Airflow's database for a value."""
        with sa.create_engine(self.metadata, poolclass=sa.pool.NullPool).connect() as opened:
            return opened.execute(sa.text(query), {"dag_id": self.dag_id, **values}).scalar_one()

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


class Days(Rounds):
    """Runs of the next days, from the first start of a task to the last end: a command takes seconds to start."""

    @contextmanager
    def ready(self, first: int) -> Iterator[None]:
        self.airflow.pause(self.dag_id, False)
        yield
        self.airflow.end_backfills(self.dag_id)

    def begin(self, numbers: int) -> None:
        first, last = self.days()
        self.airflow.create_backfill(self.dag_id, first, last, reprocess="failed", max_active_runs=self.in_flight)

    def days(self) -> tuple[datetime, datetime]:
        """Give the first and the last day of the round."""
        return FIRST + timedelta(days=self.batches), FIRST + timedelta(days=self.batches + TRANSACTIONS - 1)

    def seen(self, took: Took) -> Took:
        def have_ended() -> bool:
            return not {"queued", "running"} & {run["state"] for run in self.airflow.runs(self.dag_id)}

        eventually(have_ended, 120, f"the runs of {self.dag_id} have ended")
        return replace(took, seconds=float(self.asked(_WORKED, runs=TRANSACTIONS)))


class PlainDays(Days):
    """Days as plain Airflow backfills them."""

    @contextmanager
    def ready(self, first: int) -> Iterator[None]:
        if not first:
            self.place.make_table(self.dag_id)
        with super().ready(first):
            yield


class Backfilled(Days):
    """Days by `airflow tx backfill`."""

    def begin(self, numbers: int) -> None:
        first, last = (day.isoformat() for day in self.days())
        dates = ("--from", first, "--to", last, "--in-flight", str(self.in_flight))
        self.airflow.command("tx", "backfill", self.dag_id, *dates, timeout=900)


COORDINATED: Mapping[str, type[Rounds]] = {"plain": Plain, "choosing": Plain, "runs": Transactions}
DAYS: Mapping[str, type[Rounds]] = {"plain_days": PlainDays, "created": Days, "backfilled": Backfilled}


def words(took: Sequence[Took]) -> str:
    """Say what rounds took: the median, the best and the worst."""
    speeds = sorted((TRANSACTIONS / each.seconds for each in took), reverse=True)
    work = median(each.processor for each in took) / TRANSACTIONS
    spread = f" (best {speeds[0]:.2f}, worst {speeds[-1]:.2f})" if len(speeds) > 1 else ""
    load = median(each.others for each in took)
    return f" {median(speeds):5.2f} a second{spread}, {work:.2f} s of a processor each, others {load:.1f}"


def main(rounds: int = ROUNDS, pendings: Sequence[int] = PENDING, options: Collection[str] = ()) -> None:
    """Measure and print."""
    quiet()
    adopt_orphans()
    kinds, slots = DAYS if "days" in options else COORDINATED, FEW if "few" in options else SLOTS
    print(f"Runs beside each other, {slots} slots; {machine()}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(LocalPostgres(fsync=True))
        keeper = stack.enter_context(LocalZooKeeper())
        place = Place(folder, Data(folder), postgres, postgres.new_database())
        metadata = postgres.url(postgres.new_database())
        state = {"host": "127.0.0.1", "port": postgres.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=keeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("postgres", schema=place.database, **state),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": str(folder),
            "AIRFLOW__CORE__PARALLELISM": str(slots),
        }
        if "celery" in options:
            env |= celery_worker(stack.enter_context(LocalRedis()), postgres.url(postgres.new_database()), slots)
        airflow = stack.enter_context(LocalAirflow(folder / "airflow", DAGS, env))
        if "celery" in options:
            airflow.start_component("celery worker")
        measured_dags = [
            kind(place, airflow, f"{name}_{pending}", metadata, pending)
            for pending in pendings
            for name, kind in kinds.items()
        ]
        for each in measured_dags:
            (folder / each.dag_id).mkdir()
            (folder / each.dag_id / "limit").write_text("0")
            airflow.wait_dag(each.dag_id)
        for _ in range(rounds + 1):
            for each in measured_dags:
                each.measure()
        print("All rounds:")
        for each in measured_dags:
            print(f"  {each.dag_id:13}{words(each.took[1:])}", flush=True)


if __name__ == "__main__":
    numbers = [*map(int, filter(str.isdigit, sys.argv[1:]))]
    main(numbers[0] if numbers else ROUNDS, numbers[1:] or PENDING, sys.argv[1:])
