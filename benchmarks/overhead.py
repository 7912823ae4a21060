"""What a transactional run costs in a real Airflow, against a plain DAG whose three tasks do the same work.

All read the same rows and upsert the same sums; the runs alternate, one at a time, so nothing waits for its turn. Each
way of `[tx] preload` has an Airflow of its own; the processor time of a task is that of its process, imports included.
Usage: script/bench overhead [runs of each]
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine

RUNS = 12
WARM_UP = 2
ROWS, KEYS = 1000, 20
DAGS = Path(__file__).parent / "dags"
TASKS = {
    "plain": ("choose", "sum_up", "upsert"),
    "transactional": ("begin", "sum_up", "commit"),
    "connected": ("begin", "sum_up", "commit"),
}
PRELOADS = ("", "airflow_tx", "airflow_tx, pyspark.sql.connect.session")


def write_files(folder: Path, count: int) -> None:
    """`count` csv files of ROWS rows."""
    folder.mkdir()
    for file in range(count):
        lines = [f"key{row % KEYS},{row}" for row in range(ROWS)]
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


def measure(folder: Path, runs: int, preload: str) -> tuple[Found, Found, list[float]]:
    """Alternating runs of all DAGs, the first few of which do not count.

    :return: seconds of each run and task; processor seconds of each task; seconds of each Spark job.
    """
    write_files(folder / "files", WARM_UP + runs)
    took: Found = {dag_id: defaultdict(list) for dag_id in TASKS}
    with LocalZooKeeper() as zookeeper, LocalSparkConnect() as spark:
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(folder / "state.db")),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": connection("spark_connect", host="127.0.0.1", port=spark.port),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW__TX__PRELOAD": preload,
            "AIRFLOW_TX_DATA": str(folder),
        }
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            for dag_id in TASKS:
                airflow.wait_dag(dag_id)
            for number in range(WARM_UP + runs):
                # Whatever the first one does to the machine, it does to each in turn.
                first = number % len(TASKS)
                for dag_id in [*TASKS][first:] + [*TASKS][:first]:
                    for part, each in run(airflow, dag_id, number).items():
                        took[dag_id][part] += [each] if number >= WARM_UP else []
    check_tables(folder / "state.db")
    computed: Found = {dag_id: defaultdict(list) for dag_id in TASKS}
    for line in (folder / "processor_time").read_text().splitlines():
        dag_id, run_id, task, each = json.loads(line)
        computed[dag_id][task] += [each] if int(run_id.removeprefix("run")) >= WARM_UP else []
    jobs = [json.loads(line) for line in (folder / "spark_job").read_text().splitlines()]
    return took, computed, jobs[WARM_UP:]


def check_tables(path: Path) -> None:
    """All have done the same work."""
    handle = sqlite3.connect(path)
    plain, *ours = (handle.execute(f"SELECT key, n, total FROM {table} ORDER BY key").fetchall() for table in TASKS)
    handle.close()
    assert len(plain) == KEYS
    assert all(each == plain for each in ours)


def main() -> None:
    """Measure and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    for preload in PRELOADS:
        with tempfile.TemporaryDirectory() as folder:
            took, computed, jobs = measure(Path(folder), runs, preload)
        print(f"[tx] preload = {preload}: medians of {runs} runs with nothing to wait for; {machine()}")
        whole = {dag_id: statistics.median(each["run"]) for dag_id, each in took.items()}
        for dag_id, tasks in TASKS.items():
            parts = ", ".join(
                f"{task} {statistics.median(took[dag_id][task]):.2f} s (processor "
                f"{statistics.median(computed[dag_id][task]):.2f})"
                for task in tasks
            )
            print(f"  {dag_id:14} {whole[dag_id]:.2f} s, {whole[dag_id] / whole['plain']:.2f} of plain: {parts}")
        beyond = statistics.median(took["connected"]["sum_up"]) - statistics.median(jobs)
        print(f"  a Connect task {beyond:.2f} s beyond its Spark job of {statistics.median(jobs):.2f} s")


if __name__ == "__main__":
    main()
