"""How long a transactional run takes in a real Airflow, against a plain DAG whose three tasks do the same work.

Both read the same rows and upsert the same sums; the runs alternate, one at a time, so nothing waits for its turn.
Usage: script/bench overhead [runs of each]
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine

RUNS = 20
WARM_UP = 2
ROWS, KEYS = 1000, 20
DAGS = Path(__file__).parent / "dags"
TASKS = {"plain": ("choose", "sum_up", "upsert"), "transactional": ("begin", "sum_up", "commit")}


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


def measure(folder: Path, runs: int) -> dict[str, list[dict[str, float]]]:
    """Alternating runs of both DAGs; the first few do not count."""
    write_files(folder / "files", WARM_UP + runs)
    found: dict[str, list[dict[str, float]]] = {"plain": [], "transactional": []}
    with LocalZooKeeper() as zookeeper:
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(folder / "state.db")),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": str(folder),
        }
        with LocalAirflow(folder / "airflow", DAGS, env) as airflow:
            for dag_id in found:
                airflow.wait_dag(dag_id)
            for number in range(WARM_UP + runs):
                # Whatever the first of a pair does to the machine, it does to both.
                for dag_id in sorted(found, reverse=bool(number % 2)):
                    took = run(airflow, dag_id, number)
                    if number >= WARM_UP:
                        found[dag_id].append(took)
    check_tables(folder / "state.db")
    return found


def check_tables(path: Path) -> None:
    """Both have done the same work."""
    handle = sqlite3.connect(path)
    plain, ours = (
        handle.execute(f"SELECT key, n, total FROM {table} ORDER BY key").fetchall()
        for table in ("plain", "transactional")
    )
    handle.close()
    assert len(plain) == KEYS
    assert plain == ours


def main() -> None:
    """Measure and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), runs)
    medians = {
        dag_id: {part: statistics.median(each[part] for each in took) for part in ("run", *TASKS[dag_id])}
        for dag_id, took in found.items()
    }
    print(f"Duration of a run with nothing to wait for, median of {runs}; {machine()}")
    for dag_id, parts in medians.items():
        tasks = ", ".join(f"{task} {parts[task]:.2f}" for task in TASKS[dag_id])
        working = sum(parts[task] for task in TASKS[dag_id])
        print(f"  {dag_id:14} {parts['run']:.2f} s   tasks {working:.2f} s: {tasks}")
    runs_of = {dag_id: statistics.quantiles([each["run"] for each in took], n=4) for dag_id, took in found.items()}
    print("  quartiles: " + ", ".join(f"{dag} {low:.2f} to {high:.2f} s" for dag, (low, _, high) in runs_of.items()))
    print(f"  ratio of the medians {medians['transactional']['run'] / medians['plain']['run']:.3f}")


if __name__ == "__main__":
    main()
