"""The world with a whole Airflow in it: its components, its database and its task processes are under fire, too."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx

from airflow_tx.testing.airflow import COMPONENTS, LocalAirflow
from airflow_tx.testing.airflow_client import AirflowAnswer
from tests.chaos.airflow_runs import AirflowRuns
from tests.chaos.dates import day_of
from tests.chaos.scheduler import LittleScheduler
from tests.chaos.topology import COORDINATED, DAGS, DATED, REAL, STORES
from tests.chaos.world import World
from tests.servers.postgres import LocalPostgres

_METADATA = "metadata database"
# Seconds. Airflow is to notice within moments that a scheduler, a triggerer or a task is dead.
_NOTICED = {
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "5",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "CORE__PARALLELISM": "8",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
    "TX__MIN_DEFERRAL": "10",
}


class AirflowWorld(World):
    """As `World`, and each run is one of Airflow, with the LocalExecutor."""

    components = (*COMPONENTS, _METADATA)

    def __init__(self, folder: Path, *, mutant: str = "") -> None:
        super().__init__(folder, mutant=mutant)
        self.metadata = LocalPostgres()

    def _begin(self, stack: ExitStack) -> None:
        stack.callback(self.metadata.close)
        self._metadata_url = self.metadata.start().url(self.metadata.new_database())
        super()._begin(stack)
        stack.callback(self.airflow.stop, 0)
        self.airflow.start()
        for dag_id in (*STORES, *(f"{name}_coordinator" for name in COORDINATED)):
            self.airflow.wait_dag(dag_id)
        self._runs.watch()

    def _make_scheduler(self) -> LittleScheduler:
        dags = shutil.copytree(DAGS, self.folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        self.airflow = LocalAirflow(self.folder / "home", dags, self._environment())
        self._runs = AirflowRuns(self._address, self._spawn, self.airflow)
        return self._runs

    def _environment(self) -> dict[str, str]:
        own: Mapping[str, str] = {f"AIRFLOW__{name}": value for name, value in _NOTICED.items()}
        return {**super()._environment(), **own, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._metadata_url, REAL: "1"}

    def coordinate(self, name: str) -> None:
        """Nothing: Airflow has coordinators."""

    def backfill(self, number: int = 0) -> None:
        """Now and then as Airflow does it: its runs have run slots of their own, and any order."""
        if number == 0 or number % 20:
            super().backfill(number)
            return
        with contextlib.suppress(AirflowAnswer, httpx.HTTPError):
            dates = (day_of(number), day_of(self.numbers[DATED] - 1))
            self.airflow.create_backfill(DATED, *dates, reprocess="failed", backwards=number % 40 == 0)

    def component(self, name: str) -> int | None:
        if name == _METADATA:
            return None if self.metadata._process is None else self.metadata._process.pid
        process = self.airflow._components[name]
        return process.pid if process.poll() is None else None

    def kill_component(self, name: str) -> None:
        if name == _METADATA:
            self.metadata.kill()
            self.metadata.start()
            return
        pid = self.component(name)
        if pid is not None:
            self._runs.end_host(pid)

    def keep_up(self) -> None:
        for name in COMPONENTS:
            if self.component(name) is None:
                self.airflow.start_component(name)

    def logs(self, name: str, lines: int = 60) -> str:
        return f"{super().logs(name, lines)}\n{self.airflow.component_logs(10)}"
