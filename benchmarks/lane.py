"""How many transactions a second go through the lane of a coordinator: ten rows of Python each.

A real ZooKeeper that forces its log to the disk; states on SQLite and PostgreSQL. Usage: script/bench lane [seconds]
script/bench lane backlog [files]: how long the lane takes for a backlog of small files (100,000), ten rows each:
with the default of one file a transaction, for 30 seconds, and with `target_seconds`, which takes more files at once.
script/bench lane rejected [seconds]: what a table of rejected rows costs a transaction, with and without such rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tx.sources.api import TransactionalSource
from benchmarks import topology
from benchmarks.figures import machine, quiet

SECONDS = 10.0
PENDING = (1, 4)


FILES = 100_000
TARGET = 2.0


def plan_of(name: str, state: Any, source: TransactionalSource | None = None, aside: Any = None, bad: int = 0) -> Any:
    """The plan of a DAG file with one function.

    :param aside: the table of rejected rows; `bad`: how many rows of each batch the function rejects.
    """
    from airflow.sdk import DAG, task

    from airflow_tx import CommitOperator, Transaction, current_batch, persistent_aggregate
    from airflow_tx.coordinator.lane_plan import lane_plan
    from airflow_tx.operators.transaction import defined

    options: Any = {"source": source or topology.Numbers(), "rejected": aside}
    with DAG(name, schedule=None, max_active_runs=16) as dag, Transaction(**options):

        @task
        def count() -> list[Mapping[str, Any]]:
            numbers = [int(row["number"]) for row in current_batch().read()]
            for number in numbers[:bad]:
                current_batch().reject({"number": number}, "odd")
            return totals(numbers)

        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(), state=state)])
    return lane_plan(defined(name)[0], dag)


def totals(numbers: Iterable[int]) -> list[Mapping[str, Any]]:
    """One row for each key: how many numbers it has, and their sum."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(str(number % topology.KEYS), []).append(number)
    return [{"key": key, "n": len(each), "total": sum(each)} for key, each in found.items()]


class Line:
    """Keeps the warnings of the lane: there should be none."""

    def info(self, text: str, *arguments: Any) -> None:
        """Say nothing."""

    def warning(self, text: str, *arguments: Any, exc_info: Any = None) -> None:
        """Say it."""
        print(text % arguments, file=sys.stderr)


def lane_of(plan: Any, store: Any, folder: str, pending: int) -> Any:
    """A lane of `plan` that is not opened yet."""
    from airflow_tx.coordinator.lane import Lane

    own = plan.spec
    spec = topology.DirectSpec(
        own.topology,
        own.dag_id,
        own.source,
        max_pending=pending,
        begin=own.begin,
        tasks=own.tasks,
        inside=own.inside,
        rejected=own.rejected,
        folder=folder,
        kept=store,
    )
    return Lane(replace(plan, spec=spec), store, topology.TaskInstance("coordinate", "c"), Line(), patience=60)


def catch_up(hosts: str, folder: str, url: str, files: int, seconds: float | None, **size: Any) -> None:
    """Work on a backlog, all of it or for some seconds; print the size of its transactions and the rate."""
    from airflow_tx import FileSource

    name = "_".join(f"{key}_{value:g}" for key, value in size.items()).replace(".", "_")
    state = topology.state(url, f"totals_{name}")
    source = FileSource(f"{folder}/backlog/*.csv", schema="number INT", **size)
    with topology.connected(hosts) as store:
        lane = lane_of(plan_of(name, state, source), store, folder, 4)
        began, busy = time.perf_counter(), os.times()
        with lane.opened():
            while seconds is None or time.perf_counter() - began < seconds:
                lane.work(1)
                if sum(row["n"] for row in state.read()) == files * topology.KEYS:
                    break
            while lane.working:
                lane.wait(0.1)
        took, spent = time.perf_counter() - began, os.times()
        done = sum(row["n"] for row in state.read()) // topology.KEYS
        assert sum(row["total"] for row in state.read()) == sum(range(topology.KEYS * done))
    cpu = spent.user + spent.system - busy.user - busy.system
    print(
        f"  {name:<18} {done:7,} files in {took:6.1f} s and {lane.begun:5} transactions: {done / took:7.1f} files/s, "
        f"{cpu / done * 1000:5.2f} ms of a core each, {done / lane.begun:.0f} files a transaction"
    )


def backlog(files: int = FILES) -> None:
    """Measure how a lane catches up, and print."""
    quiet()
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from tests.servers.postgres import LocalPostgres

    print(f"A backlog of {files:,} files of {topology.KEYS} rows through a lane, PostgreSQL; {machine()}")
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper() as zookeeper, LocalPostgres() as postgres:
        url = postgres.url(postgres.new_database())
        (Path(folder) / "backlog").mkdir()
        for file in range(files):
            rows = range(file * topology.KEYS, (file + 1) * topology.KEYS)
            Path(folder, "backlog", f"{file:08}.csv").write_text("number\n" + "".join(f"{row}\n" for row in rows))
        catch_up(zookeeper.hosts, folder, url, files, 30, files_per_batch=1)
        catch_up(zookeeper.hosts, folder, url, files, None, target_seconds=TARGET)


def measure(hosts: str, folder: str, name: str, url: str, pending: int, seconds: float, **aside: Any) -> None:
    """Run a lane for some seconds; print how many transactions a second were committed, and check the totals."""
    state = topology.state(url, f"totals_{name}")
    with topology.connected(hosts) as store:
        lane = lane_of(plan_of(name, state, **aside), store, folder, pending)
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
        f"  {name:<24} max_pending {pending}: {count / took:6.1f} transactions/s, {took / count * 1000:5.1f} ms and "
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


def rejected(seconds: float = SECONDS) -> None:
    """Measure a lane whose transactions have a table of rejected rows, and print.

    The table is in the database of the state, or one of a lake on this disk.
    """
    quiet()
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres

    print(f"Transactions of {topology.KEYS} Python rows through a lane; {machine()}")
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalZooKeeper() as zookeeper,
        LocalPostgres() as postgres,
        LocalMariaDB() as mariadb,
    ):
        urls = {
            "sqlite": f"sqlite:///{Path(folder) / 'state.db'}",
            "postgres": postgres.url(postgres.new_database()),
            "mariadb": mariadb.url(mariadb.new_database()),
        }
        for name, url in urls.items():
            tables: dict[str, Callable[[str], Any]] = {"sql": partial(_sql_table, url)}
            if name == "postgres":
                tables["delta"] = partial(_delta_table, folder)
            run = partial(measure, zookeeper.hosts, folder, url=url, pending=PENDING[-1], seconds=seconds)
            run(f"{name}_none")
            for kind, table in tables.items():
                run(f"{name}_{kind}_no_row", aside=table("no_row"))
                run(f"{name}_{kind}_one_row", aside=table("one_row"), bad=1)


def _sql_table(url: str, name: str) -> Any:
    from airflow_tx.state import SqlTable

    return SqlTable.from_url(url, table=name)


def _delta_table(folder: str, name: str) -> Any:
    from airflow_tx.state import DeltaTable

    return DeltaTable(Path(folder) / name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rejected"]:
        rejected(*map(float, sys.argv[2:3]))
    elif sys.argv[1:2] == ["backlog"]:
        backlog(*map(int, sys.argv[2:3]))
    else:
        main(*map(float, sys.argv[1:2]))
