"""How many transactions a second go through the lane of a coordinator: ten rows of Python each.

A real ZooKeeper that forces its log to the disk; states on SQLite and PostgreSQL. Usage: script/bench lane [seconds]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import topology
from benchmarks.figures import machine, quiet

SECONDS = 10.0
PENDING = (1, 4)


def plan_of(name: str, state: Any) -> Any:
    """The plan of a DAG file with one function."""
    from airflow.sdk import DAG, task

    from airflow_tx import CommitOperator, Transaction, current_batch, persistent_aggregate
    from airflow_tx.coordinator.lane_plan import lane_plan
    from airflow_tx.topology.transaction import defined

    with DAG(name, schedule=None, max_active_runs=16) as dag, Transaction(source=topology.Numbers()):

        @task
        def count() -> list[Mapping[str, Any]]:
            numbers = [row["number"] for row in current_batch().read()]
            return [{"key": str(number % topology.KEYS), "n": 1, "total": number} for number in numbers]

        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(), state=state)])
    return lane_plan(defined(name)[0], dag)


class Line:
    """Keeps the warnings of the lane: there should be none."""

    def info(self, text: str, *arguments: Any) -> None:
        """Say nothing."""

    def warning(self, text: str, *arguments: Any, exc_info: Any = None) -> None:
        """Say it."""
        print(text % arguments, file=sys.stderr)


def measure(hosts: str, folder: str, name: str, url: str, pending: int, seconds: float) -> None:
    """Run a lane for some seconds; print how many transactions a second were committed, and check the totals."""
    from airflow_tx.coordinator.lane import Lane

    state = topology.state(url, f"totals_{name}")
    plan = plan_of(name, state)
    own = plan.spec
    with topology.connected(hosts) as store:
        spec = topology.DirectSpec(
            name,
            name,
            own.source,
            max_pending=pending,
            begin=own.begin,
            tasks=own.tasks,
            inside=own.inside,
            folder=folder,
            kept=store,
        )
        lane = Lane(replace(plan, spec=spec), store, topology.TaskInstance("coordinate", "c"), Line(), patience=60)
        with lane.opened():
            lane.work(0.5)  # makes ledger and tables, imports the drivers
            while lane.working:
                lane.wait(0.1)
            begun, requests, began, busy = lane.begun, store.requests, time.perf_counter(), os.times()
            lane.work(seconds)
            while lane.working:
                lane.wait(0.1)
            took, spent = time.perf_counter() - began, os.times()
        count = lane.begun - begun
        assert sum(row["n"] for row in state.read()) == topology.KEYS * lane.begun
        assert sum(row["total"] for row in state.read()) == sum(range(topology.KEYS * lane.begun))
    cpu = (spent.user + spent.system - busy.user - busy.system) / count
    print(
        f"  {name:<12} max_pending {pending}: {count / took:6.1f} transactions/s, {took / count * 1000:5.1f} ms and "
        f"{(store.requests - requests) / count:4.1f} requests each, {cpu * 1000:4.1f} ms of a core"
    )


def main(seconds: float = SECONDS) -> None:
    """Measure and print."""
    quiet()
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from tests.servers.postgres import LocalPostgres

    print(f"Transactions of {topology.KEYS} Python rows through a lane; {machine()}")
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper() as zookeeper, LocalPostgres() as postgres:
        urls = {"sqlite": f"sqlite:///{Path(folder) / 'state.db'}", "postgres": postgres.url(postgres.new_database())}
        for name, url in urls.items():
            for pending in PENDING:
                measure(zookeeper.hosts, folder, f"{name}{pending}", url, pending, seconds)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
