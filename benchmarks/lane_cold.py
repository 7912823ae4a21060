"""The lane beside Structured Streaming, in turn, each in a fresh process with a fresh Spark: flights ×10 or ×30.

The files of twelve batches are there before a process begins (waiting), or appear once it has waited (later). Both
sum up the same rows into PostgreSQL. Times are from the first begin: of the lane that of its first transaction, of
Structured Streaming the start of its query; or from the moment when the files appear. Before that, the process of the
lane imports what a scheduler or worker imports before it forks tasks, and Structured Streaming opens its session.
Usage: script/bench lane_cold [10 | 30] [rounds] [waiting | later]
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_tx.base.errors import SourceError
from airflow_tx.testing.airflow import connection
from benchmarks import topology
from benchmarks.figures import machine, quiet
from benchmarks.lane import Line
from benchmarks.lane_spark import FILES, PENDING, SERVER, Job, check, planned, totals_in, write_flights
from benchmarks.peers.place import upsert
from examples.flights import OPTIONS, SCHEMA

# Seconds until the files appear: by then both have nothing left to do.
IDLE = 15.0
ROWS = 336_776


@dataclass(frozen=True)
class Moments:
    """When it was where, by the clock of its process.

    :param began: its first batch.
    :param first: the first commit.
    :param last: the last one.
    """

    began: float
    first: float
    last: float


# --- the processes


def lane(job: Job) -> Moments:
    """Let a lane commit all batches; it says when it waits for them."""
    from airflow_tx.coordinator.lane import Lane
    from airflow_tx.plugin.preload import import_ahead

    import_ahead("lane_cold", client_used=lambda: True)
    began = first = 0.0
    with planned(job) as (plan, store):
        own = Lane(plan, store, topology.TaskInstance("coordinate", "c"), Line(), patience=120)
        with own.opened():
            print("open", flush=True)
            while own.begun < job.count or own.working:
                if own.begun < job.count and len(own.working) < PENDING:
                    before = time.time()
                    with suppress(SourceError):  # there is no file
                        own.work(0.0)
                    if not own.working:
                        time.sleep(0.02)
                    began = began or (before if own.begun else 0.0)
                if own.working and (len(own.working) == PENDING or own.begun == job.count):
                    own.wait(1.0)
                if not first and own.begun and 1 not in own.working:
                    first = time.time()
            return Moments(began, first, time.time())


def streaming(job: Job) -> Moments:
    """Let Structured Streaming commit all batches."""
    import psycopg2  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    logging.getLogger("py4j").setLevel(logging.WARNING)
    local = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark: Any = SparkSession.builder.master("local[2]").config(map={**SERVER, **local}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    own = psycopg2.connect(job.url.replace("+psycopg2", ""))
    done: dict[int, float] = {}
    over = threading.Event()

    def commit(rows: Any, batch: int) -> None:
        late = F.coalesce(F.sum("dep_delay"), F.lit(0))
        key = F.concat_ws("-", "carrier", "origin").alias("key")
        upsert(own, f"totals_{job.name}", [tuple(row) for row in rows.groupBy(key).agg(F.count("*"), late).collect()])
        done[batch] = time.time()
        if batch == job.count - 1:
            over.set()

    reader = spark.readStream.schema(SCHEMA).options(header=True, maxFilesPerTrigger=1, **OPTIONS)
    stream = reader.csv(job.glob).writeStream.foreachBatch(commit)
    began = time.time()
    query = stream.option("checkpointLocation", f"{job.folder}/{job.name}").start()
    print("open", flush=True)
    while not over.wait(0.2):
        if (error := query.exception()) is not None:
            raise error
    query.stop()
    return Moments(began, done[0], done[job.count - 1])


# --- the process that measures


@dataclass(frozen=True)
class Place:
    """What both share."""

    folder: Path
    hosts: str
    url: str
    times: int
    totals: Any


def measure(place: Place, what: str, number: int, *, later: bool) -> Moments:
    """Start a process, and let it commit all batches."""
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect

    name = f"{what}{number}"
    watched = place.folder / name
    watched.mkdir()
    if what == "streaming":
        _make_table(place, name)
    if not later:
        _appear(place, watched)
    with LocalSparkConnect(conf=SERVER) if what == "lane" else nullcontext() as spark:
        port, pid = (0, 0) if spark is None else (spark.port, spark.pid)
        glob, staging = f"{watched}/*.csv", str(place.folder / "staging")
        job = Job(name, glob, 0, FILES, staging, place.hosts, place.url, pid)
        address = connection("spark_connect", host="127.0.0.1", port=port)
        env = {**os.environ, "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": address}
        command = [sys.executable, "-m", "benchmarks.lane_cold", what, json.dumps(asdict(job))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as own:
            assert own.stdout is not None
            assert own.stdout.readline() == "open\n"
            appeared = 0.0
            if later:
                time.sleep(IDLE)
                appeared = time.time()
                _appear(place, watched)
            told = own.stdout.read()
        assert own.returncode == 0, own.returncode
    found = Moments(**json.loads(told.splitlines()[-1]))
    _check(place, what, name)
    return Moments(appeared if later else found.began, found.first, found.last)


def _appear(place: Place, watched: Path) -> None:
    for file in sorted(place.folder.glob("flights/*.csv")):
        os.link(file, watched / file.name)


def _make_table(place: Place, name: str) -> None:
    import psycopg2

    with psycopg2.connect(place.url.replace("+psycopg2", "")) as own, own.cursor() as cursor:
        cursor.execute(f"CREATE TABLE totals_{name} (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")


def _check(place: Place, what: str, name: str) -> None:
    if what == "lane":
        check(totals_in(place.url, f"totals_{name}"), place.totals, place.times)
        return
    import psycopg2

    with psycopg2.connect(place.url.replace("+psycopg2", "")) as own, own.cursor() as cursor:
        cursor.execute(f"SELECT sum(n) FROM totals_{name}")
        assert cursor.fetchone() == (ROWS * place.times,)


def main(times: str = "10", rounds: str = "2", when: str = "waiting") -> None:
    """Measure in turn, and print; the last lines are the medians of the rounds, and their ratios."""
    from statistics import median

    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from tests.servers.postgres import LocalPostgres

    rates: Mapping[str, list[tuple[float, float]]] = {"lane": [], "streaming": []}
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name, LocalZooKeeper() as zookeeper, LocalPostgres() as postgres:
        folder = Path(name)
        totals = write_flights(folder / "flights", int(times))
        url = postgres.url(postgres.new_database())
        place = Place(folder, zookeeper.hosts, url, int(times), totals)
        sizes = [path.read_bytes().count(b"\n") - 1 for path in sorted(folder.glob("flights/*.csv"))]
        print(f"Flights ×{times}, the files {when}: from the first begin; after the first batch", flush=True)
        for number in range(int(rounds)):
            for what in rates:
                found = measure(place, what, number, later=when == "later")
                cold = sum(sizes) / (found.last - found.began)
                warm = sum(sizes[1:]) / (found.last - found.first)
                rates[what].append((cold, warm))
                first = found.first - found.began
                print(
                    f"  {what:<9} {cold:9,.0f} rows/s; {warm:9,.0f} rows/s; first batch {first:.1f} s; {machine()}",
                    flush=True,
                )
    for at, part in enumerate(("from the first begin", "after the first batch")):
        own, other = (median(each[at] for each in rates[what]) for what in rates)
        print(f"  {part}: {own:,.0f} against {other:,.0f} rows/s, {own / other:.2f} times", flush=True)


if __name__ == "__main__":
    quiet()
    if sys.argv[1:2] in (["lane"], ["streaming"]):
        process = {"lane": lane, "streaming": streaming}[sys.argv[1]]
        print(json.dumps(asdict(process(Job(**json.loads(sys.argv[2]))))))
    else:
        main(*sys.argv[1:])
