"""The runs of a whole Airflow, as its API shows them, again and again in a thread: it may be away."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from airflow_tx.testing.airflow_client import AirflowAnswer, AirflowClient, run_path
from airflow_tx.testing.processes import signal_process
from tests.chaos.scheduler import TASKS, LittleRun, LittleScheduler, Try
from tests.chaos.topology import COORDINATED, STORES

_POLL = 2.0
_COORDINATORS = {f"{name}_coordinator": name for name in COORDINATED}
_AWAY = (AirflowAnswer, httpx.HTTPError)


class AirflowRuns(LittleScheduler):
    """Runs of topologies are those of Airflow; what asks questions or acts is executed here.

    :param client: of its API.
    """

    def __init__(self, address: str, spawn: Callable[[str, str, dict[str, Any]], Any], client: AirflowClient) -> None:
        super().__init__(address, spawn)
        self._client = client
        self._known: dict[str, list[LittleRun]] = {name: [] for name in STORES}
        self._tasks: list[tuple[LittleRun, str, int]] = []
        self._ending = threading.Event()

    def watch(self) -> None:
        """Begin to look, once Airflow is there."""
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        super().close()

    def start(self, dag_id: str, run_id: str, program: str = "execute", **conf: Any) -> LittleRun:
        if program != "execute":
            return super().start(dag_id, run_id, program, **conf)
        run = LittleRun(dag_id, run_id, program, {}, {})
        with contextlib.suppress(*_AWAY):
            self._client.trigger(dag_id, run_id)
            self._known[dag_id].append(run)
        return run

    def clear(self, run: LittleRun, first: str = "begin") -> None:
        with contextlib.suppress(*_AWAY):
            if first == "begin":
                self._client.call("POST", f"{run_path(run.dag_id, run.run_id)}/clear", json={"dry_run": False})
                return
            body = {"dry_run": False, "dag_run_id": run.run_id, "task_ids": list(TASKS[TASKS.index(first) :])}
            body |= {"only_failed": False, "reset_dag_runs": True}
            self._client.call("POST", f"dags/{run.dag_id}/clearTaskInstances", json=body)

    def silent(self, pid: int) -> bool:
        return False  # Airflow finds out by itself

    def processes(self) -> list[tuple[LittleRun, str, int]]:
        found = [entry for entry in self._tasks if os.path.exists(f"/proc/{entry[2]}")]
        return [*found, *super().processes()]

    def of(self, dag_id: str, program: str = "execute") -> list[LittleRun]:
        return list(self._known[dag_id]) if program == "execute" else super().of(dag_id, program)

    def end_host(self, pid: int) -> None:
        """Kill a process with all that it has started."""
        for each in [*_below(pid), pid]:
            signal_process(each, 9)

    def _watch(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(*_AWAY):
                for name in STORES:
                    runs = self._client.runs(name)
                    self._known[name] = [
                        LittleRun(name, run["dag_run_id"], "execute", {}, {}, run["state"]) for run in runs
                    ]
                path, wanted = "dags/~/dagRuns/~/taskInstances", {"state": "running"}
                self._tasks = [
                    _task(each) for each in self._client.listed(path, "task_instances", wanted) if each["pid"]
                ]
            time.sleep(_POLL)


def _task(told: dict[str, Any]) -> tuple[LittleRun, str, int]:
    dag_id, task, pid = told["dag_id"], told["task_id"], int(told["pid"])
    name = _COORDINATORS.get(dag_id, dag_id)
    program = "execute" if name == dag_id else "coordinate"
    return LittleRun(name, told["dag_run_id"], program, {}, {task: Try()}, "running"), task, pid


def _below(pid: int) -> list[int]:
    """The processes that a process has started, and what these have."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(above, []).append(int(entry.name))
    found, left = list[int](), [pid]
    while left:
        own = parents.get(left.pop(), [])
        found += own
        left += own
    return found
