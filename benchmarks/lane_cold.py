"""The lane beside Structured Streaming, in turn, each in a fresh process with a fresh Spark: flights ×10 or ×30.

The files of twelve batches are there before a process begins (waiting), or appear once it has waited (later). Both
sum up the same rows into PostgreSQL. Times are from the first begin: of the lane that of its first transaction, of
Structured Streaming the start of its query; or from the moment when the files appear. Before that, the process of the
lane imports what a scheduler or worker imports before it forks tasks, and Structured Streaming opens its session.
Processor time is that of all processes: the client, Spark and what it starts, ZooKeeper and PostgreSQL. On a machine
that does other work, only this can be compared. Both are measured with both compilers of the JVM, and with the first
one alone. Usage: script/bench lane_cold [10 | 30] [rounds] [waiting | later]
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_tx.base.errors import SourceError
from airflow_tx.testing.airflow import connection
from benchmarks import topology
from benchmarks.figures import machine, processor_seconds, quiet
from benchmarks.lane import Line
from benchmarks.lane_spark import FILES, PENDING, SERVER, Job, check, planned, totals_in, write_flights
from benchmarks.peers.place import upsert
from examples.flights import OPTIONS, SCHEMA

# Seconds until the files appear: by then both have nothing left to do.
IDLE = 15.0
ROWS = 336_776
# Of the JVM: the second compiler, and what it would make faster, is left out.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
KINDS = {
    "lane": ("lane", ""),
    "streaming": ("streaming", ""),
    "lane, C1": ("lane", FIRST_COMPILER),
    "streaming, C1": ("streaming", FIRST_COMPILER),
}


@dataclass(frozen=True)
class Moment:
    """The clock, and the processor time of all processes but the one that measures."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> Moment:
        """This one."""
        return cls(time.time(), processor_seconds() - sum(os.times()[:2]))


# --- the processes; each says what it has reached: open, began, first, last


def say(what: str) -> None:
    """Tell the process that measures."""
    print(what, flush=True)


def lane(job: Job) -> None:
    """Let a lane commit all batches; it says when it waits for them."""
    from airflow_tx.coordinator.lane import Lane
    from airflow_tx.plugin.preload import import_ahead

    import_ahead("lane_cold", client_used=lambda: True)
    first = False
    with planned(job) as (plan, store):
        own = Lane(plan, store, topology.TaskInstance("coordinate", "c"), Line(), patience=120)
        with own.opened():
            say("open")
            while own.begun < job.count or own.working:
                if own.begun < job.count and len(own.working) < PENDING:
                    if not own.begun:
                        say("began")
                    with suppress(SourceError):  # there is no file
                        own.work(0.0)
                    if not own.working:
                        time.sleep(0.02)
                if own.working and (len(own.working) == PENDING or own.begun == job.count):
                    own.wait(1.0)
                if not first and own.begun and 1 not in own.working:
                    first = True
                    say("first")
            say("last")


def streaming(job: Job) -> None:
    """Let Structured Streaming commit all batches."""
    import psycopg2  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    logging.getLogger("py4j").setLevel(logging.WARNING)
    local = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark: Any = SparkSession.builder.master("local[2]").config(map={**SERVER, **local}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    own = psycopg2.connect(job.url.replace("+psycopg2", ""))
    over = threading.Event()

    def commit(rows: Any, batch: int) -> None:
        late = F.coalesce(F.sum("dep_delay"), F.lit(0))
        key = F.concat_ws("-", "carrier", "origin").alias("key")
        upsert(own, f"totals_{job.name}", [tuple(row) for row in rows.groupBy(key).agg(F.count("*"), late).collect()])
        if batch == 0:
            say("first")
        if batch == job.count - 1:
            say("last")
            over.set()

    reader = spark.readStream.schema(SCHEMA).options(header=True, maxFilesPerTrigger=1, **OPTIONS)
    stream = reader.csv(job.glob).writeStream.foreachBatch(commit)
    say("open")
    say("began")
    query = stream.option("checkpointLocation", f"{job.folder}/{job.name}").start()
    while not over.wait(0.2):
        if (error := query.exception()) is not None:
            raise error
    query.stop()


# --- the process that measures


@dataclass(frozen=True)
class Place:
    """What both share."""

    folder: Path
    hosts: str
    url: str
    times: int
    totals: Any


def measure(place: Place, kind: str, number: int, *, later: bool) -> dict[str, Moment]:
    """Start a process, and let it commit all batches."""
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect

    what, options = KINDS[kind]
    name = f"{what}{number}{'_c1' if options else ''}"
    watched = place.folder / name
    watched.mkdir()
    if what == "streaming":
        _make_table(place, name)
    if not later:
        _appear(place, watched)
    jvm = {"JAVA_TOOL_OPTIONS": options} if options else {}
    with LocalSparkConnect(conf=SERVER, env=jvm) if what == "lane" else nullcontext() as spark:
        port, pid = (0, 0) if spark is None else (spark.port, spark.pid)
        glob, staging = f"{watched}/*.csv", str(place.folder / "staging")
        job = Job(name, glob, 0, FILES, staging, place.hosts, place.url, pid)
        address = connection("spark_connect", host="127.0.0.1", port=port)
        env = {**os.environ, **jvm, "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": address}
        command = [sys.executable, "-m", "benchmarks.lane_cold", what, json.dumps(asdict(job))]
        found: dict[str, Moment] = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as own:
            assert own.stdout is not None
            for said in map(str.strip, own.stdout):
                if said == "open" and later:
                    time.sleep(IDLE)
                    found["began"] = Moment.now()
                    _appear(place, watched)
                elif not (said == "began" and later):
                    found[said] = Moment.now()
        assert own.returncode == 0, own.returncode
    _check(place, what, name)
    return found


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
    """Measure in turn, and print; the last lines are the medians of the rounds."""
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from tests.servers.postgres import LocalPostgres

    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as name, LocalZooKeeper() as zookeeper, LocalPostgres() as postgres:
        folder = Path(name)
        totals = write_flights(folder / "flights", int(times))
        url = postgres.url(postgres.new_database())
        place = Place(folder, zookeeper.hosts, url, int(times), totals)
        sizes = [path.read_bytes().count(b"\n") - 1 for path in sorted(folder.glob("flights/*.csv"))]
        print(f"Flights ×{times}, the files {when}: all, from the first begin; all but the first batch", flush=True)
        for number in range(int(rounds)):
            for kind in KINDS:
                at = measure(place, kind, number, later=when == "later")
                values = [at["last"].processor - at[since].processor for since in ("began", "first")]
                seconds = [at["last"].clock - at[since].clock for since in ("began", "first")]
                values += [sum(sizes) / seconds[0], sum(sizes[1:]) / seconds[1]]
                found[kind].append(values)
                report(kind, values, machine())
    print("medians", flush=True)
    for kind, rounds_of in found.items():
        report(kind, [statistics.median(each) for each in zip(*rounds_of, strict=True)], "")


def report(kind: str, values: list[float], under: str) -> None:
    """Print the processor time and the rates."""
    cold, warm, rate, after = values
    print(
        f"  {kind:<14} processor {cold:5.1f} s; {warm:5.1f} s; {rate:9,.0f} rows/s; {after:9,.0f} rows/s  {under}",
        flush=True,
    )


if __name__ == "__main__":
    quiet()
    if sys.argv[1:2] in (["lane"], ["streaming"]):
        {"lane": lane, "streaming": streaming}[sys.argv[1]](Job(**json.loads(sys.argv[2])))
    else:
        main(*sys.argv[1:])
