"""A year of daily flights through the lane of a coordinator: the data intervals of the schedule, without a run.

`airflow tx backfill` lets the order begin with the first day, and follows it; the whole of a real Airflow is measured,
from the start of the command to its end. The order of the days and the totals have to be exact.
With Spark it is measured twice: on a server that has just begun, and on that server then.
Usage: script/bench lane_days [python] [spark] [warm]
"""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from benchmarks.lane_spark import SERVER, check, totals_in, write_flights
from benchmarks.peers.stopwatch import Took, adopt_orphans, measured
from benchmarks.topology import connected
from examples.flights import FLIGHTS, write_days
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

DAYS = 365
DAGS = Path(__file__).parent / "laned"


def backfill(airflow: LocalAirflow, dag_id: str) -> Took:
    """Let the lane take the year."""
    airflow.wait_dag(dag_id)
    command = ("tx", "backfill", dag_id, "--from", "2013-01-01", "--to", "2013-12-31", "--in-flight", "0")
    return measured(lambda: print(airflow.command(*command, timeout=1200).splitlines()[-1], flush=True))


def committed(hosts: str, dag_id: str) -> float:
    """Give the seconds from the first begin to the last commit.

    :raises AssertionError: the txids do not follow the dates, or a day needed a second attempt.
    """
    with connected(hosts) as store:
        paths = Paths("/airflow_tx", dag_id)
        history = [Reader(store).peek(TransactionRecord, paths.history(txid + 1)) for txid in range(DAYS)]
    assert [each.run_id for each in history] == sorted(each.run_id for each in history)
    assert {each.attempt for each in history} == {1}
    began, ended = (datetime.fromisoformat(each) for each in (history[0].began, history[-1].final.when))
    return (ended - began).total_seconds()


def main(*kinds: str) -> None:
    """Measure and print."""
    quiet()
    adopt_orphans()
    with (
        tempfile.TemporaryDirectory() as temporary,
        LocalPostgres(fsync=True) as postgres,
        LocalZooKeeper() as keeper,
        LocalSparkConnect(conf=SERVER) as spark,
    ):
        folder, database = Path(temporary), postgres.new_database()
        write_days(folder / "days")
        totals = write_flights(folder / "months", 1)
        state = {"host": "127.0.0.1", "port": postgres.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=keeper.hosts),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": connection("spark_connect", host="127.0.0.1", port=spark.port),
            "AIRFLOW_CONN_TX_STATE": connection("postgres", schema=database, **state),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url(postgres.new_database()),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "FLIGHTS": str(folder / "days"),
        }
        print(f"A year of daily flights, {FLIGHTS:,} rows, through the lane; {machine()}")
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            for kind in kinds or ("python", "spark", "warm"):
                dag_id = f"year_{kind}"
                took = backfill(airflow, dag_id)
                assert airflow.runs(dag_id) == []
                check(totals_in(postgres.url(database), dag_id), totals)
                print(
                    f"  {kind:<6} {took.seconds:5.1f} s, of which {committed(keeper.hosts, dag_id):.1f} s from the "
                    f"first begin to the last commit; processor {took.processor:.0f} s, all of Airflow and the "
                    f"servers; load {took.load:.1f}, of others {took.others:.1f}; order and totals are exact",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
