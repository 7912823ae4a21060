"""A backfill in date order of days whose work is done elsewhere, against one day after the other.

`airflow tx backfill` with some days in flight, then with one; five seconds of work a day, during which no worker is
held. The txids have to follow the dates, and the totals have to be exact.
Usage: script/bench backfill [days] [in flight] [days one after the other]
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import History
from airflow_tx.state import Count, SqlState, Sum
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from benchmarks.peers.stopwatch import Took, adopt_orphans, measured
from benchmarks.topology import connected

DAYS, IN_FLIGHT, ALONE = 40, 8, 6
DAGS = Path(__file__).parent / "backfilled"
FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)


def backfill(airflow: LocalAirflow, dag_id: str, days: int, in_flight: int) -> Took:
    """Backfill the first days of the year."""
    airflow.wait_dag(dag_id)
    dates = ("--from", FIRST.isoformat(), "--to", (FIRST + timedelta(days=days - 1)).isoformat())
    command = ("tx", "backfill", dag_id, *dates, "--in-flight", str(in_flight))
    try:
        return measured(lambda: print(airflow.command(*command, timeout=600 + 60 * days).splitlines()[-1], flush=True))
    except AssertionError as error:
        failed = [run["dag_run_id"] for run in airflow.runs(dag_id) if run["state"] == "failed"]
        explained = "\n".join(airflow.describe_run(dag_id, run_id) for run_id in failed)
        raise AssertionError(f"{error}\n{explained}") from None


def published(airflow: LocalAirflow, hosts: str, dag_id: str) -> list[datetime]:
    """Give the times of the first begin and of each commit, in the order of the txids.

    :raises AssertionError: that is not the order of the dates.
    """
    dates = {run["dag_run_id"]: datetime.fromisoformat(run["logical_date"]) for run in airflow.runs(dag_id)}
    with connected(hosts) as store:
        paths = Paths("/airflow_tx", dag_id)
        history = [Reader(store).peek(History, paths.history(txid + 1)) for txid in range(len(dates))]
    assert [dates[each.run_id] for each in history] == sorted(dates.values())
    times = [datetime.fromisoformat(each.ended) for each in history]
    assert times == sorted(times)
    return [min(datetime.fromisoformat(each.began) for each in history), *times]


def check(url: str, table: str, days: int) -> None:
    """Check that each day was counted once."""
    state = SqlState.from_url(url, table=table, keys=[], values={"n": Count(), "total": Sum()})
    assert [(row["n"], row["total"]) for row in state.read()] == [(days, days * (days + 1) // 2)]


def main(days: int = DAYS, in_flight: int = IN_FLIGHT, alone: int = ALONE) -> None:
    """Measure and print."""
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
            "AIRFLOW__CORE__PARALLELISM": "16",
            "AIRFLOW__TX__PRELOAD": "airflow_tx, psycopg2",
            "AIRFLOW__TX__WARM_PLACES": str(in_flight),
            "AIRFLOW__TX__MIN_DEFERRAL": "3",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        }
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            took: dict[str, Took] = {}
            seconds: dict[str, float] = {}
            for dag_id, count, flying in (("at_once", days, in_flight), ("one_by_one", alone, 1)):
                took[dag_id] = backfill(airflow, dag_id, count, flying)
                began, first, *_, last = published(airflow, keeper.hosts, dag_id)
                check(postgres.url(database), dag_id, count)
                # Of many at once also the first one counts: nothing is ahead of it.
                whole = (last - began) / count if flying > 1 else (last - first) / (count - 1)
                seconds[dag_id] = whole.total_seconds()
    print(f"A backfill of {days} days in date order, 5 s of work elsewhere a day; {machine()}")
    for dag_id, title in (("at_once", f"{in_flight} in flight"), ("one_by_one", "one after the other")):
        each = took[dag_id]
        print(
            f"  {title}: {seconds[dag_id]:.2f} s a day; the command {each.seconds:.0f} s, processor "
            f"{each.processor:.0f} s; load {each.load:.1f}, of others {each.others:.1f}"
        )
    print(f"  {seconds['one_by_one'] / seconds['at_once']:.1f} times as fast; order and totals are exact")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
