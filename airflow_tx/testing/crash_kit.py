"""The crash kit runs a DAG on a local Airflow, kills it at each failpoint that it passes, and compares the totals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.airflow_client import AIRFLOW_PATIENCE, RUN_ENDED
from airflow_tx.testing.eventually import Hopeless, eventually
from airflow_tx.testing.failpoints import Armed, Failpoints

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

Totals = Mapping[Any, float]
_POINTS = (
    "begin.before_ask",
    "begin.before_open",
    "begin.before_note",
    "begin.after_allocate",
    "commit.before_journal",
    "commit.after_journal",
    "commit.before_acquire",
    "commit.after_acquire",
    "commit.before_write",
    "commit.before_mark",
    "commit.after_mark",
)
_TASK_POINTS = ("process.after_start", "process.before_ack", "process.after_ack", "spark.batch")
_REMEDY = (
    "A retry repeats what a task writes by itself. Let the task return its rows, and a CommitOperator write them "
    "into a state."
)

_NO_TRANSACTION = (
    "Put the tasks into `with Transaction(...)`, or name its topology: check(..., topology=...)."
)
_PARSED = 30
"""The seconds that Airflow may take to read the remaining files of the folder after the first one."""
_NO_ROWS = "Let feed give the source rows that it has not taken: a FileSource takes files in the order of their names."


@dataclass(frozen=True)
class Line:
    """A line of the package at which a process can be killed.

    :param point: the name of the failpoint.
    :param task: the task that passes the line, or "" for any task.
    """

    point: str
    task: str = ""

    def __str__(self) -> str:
        return f"{self.point} of task {self.task}" if self.task else self.point


class CrashKit:
    """Runs a DAG on a local Airflow, kills a process of each run at a different line, and compares the totals.

        with CrashKit(tmp_path, "dags", zookeeper, env) as kit:
            kit.check("text_words", totals, feed)

    AIRFLOW_HOME is the subfolder `airflow` of `folder`. Relative paths of sources are below `folder`.

    :param folder: the folder for all files of the test.
    :param dags_folder: the folder of the DAG files.
    :param zookeeper: the ZooKeeper of the ledger.
    :param env: additional environment variables for all processes, such as the connections of the states.
    """

    def __init__(
        self,
        folder: Path,
        dags_folder: Path | str,
        zookeeper: LocalZooKeeper,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if not any(Path(dags_folder).rglob("*.py")):
            raise AssertionError(f"{dags_folder} holds no DAG file. Name the folder of your DAGs.")
        self.failpoints = Failpoints(folder / "failpoints")
        settings = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "3",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
            "AIRFLOW_TX_DATA": str(folder.resolve()),
            **self.failpoints.environment,
            **(env or {}),
        }
        self.airflow = LocalAirflow(folder / "airflow", dags_folder, settings)
        self._runs = 0

    def __enter__(self) -> Self:
        self.airflow.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.airflow.stop()

    def check(
        self,
        dag_id: str,
        totals: Callable[[], Totals],
        feed: Callable[[str], object] = lambda run: None,
        *,
        topology: str | None = None,
        first_date: datetime | None = None,
    ) -> list[str]:
        """Check that a run adds the same values after each kill, and that clearing it after its commit adds nothing.

        :param totals: a function that returns the totals that the DAG adds to, by any key.
        :param feed: a function that adds the same rows to the source before each run. Its argument is the run_id. The
            run_ids sort in the order of the runs.
        :param topology: the name of the topology, if it is not the dag_id.
        :param first_date: the logical date of the first run, if runs need a date. Each later run is one day later.
        :return: the lines at which a process was killed.
        :raises AssertionError: a run has added other values. The error names the line and the numbers.
        """

        def start_run() -> str:
            self._runs += 1
            run_id = f"crash_{self._runs:03}"
            feed(run_id)
            self._trigger_and_wait(dag_id, run_id, first_date)
            return run_id

        self._wait_for_dag(dag_id)
        self._wait_for_runs(dag_id)
        lines = self._lines(dag_id, topology or dag_id, start_run)
        once = _added(totals, start_run)
        if not once:
            raise AssertionError(f"{dag_id}: a run without a crash added nothing. {_NO_ROWS}")
        for line in lines:
            killed = self._arm(line, "kill", topology or dag_id)
            _compare(f"{dag_id}, killed at {line}", _added(totals, start_run), once)
            if not killed.reached:
                raise AssertionError(f"{dag_id}: no process reached {line}.")
        last = start_run()
        _compare(
            f"{dag_id}, cleared after its commit",
            _added(totals, lambda: self._clear(dag_id, last)),
            {},
        )
        return [str(line) for line in lines]

    def _lines(self, dag_id: str, topology: str, start_run: Callable[[], object]) -> list[Line]:
        """Return the lines that a run passes. A pause is armed at each line, and released before the run starts."""
        tasks = [task["task_id"] for task in self.airflow.listed(f"dags/{dag_id}/tasks", "tasks")]
        lines = [Line(point) for point in _POINTS]
        lines += [Line(point, task) for task in tasks for point in _TASK_POINTS]
        armed = {line: self._arm(line, "pause", topology) for line in lines}
        for each in armed.values():
            each.release()
        start_run()
        found = [line for line in lines if armed[line].reached]
        for each in armed.values():
            each.disarm()
        if not found:
            raise AssertionError(
                f"{dag_id}: its run reached no failpoint of topology {topology}. {_NO_TRANSACTION}"
            )
        return found

    def _wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has the DAG, and unpause it.

        :raises AssertionError: the DAG file cannot be imported, or no file defines the DAG.
        """
        read: list[float] = []

        def known() -> bool:
            dags = {dag["dag_id"]: dag for dag in self.airflow.listed("dags", "dags")}
            if dag_id in dags:
                if dags[dag_id]["is_paused"]:
                    self.airflow.pause(dag_id, False)
                return True
            errors = self.airflow.import_errors()
            if dags or errors:
                read.append(time.monotonic())
            if read and time.monotonic() - read[0] >= _PARSED:
                raise Hopeless(_why_unknown(list(dags), errors))
            return False

        eventually(known, AIRFLOW_PATIENCE, f"DAG {dag_id}", interval=0.3)

    def _arm(self, line: Line, action: str, topology: str) -> Armed:
        match = {"task": line.task} if line.task else {}
        return self.failpoints.arm(line.point, action, topology=topology, **match)

    def _trigger_and_wait(self, dag_id: str, run_id: str, first_date: datetime | None) -> None:
        date = None if first_date is None else first_date + timedelta(days=self._runs - 1)
        self.airflow.trigger(dag_id, run_id, logical_date=date)
        self.airflow.wait_run(dag_id, run_id)
        # A coordinator may have started another run, which processes the rows.
        self._wait_for_runs(dag_id)

    def _clear(self, dag_id: str, run_id: str) -> None:
        self.airflow.clear_run(dag_id, run_id)
        self.airflow.wait_run(dag_id, run_id)

    def _wait_for_runs(self, dag_id: str) -> None:
        def ended() -> bool:
            return all(run["state"] in RUN_ENDED for run in self.airflow.runs(dag_id))

        eventually(ended, AIRFLOW_PATIENCE, f"all runs of {dag_id} have ended", interval=0.3)


def _why_unknown(dags: list[str], errors: Mapping[str, str]) -> str:
    for file, trace in errors.items():
        return f"{file} cannot be imported: {trace.strip().splitlines()[-1]}"
    names = ", ".join(sorted(dags))
    return f"no DAG file defines it. The folder defines: {names}. Check the dag_id"


def _added(totals: Callable[[], Totals], start: Callable[[], object]) -> dict[Any, float]:
    before = dict(totals())
    start()
    after = dict(totals())
    added = {key: after.get(key, 0) - before.get(key, 0) for key in [*after, *before]}
    return {key: number for key, number in added.items() if number}


def _compare(what: str, found: Totals, once: Totals) -> None:
    if found == once:
        return
    if not found:
        raise AssertionError(f"{what}: the run added nothing. {_NO_ROWS}")
    without = f"a run without a crash adds {once}" if once else "this run should add nothing"
    raise AssertionError(f"{what}: the run added {found}, but {without}. {_REMEDY}")
