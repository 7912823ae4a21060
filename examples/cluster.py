"""Runs examples from `dags/` on the cluster in docker/, from one of its containers.

It prints whether each example was exact.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_tx.base.failpoints import VARIABLE
from airflow_tx.ledger.api import Paths, Store
from airflow_tx.testing.failpoints import Failpoints
from examples import report
from examples.cluster_airflow import ClusterAirflow, clear_ledger_and_states, ledger, state_url
from examples.demo import Demo
from examples.example import Say, judge
from examples.flights import write_months
from examples.kafka_counts import KafkaCounts
from examples.lake import Lake
from examples.ledger import history
from examples.orders import Orders
from examples.servers import ROOT, STATE_VARIABLE
from tests.servers.kafka import LocalKafka

NAMES = ("flights", "kafka_counts", "lake", "orders")
_DAGS = (*NAMES, "orders_coordinator")


class ClusterKafka(LocalKafka):
    """A broker in this container that the workers and Spark's executors can reach."""

    @property
    def bootstrap(self) -> str:
        return f"{socket.gethostbyname(socket.gethostname())}:{self.port}"

    def _addresses(self) -> dict[str, str]:
        everywhere = super()._addresses()["listeners"].replace(self.bootstrap, f"0.0.0.0:{self.port}")
        return {**super()._addresses(), "listeners": everywhere}


class ClusterKafkaCounts(KafkaCounts):
    """The Kafka example with a broker that a cluster can reach, and whose Spark already has the connector."""

    def broker(self) -> LocalKafka:
        return ClusterKafka()

    def add_connector(self) -> None:
        """Do nothing, since Spark already has the Kafka connector."""


def count_flights(airflow: ClusterAirflow, store: Store, data: Path, failpoints: Failpoints, _: Say) -> int:
    """Count a year of flights in twelve transactions, with the faults of the demo. Return the exit status."""
    demo = Demo(data)
    write_months(demo.flights)
    return demo.judge(report.computed(demo.flights), airflow, store, failpoints)


def count_orders(airflow: ClusterAirflow, store: Store, data: Path, failpoints: Failpoints, say: Say) -> int:
    """Count orders of regions that are added and removed, with the coordinator. Return the exit status."""
    example = Orders(data, say, failpoints)
    example.prepare()
    example.drive(airflow, store)
    return judge(example)


def count_events(airflow: ClusterAirflow, store: Store, data: Path, failpoints: Failpoints, say: Say) -> int:
    """Count the events of a growing Kafka topic, whose broker is stopped in between. Return the exit status."""
    example = ClusterKafkaCounts(data, say, failpoints)
    example.prepare()
    example.drive(airflow, store)
    return judge(example)


def publish_flights(airflow: ClusterAirflow, store: Store, data: Path, failpoints: Failpoints, say: Say) -> int:
    """Publish months of flights to S3 and a database, and restate one month. Return the exit status."""
    example = Lake(data, say, failpoints)
    example.prepare()
    example.drive(airflow, store)
    return judge(example)


_RUN: dict[str, Callable[[ClusterAirflow, Store, Path, Failpoints, Say], int]] = {
    "flights": count_flights,
    "kafka_counts": count_events,
    "lake": publish_flights,
    "orders": count_orders,
}


def run(names: Sequence[str]) -> int:
    """Run examples one after the other, after removing all earlier transactions and totals.

    :return: the exit status. It is 0 if all totals were exact.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)

    airflow = ClusterAirflow()
    os.environ[STATE_VARIABLE] = state_url()
    data = Path(os.environ["AIRFLOW_TX_DATA"])
    failpoints = Failpoints(Path(os.environ[VARIABLE].removeprefix("@")).parent)
    for dag_id in _DAGS:
        airflow.wait_known(dag_id)
    if _has_run():
        say("the transactions, totals and runs of the previous execution are removed")
        for dag_id in reversed(_DAGS):
            airflow.forget(dag_id)
        clear_ledger_and_states()
        if "kafka_default" in {each["connection_id"] for each in airflow.listed("connections", "connections")}:
            airflow.call("DELETE", "connections/kafka_default")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    worst = 0
    for name in names:
        print(f"\n== {name}", flush=True)
        with ledger() as store:
            for dag_id in _DAGS:
                if dag_id.startswith(name):
                    airflow.pause(dag_id, False)
            worst = max(worst, _RUN[name](airflow, store, data, failpoints, say))
    return worst


def _has_run() -> bool:
    with ledger() as store:
        return any(history(store, Paths(ROOT, name)) for name in NAMES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of `script/cluster demo`."""
    parser = argparse.ArgumentParser(prog="script/cluster demo", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    names = parser.parse_args(arguments).names
    for name in names:
        if name not in NAMES:
            parser.error(f"no example has the name {name}; there are {', '.join(NAMES)}")
    try:
        return run(names)
    except AssertionError as error:  # An expected event did not happen.
        print(f"\nThe example could not continue: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
