"""What a transactional run costs in a real Airflow, against a plain DAG whose three tasks do the same work.

All read the same rows and upsert the same sums; the runs alternate, one at a time, so nothing waits for its turn. Each
way of `[tx] preload` has an Airflow of its own; the processor time of a task is that of its process, imports included.
`parts` says what takes it; `submit` does the same work through spark-submit, a month a run; `celery` has a worker of
Celery, where Airflow's provider for Celery is installed.
Usage: script/bench overhead [parts | submit | celery] [runs of each]
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine
from tests.servers.redis import LocalRedis

RUNS = 12
WARM_UP = 2
ROWS, KEYS = 1000, 20
DAGS = Path(__file__).parent / "dags"
TASKS = {
    "plain": ("choose", "sum_up", "upsert"),
    "transactional": ("begin", "sum_up", "commit"),
    "connected": ("begin", "sum_up", "commit"),
}
UNSET = "auto, for nothing is set"
PRELOADS = (UNSET, "", "airflow_tx")
STARTS = 3
WORKERS = 4
CELERY = "AIRFLOW__CELERY__BROKER_URL"

PARTS = ("process", "imports", "Airflow's API", "ZooKeeper", "source", "staging", "state", "Spark")
PLAIN = {"begin": "choose", "sum_up": "sum_up", "commit": "upsert"}
"""The plain task that is compared with each of ours."""
MONTHS = 12
MONTH_ROWS = 28_000
SUBMITTED = ("submitted_plain", "submitted")


def write_files(folder: Path, count: int, rows: int = ROWS) -> None:
    """`count` csv files of so many rows."""
    folder.mkdir()
    for file in range(count):
        lines = [f"key{row % KEYS},{row}" for row in range(rows)]
        (folder / f"{file:04}.csv").write_text("\n".join(["key,value", *lines, ""]))


def seconds(part: Mapping[str, Any]) -> float:
    """From start to end of a run or a task."""
    start, end = (datetime.fromisoformat(part[name]) for name in ("start_date", "end_date"))
    return (end - start).total_seconds()


def run(airflow: LocalAirflow, dag_id: str, number: int) -> dict[str, float]:
    """One run: how long it took, and how long each of its tasks worked."""
    run_id = f"run{number}"
    airflow.trigger(dag_id, run_id, {"number": number})
    found = {"run": seconds(airflow.wait_run(dag_id, run_id))}
    for task in airflow.task_instances(dag_id, run_id):
        found[task["task_id"]] = seconds(task)
    return found


Found = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Noted:
    """What a task has noted of its processor time: of its process, of others that it started, and by part."""

    dag_id: str
    number: int
    task: str
    own: float
    others: float
    parts: Mapping[str, float]
    memory: int


def noted(folder: Path) -> list[Noted]:
    """Read what tasks have noted, of the runs that count."""
    found = []
    for line in (folder / "processor_time").read_text().splitlines():
        dag_id, run_id, task, (own, others), parts, memory = json.loads(line)
        found.append(Noted(dag_id, int(run_id.removeprefix("run")), task, own, others, parts, memory))
    return [each for each in found if each.number >= WARM_UP]


@contextmanager
def local_airflow(folder: Path, **env: str) -> Iterator[LocalAirflow]:
    """Airflow with what its tasks connect to."""
    with LocalZooKeeper() as zookeeper, LocalSparkConnect() as spark:
        env |= {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(folder / "state.db")),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": connection("spark_connect", host="127.0.0.1", port=spark.port),
            "AIRFLOW_CONN_SPARK_DEFAULT": connection("spark", host="local[1]"),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": str(folder),
        }
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            yield airflow


def alternate(airflow: LocalAirflow, dag_ids: Sequence[str], runs: int) -> Found:
    """Run all DAGs in turn; the first few runs do not count."""
    took: Found = {dag_id: defaultdict(list) for dag_id in dag_ids}
    for dag_id in dag_ids:
        airflow.wait_dag(dag_id)
    for number in range(WARM_UP + runs):
        # Whatever the first one does to the machine, it does to each in turn.
        first = number % len(dag_ids)
        for dag_id in [*dag_ids[first:], *dag_ids[:first]]:
            for part, each in run(airflow, dag_id, number).items():
                took[dag_id][part] += [each] if number >= WARM_UP else []
    return took


def check_tables(path: Path, tables: Sequence[str]) -> None:
    """All have done the same work."""
    handle = sqlite3.connect(path)
    plain, *ours = (handle.execute(f"SELECT key, n, total FROM {table} ORDER BY key").fetchall() for table in tables)
    handle.close()
    assert len(plain) == KEYS
    assert all(each == plain for each in ours)


@dataclass(frozen=True)
class SchedulerCost:
    """What a scheduler takes: seconds and processor time from its process to its first worker; bytes of memory.

    :param together: of itself and its idle workers, what they share counted once.
    """

    started: float
    computed: float
    memory: int
    together: int


def start_of_scheduler(airflow: LocalAirflow) -> SchedulerCost:
    """Kill the scheduler, and start another one."""
    for process in schedulers(airflow):
        for each in [process, *process.children(recursive=True)]:
            # Some end with the one before them.
            with suppress(psutil.NoSuchProcess):
                each.kill()
                each.wait()
    began = time.monotonic()
    airflow.start_component("scheduler")
    scheduler, *_ = eventually(lambda: schedulers(airflow), 60, "a scheduler runs", interval=0.01)
    eventually(lambda: any(map(is_worker, scheduler.children())), 60, "it has forked a worker", interval=0.01)
    started = time.monotonic() - began
    computed = sum(scheduler.cpu_times()[:2])
    eventually(lambda: sum(map(is_worker, scheduler.children())) == WORKERS, 60, "it has forked all", interval=0.1)
    time.sleep(3)
    workers = [each for each in scheduler.children() if is_worker(each)]
    shared = sum(each.memory_full_info().pss for each in (scheduler, *workers))
    return SchedulerCost(started, computed, scheduler.memory_info().rss, shared)


def schedulers(airflow: LocalAirflow) -> list[psutil.Process]:
    """Find the process that forks the workers."""
    family = [psutil.Process(pid) for pid in airflow.processes() if psutil.pid_exists(pid)]
    return [each for each in family if each.cmdline()[-2:] == ["airflow", "scheduler"]]


def is_worker(process: psutil.Process) -> bool:
    """Whether it is a worker of the LocalExecutor."""
    return "LocalExecutor" in " ".join(process.cmdline())


@dataclass(frozen=True)
class Measured:
    """Seconds of each run and task; what the tasks have noted; seconds of each Spark job; starts of the scheduler."""

    took: Found
    tasks: list[Noted]
    jobs: list[float]
    starts: list[SchedulerCost]


def measure(folder: Path, runs: int, preload: str, **env: str) -> Measured:
    """Alternating runs of all DAGs, and starts of the scheduler."""
    write_files(folder / "files", WARM_UP + runs)
    if preload != UNSET:
        env["AIRFLOW__TX__PRELOAD"] = preload
    env["AIRFLOW__CORE__PARALLELISM"] = str(WORKERS)
    with local_airflow(folder, **env) as airflow:
        if CELERY in env:
            airflow.start_component("celery worker")
        took = alternate(airflow, [*TASKS], runs)
        starts = [start_of_scheduler(airflow) for _ in range(0 if CELERY in env else STARTS)]
    check_tables(folder / "state.db", [*TASKS])
    jobs = [json.loads(line) for line in (folder / "spark_job").read_text().splitlines()]
    return Measured(took, noted(folder), jobs[WARM_UP:], starts)


def celery_worker(redis: LocalRedis, results: str, slots: int) -> dict[str, str]:
    """Configure Airflow for a Celery worker with so many slots.

    :param results: SQLAlchemy's URL of the database for Celery's results.
    """
    return {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        CELERY: redis.url(),
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{results}",
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(slots),
    }


def celery(runs: int) -> None:
    """Print what they cost on a Celery worker."""
    for preload in PRELOADS:
        with tempfile.TemporaryDirectory() as folder, LocalRedis() as redis:
            settings = celery_worker(redis, f"sqlite:///{folder}/results.db", WORKERS)
            found = measure(Path(folder), runs, preload, **settings)
        print_cost(preload, runs, found)


def overhead(runs: int) -> None:
    """Print what a run costs, and a Connect task."""
    for preload in PRELOADS:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), runs, preload)
        print_cost(preload, runs, found)


def print_cost(preload: str, runs: int, found: Measured) -> None:
    """Print medians, for one way of `[tx] preload`."""
    print(f"[tx] preload = {preload}: medians of {runs} runs with nothing to wait for; {machine()}")
    whole = {dag_id: statistics.median(each["run"]) for dag_id, each in found.took.items()}
    for dag_id, names in TASKS.items():
        parts = ", ".join(
            f"{task} {statistics.median(found.took[dag_id][task]):.2f} s "
            f"(processor {median_of(found.tasks, dag_id, task):.2f})"
            for task in names
        )
        memory = max(each.memory for each in found.tasks if each.dag_id == dag_id) / 1e6
        parts += f"; memory of a task's own at most {memory:.0f} MB"
        print(f"  {dag_id:14} {whole[dag_id]:.2f} s, {whole[dag_id] / whole['plain']:.2f} of plain: {parts}")
    beyond = statistics.median(found.took["connected"]["sum_up"]) - statistics.median(found.jobs)
    print(f"  a Connect task {beyond:.2f} s beyond its Spark job of {statistics.median(found.jobs):.2f} s")
    if found.starts:
        print_scheduler(found.starts)


def print_scheduler(starts: Sequence[SchedulerCost]) -> None:
    """Print medians of what a start costs."""
    started, computed = (statistics.median(getattr(each, name) for each in starts) for name in ("started", "computed"))
    memory, together = (
        statistics.median(getattr(each, name) for each in starts) / 1e6 for name in ("memory", "together")
    )
    print(
        f"  scheduler: first worker after {started:.2f} s (processor {computed:.2f}), memory {memory:.0f} MB, with "
        f"{WORKERS} idle workers {together:.0f} MB"
    )


def median_of(tasks: Sequence[Noted], dag_id: str, task: str, part: str | None = None) -> float:
    """Return the processor time of a task, or of one part of it."""
    own = [each for each in tasks if (each.dag_id, each.task) == (dag_id, task)]
    return statistics.median(each.own if part is None else each.parts.get(part, 0.0) for each in own)


def parts(runs: int) -> None:
    """Print which part of a task takes its processor time, and how much more than that of a plain task."""
    for preload in PRELOADS:
        with tempfile.TemporaryDirectory() as folder:
            tasks = measure(Path(folder), runs, preload, AIRFLOW_TX_PARTS="1").tasks
        print(f"[tx] preload = {preload}: processor time in ms, medians of {runs} runs; {machine()}")
        print(f"  {'':24}" + "".join(f"{part:>15}" for part in (*PARTS, "all", "beyond plain")))
        for dag_id, names in TASKS.items():
            for task in names:
                whole = median_of(tasks, dag_id, task)
                plain = median_of(tasks, "plain", task if dag_id == "plain" else PLAIN[task])
                each = [*(median_of(tasks, dag_id, task, part) for part in PARTS), whole, whole - plain]
                print(f"  {f'{dag_id} {task}':24}" + "".join(f"{1000 * found:15.0f}" for found in each))


def submit(runs: int) -> None:
    """Print what a year costs through spark-submit, a month a run, against a plain DAG with the same application."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "files", WARM_UP + runs, MONTH_ROWS)
        with local_airflow(folder, AIRFLOW__TX__PRELOAD="airflow_tx") as airflow:
            took = alternate(airflow, SUBMITTED, runs)
        check_tables(folder / "state.db", SUBMITTED)
        tasks = noted(folder)
    print(f"{runs} files of {MONTH_ROWS} rows through spark-submit, one run at a time; {machine()}")
    wall = {dag_id: sum(took[dag_id]["run"]) for dag_id in SUBMITTED}
    work = {dag_id: sum(each.own + each.others for each in tasks if each.dag_id == dag_id) for dag_id in SUBMITTED}
    for dag_id in SUBMITTED:
        by_task = ", ".join(
            f"{task} {statistics.median(each):.2f} s" for task, each in sorted(took[dag_id].items()) if task != "run"
        )
        print(
            f"  {dag_id:16} {wall[dag_id]:.1f} s, {wall[dag_id] / wall[SUBMITTED[0]]:.2f} of plain; processor "
            f"{work[dag_id]:.1f} s, {work[dag_id] / work[SUBMITTED[0]]:.2f} of plain; medians: {by_task}"
        )


def main(what: str, *count: str) -> None:
    """Measure and print."""
    known = {"parts": (parts, RUNS), "celery": (celery, RUNS), "submit": (submit, MONTHS)}
    if what not in known:
        count = (what,) if what else ()
    function, runs = known.get(what, (overhead, RUNS))
    function(int(count[0]) if count else runs)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
