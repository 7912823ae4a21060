"""What applications on a warm Spark Connect server cost in a lane: batches of 900 rows, the flights of 2013 ×10, ×30.

A lane has a process of its own, which is killed once in the middle; what it had begun is then done as its runs would do
it. Real ZooKeeper, PostgreSQL and Spark, all totals compared. Usage: script/bench lane_spark [small batches]
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_tx.ledger.json_text import replace
from airflow_tx.testing.airflow import connection
from benchmarks import topology
from benchmarks.figures import machine, quiet
from benchmarks.lane import Line
from examples.flights import OPTIONS, SCHEMA, write_months

SMALL, SMALL_WARM = 200, 200
SMALL_ROWS = 900
FILES = 12
PENDING = 4
# A server as one would have it for such batches: both compilers, memory for them.
SERVER = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Job:
    """What the process of a lane does.

    :param name: of its topology and table.
    :param warm: so many transactions are not measured.
    :param count: so many are, if there are as many.
    """

    name: str
    glob: str
    warm: int
    count: int
    folder: str
    hosts: str
    url: str
    server: int


# --- the process of a lane


def plan_of(job: Job, state: Any) -> Any:
    """The plan of a DAG file with one application."""
    from airflow.sdk import DAG

    from airflow_tx import CommitOperator, FileSource, SparkConnectBatchOperator, Transaction, persistent_aggregate
    from airflow_tx.coordinator.lane_plan import lane_plan
    from airflow_tx.operators.transaction import defined

    source = FileSource(job.glob, files_per_batch=1, schema=SCHEMA, options=OPTIONS)
    with DAG(job.name, schedule=None, max_active_runs=16) as dag, Transaction(source=source):
        counted = SparkConnectBatchOperator(task_id="count", application="lane_spark_app.py")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counted.output["counts"], state=state)])
    return lane_plan(defined(job.name)[0], dag)


def state_of(job: Job) -> Any:
    """The totals of a job."""
    return totals_in(job.url, f"totals_{job.name}")


def totals_in(url: str, table: str) -> Any:
    """The flights and their delays, by carrier and airport."""
    from airflow_tx.state import Count, SqlState, Sum

    values: Any = {"flights": Count(), "dep_delay": Sum()}
    return SqlState.from_url(url, table=table, keys=["carrier", "origin"], values=values)


@contextmanager
def planned(job: Job) -> Iterator[tuple[Any, Any]]:
    """The plan, and the store of its ledger."""
    plan = plan_of(job, state_of(job))
    own = plan.spec
    with topology.connected(job.hosts) as store:
        parts = {"begin": own.begin, "tasks": own.tasks, "inside": own.inside, "stages": True}
        spec = topology.DirectSpec(
            job.name, job.name, own.source, max_pending=PENDING, folder=job.folder, kept=store, **parts
        )
        yield replace(plan, spec=spec), store


def work(job: Job) -> None:
    """Let a lane work; print what it cost."""
    from airflow_tx.coordinator.lane import Lane
    from airflow_tx.ledger.answers import NoData

    with planned(job) as (plan, store):
        lane = Lane(plan, store, topology.TaskInstance("coordinate", "c"), Line(), patience=120)

        def work(count: int) -> None:
            while lane.begun < count and not isinstance(lane.work(0.0), NoData):
                while len(lane.working) >= PENDING:
                    lane.wait(1.0)
            while lane.working:
                lane.wait(1.0)

        with lane.opened():
            work(job.warm)
            before, began, busy = lane.begun, time.perf_counter(), spent(job.server)
            work(job.warm + job.count)
            took, after = time.perf_counter() - began, spent(job.server)
        parts = {name: after[name] - busy[name] for name in busy}
    print(json.dumps({"transactions": lane.begun - before, "seconds": took, **parts}))


def finish(job: Job) -> None:
    """Do what a killed lane has left as its runs would: the next attempt of each, in order."""
    import threading
    from unittest.mock import patch

    from airflow_tx.base import compat
    from airflow_tx.coordinator.lane_applications import LaneApplications
    from airflow_tx.coordinator.lane_tasks import LaneCommit, LaneOutputs, LaneTransaction, LaneTurn
    from airflow_tx.ledger.reading import Reader
    from airflow_tx.ledger.records import TransactionRecord
    from airflow_tx.transaction.commit.turn import commit_in_turn

    with planned(job) as (plan, store):
        paths, ledger = plan.spec.paths, plan.spec.ledger(store)
        children, changed = store.children(paths.transactions), threading.Condition()
        applications = LaneApplications(plan.dag_file, changed, Line())
        for txid in sorted(int(name) for name in children.names):
            record = Reader(store).peek_if_any(TransactionRecord, paths.transaction(txid))
            if record is None:
                continue
            with patch.object(compat, "is_current_try", return_value=True):  # nobody clears it
                begun = topology.begin(plan.spec, record.run_id)
            own = topology.TaskInstance("count", record.run_id)
            outputs = LaneOutputs()
            transaction = LaneTransaction(plan, begun, ledger, own.id, outputs, applications=applications)
            while not transaction.process():
                with changed:
                    changed.wait_for(lambda of=transaction: of.is_ready, 600)  # type: ignore[misc]
            turn = LaneTurn()
            commit = LaneCommit(plan, begun, ledger, own, Line(), outputs=outputs, turn=turn)
            assert commit_in_turn(commit, store, patience=60) is None
    work(job)


def spent(server: int) -> dict[str, float]:
    """Processor seconds of this process, and of the server with what it has started."""
    own = os.times()
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    server_own, children = (sum(map(int, fields[at : at + 2])) / tick for at in (11, 13))
    return {"client": own.user + own.system, "server": server_own, "started by it": children}


# --- the process that measures


def write_flights(folder: Path, times: int) -> Counter[tuple[str, str, str]]:
    """The flights of each month so many times, one file a month; the totals of one."""
    totals = Counter[tuple[str, str, str]]()
    for path in write_months(folder):
        header, _, rows = path.read_text().partition("\n")
        path.write_text(f"{header}\n{rows * times}")
        for row in csv.DictReader(rows.splitlines(), header.split(",")):
            totals[row["carrier"], row["origin"], "flights"] += 1
            late = 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
            totals[row["carrier"], row["origin"], "dep_delay"] += late
    return totals


def check(state: Any, totals: Counter[tuple[str, str, str]], times: int = 1) -> None:
    """Compare totals with what they have to be."""
    found = Counter[tuple[str, str, str]]()
    for row in state.read():
        for name in ("flights", "dep_delay"):
            found[row["carrier"], row["origin"], name] = row[name]
    assert found == Counter({key: value * times for key, value in totals.items()}), state.name


def process(what: str, job: Job) -> subprocess.Popen[str]:
    """Start the process of a lane."""
    command = [sys.executable, "-m", "benchmarks.lane_spark", what, json.dumps(job.__dict__)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measured(what: str, job: Job) -> dict[str, float]:
    """Let a lane work in a process of its own."""
    told, _ = (own := process(what, job)).communicate()
    assert own.returncode == 0, own.returncode
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def killed(job: Job) -> dict[str, float]:
    """Kill a lane once half of its transactions are committed, and do the rest."""
    own, state = process("work", job), state_of(job)
    while own.poll() is None and committed(state) < FILES // 2:
        time.sleep(0.05)
    own.send_signal(signal.SIGKILL)
    own.wait()
    return measured("finish", job)


def committed(state: Any) -> int:
    """How many transactions the state has."""
    try:
        fence = state.fence()
    except Exception:  # noqa: BLE001 - it has no table yet
        return 0
    return 0 if fence is None else int(fence.token.txid)


def report(title: str, rows: int, found: dict[str, float]) -> None:
    """Print it."""
    count, seconds = found["transactions"], found["seconds"]
    each = ", ".join(f"{name} {found[name] / count * 1000:.0f}" for name in ("client", "server", "started by it"))
    print(
        f"  {title:<18} {rows / seconds:9,.0f} rows/s, {seconds / count * 1000:6.1f} ms a transaction; "
        f"processor ms each: {each}; {machine()}",
        flush=True,
    )


def main(count: int = SMALL) -> None:
    """Measure and print."""
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from tests.servers.postgres import LocalPostgres

    with (
        tempfile.TemporaryDirectory() as name,
        LocalZooKeeper() as zookeeper,
        LocalPostgres() as postgres,
        LocalSparkConnect(conf=SERVER) as spark,
    ):
        folder = Path(name)
        address = connection("spark_connect", host="127.0.0.1", port=spark.port)
        os.environ["AIRFLOW_CONN_SPARK_CONNECT_DEFAULT"] = address
        staging, hosts = str(folder / "staging"), zookeeper.hosts
        url = postgres.url(postgres.new_database())

        def job(name: str, of: str, warm: int = 0, count: int = FILES) -> Job:
            return Job(name, f"{folder}/{of}/*.csv", warm, count, staging, hosts, url, spark.pid)

        totals = write_flights(folder / "x1", 1)
        small = sorted((folder / "x1").glob("*.csv"))[0].read_text().splitlines(keepends=True)[: SMALL_ROWS + 1]
        (folder / "small").mkdir()
        (folder / "small" / "000000.csv").write_text("".join(small))
        for number in range(1, SMALL_WARM + count):
            os.link(folder / "small" / "000000.csv", folder / "small" / f"{number:06}.csv")
        print("Applications on a warm Spark Connect server, in a lane", flush=True)
        found = measured("work", job("small", "small", SMALL_WARM, count))
        report(f"{SMALL_ROWS} rows", int(found["transactions"]) * SMALL_ROWS, found)
        for times in (10, 30):
            write_flights(folder / f"x{times}", times)
            rows = [path.read_bytes().count(b"\n") - 1 for path in sorted((folder / f"x{times}").glob("*.csv"))]
            cold, again, torn = (job(f"{kind}{times}", f"x{times}") for kind in ("cold", "warm", "killed"))
            # A process that has just begun: the imports of the client, and a first batch in each session.
            report(f"flights ×{times}, cold", sum(rows), measured("work", cold))
            warm = replace(again, warm=PENDING, count=FILES - PENDING)
            report(f"flights ×{times}, warm", sum(rows[PENDING:]), measured("work", warm))
            killed(torn)
            for each in (cold, warm, torn):
                check(state_of(each), totals, times)
            print(f"  flights ×{times}: totals exact, too after kill -9 in the middle", flush=True)


if __name__ == "__main__":
    quiet()
    if sys.argv[1:2] in (["work"], ["finish"]):
        {"work": work, "finish": finish}[sys.argv[1]](Job(**json.loads(sys.argv[2])))
    else:
        main(*map(int, sys.argv[1:2]))
