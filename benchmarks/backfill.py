"""A backfill in date order of days whose work of five seconds is elsewhere, beside plain Airflow on the same machine.

Several days in flight, and one after the other; the task that waits for the work is deferred, or sleeps in its worker.
Ours is `airflow tx backfill`; plain Airflow's is `airflow backfill create` of a DAG with three tasks, without an order
and with `depends_on_past` of the last one. Our txids have to follow the dates, and all totals have to be exact.
Usage: script/bench backfill [days] [in flight] [days one after the other] [transactions | plain | plain_in_order]...
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2  # type: ignore[import-untyped]

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.backfilled.names import ALONE, DEFERRED, IN_FLIGHT, ORDERED, OURS, PLAIN, SLEPT, name_of
from benchmarks.figures import machine, quiet
from benchmarks.peers.jobs import FIRST
from benchmarks.peers.stopwatch import Took, adopt_orphans, measured
from benchmarks.topology import connected
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

NUMBERS = (32, 8, 5)
DAGS = Path(__file__).parent / "backfilled"


@dataclass(frozen=True)
class Place:
    """Where all of them are backfilled.

    :param table: PostgreSQL's URL of the tables.
    """

    airflow: LocalAirflow
    keeper: str
    tables: str

    def backfill(self, peer: str, way: str, flight: str, days: int, in_flight: int) -> tuple[float, Took]:
        """Backfill the first days of the year: seconds a day, and what all of it took."""
        name = name_of(peer, way, flight)
        self.airflow.wait_dag(name)
        last = FIRST + timedelta(days=days - 1)
        if peer == OURS:
            took = measured(partial(self._ours, name, last, in_flight))
            began, times = self._published(name)
        else:
            self._query(f"CREATE TABLE {name} AS SELECT 0 AS n, 0 AS total", fetch=False)
            took = measured(partial(self._plain, name, last, in_flight, days))
            began, times = self._finished(name)
        assert self._query(f"SELECT n, total FROM {name}") == [(days, days * (days + 1) // 2)]
        # Of many at once also the first one counts: nothing is ahead of it.
        first, *_, end = sorted(times)
        whole = (end - began) / days if flight == IN_FLIGHT else (end - first) / (days - 1)
        return whole.total_seconds(), took

    def _ours(self, name: str, last: datetime, in_flight: int) -> None:
        dates = ("--from", FIRST.isoformat(), "--to", last.isoformat(), "--in-flight", str(in_flight))
        try:
            self.airflow.command("tx", "backfill", name, *dates, timeout=3600)
        except AssertionError as error:
            failed = [run["dag_run_id"] for run in self.airflow.runs(name) if run["state"] == "failed"]
            explained = "\n".join(self.airflow.describe_run(name, run_id) for run_id in failed)
            raise AssertionError(f"{error}\n{explained}") from None

    def _plain(self, name: str, last: datetime, in_flight: int, days: int) -> None:
        self.airflow.create_backfill(name, FIRST, last, reprocess="failed", max_active_runs=in_flight)

        def done() -> bool:
            states = [run["state"] for run in self.airflow.runs(name)]
            assert "failed" not in states
            return states.count("success") == days

        eventually(done, 3600, f"{name} is backfilled", interval=1.0)

    def _published(self, name: str) -> tuple[datetime, list[datetime]]:
        """Give the times of the first begin and of each commit, by the ledger.

        :raises AssertionError: the order of the txids is not that of the dates.
        """
        dates = {run["dag_run_id"]: datetime.fromisoformat(run["logical_date"]) for run in self.airflow.runs(name)}
        with connected(self.keeper) as store:
            paths = Paths("/airflow_tx", name)
            history = [Reader(store).peek(TransactionRecord, paths.history(txid + 1)) for txid in range(len(dates))]
        assert [dates[each.run_id] for each in history] == sorted(dates.values())
        times = [datetime.fromisoformat(each.final.when) for each in history]
        assert times == sorted(times)
        return min(datetime.fromisoformat(each.began) for each in history), times

    def _finished(self, name: str) -> tuple[datetime, list[datetime]]:
        """Give the times of the first start and of the end of each last task, by Airflow."""
        found: list[Any] = []
        while page := self._instances(name, len(found)):
            found += page
        begun = (datetime.fromisoformat(each["start_date"]) for each in found if each["task_id"] == "choose")
        return min(begun), [datetime.fromisoformat(each["end_date"]) for each in found if each["task_id"] == "commit"]

    def _instances(self, name: str, offset: int) -> list[Any]:
        path, params = f"dags/{name}/dagRuns/~/taskInstances", {"limit": 100, "offset": offset, "order_by": "id"}
        page: list[Any] = self.airflow.call("GET", path, params=params)["task_instances"]
        return page

    def _query(self, text: str, *, fetch: bool = True) -> list[Any]:
        opened = psycopg2.connect(self.tables)
        with opened, opened.cursor() as cursor:
            cursor.execute(text)
            found: list[Any] = cursor.fetchall() if fetch else []
        opened.close()
        return found


def report(place: Place, way: str, peer: str, days: int, in_flight: int, alone: int) -> None:
    """Measure one peer and print it."""
    # One by one first: the executor makes its workers at the first task.
    one, _ = place.backfill(peer, way, ALONE, alone, 1)
    many, took = place.backfill(peer, way, IN_FLIGHT, days, in_flight)
    print(
        f"  {peer.replace('_', ' ')}: {many:.2f} s a day with {in_flight} in flight, {one:.2f} s one after the other: "
        f"{one / many:.1f} times as fast; processor {took.processor / days:.2f} s a day, load {took.load:.1f}, "
        f"of others {took.others:.1f}",
        flush=True,
    )


def main(*numbers: int, peers: Sequence[str] = ()) -> None:
    """Measure and print."""
    days, in_flight, alone = (*numbers, *NUMBERS[len(numbers) :])
    quiet()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as temporary, LocalPostgres(fsync=True) as postgres, LocalZooKeeper() as keeper:
        database, folder = postgres.new_database(), Path(temporary)
        state = {"host": "127.0.0.1", "port": postgres.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
        os.environ["IN_FLIGHT"] = str(in_flight)
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=keeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("postgres", schema=database, **state),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url(postgres.new_database()),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW__TX__PRELOAD": "airflow_tx, psycopg2",
            "AIRFLOW__TX__WARM_PLACES": str(in_flight),
            "AIRFLOW__TX__MIN_DEFERRAL": "3",
            # A supervisor that notices the end of its task late holds up tasks that were deferred for less than that.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__CORE__PARALLELISM": str(2 * in_flight),
        }
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            tables = postgres.url(database).replace("postgresql+psycopg2", "postgresql")
            place = Place(airflow, keeper.hosts, tables)
            print(f"A backfill of {days} days, 5 s of work elsewhere a day; {machine()}")
            for way, title in ((DEFERRED, "its task is deferred"), (SLEPT, "its task sleeps in its worker")):
                print(title, flush=True)
                for peer in peers or (OURS, PLAIN, ORDERED):
                    report(place, way, peer, days, in_flight, alone)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:] if each.isdecimal()]
    main(*numbers, peers=[each for each in sys.argv[1:] if not each.isdecimal()])
