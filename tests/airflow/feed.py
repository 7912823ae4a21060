"""Files for a topology that a coordinator runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from airflow_tx.testing.eventually import eventually
from tests.airflow.client import TriedAirflow
from tests.airflow.stack import SIZE, RawLedger, Stack

DAG = "coordinated"


COORDINATORS = ("coordinated_coordinator", "coordinated_twin")


class Feed:
    """A folder that grows by files of SIZE numbers, and what is to happen to them."""

    def __init__(
        self, stack: Stack, dag: str = DAG, coordinators: tuple[str, ...] = COORDINATORS, marks: str = "marks"
    ) -> None:
        self._folder = stack.folder / dag
        self._marks = stack.folder / marks
        self.stack = stack
        self.dag = dag
        self.coordinating = coordinators
        self.files = 0
        for folder in (self._folder, self._marks):
            folder.mkdir()

    @property
    def airflow(self) -> TriedAirflow:
        return self.stack.airflow

    @property
    def ledger(self) -> RawLedger:
        return self.stack.ledger(self.dag)

    def add(self, *marks: str | None) -> list[Path | None]:
        """One file for each mark; the marks are files, too."""
        found = []
        for mark in marks:
            first, name = self.files * SIZE, f"{self.files:04}.csv"
            path = None if mark is None else self._marks / f"{name}.{mark}"
            if path is not None:
                path.touch()
            text = "\n".join(["number", *map(str, range(first, first + SIZE)), ""])
            (self._folder / ".new").write_text(text)
            (self._folder / ".new").rename(self._folder / name)
            self.files += 1
            found.append(path)
        return found

    def stop(self) -> None:
        """Keep the coordinators from doing anything."""
        for dag_id in self.coordinating:
            self.airflow.pause(dag_id)
        eventually(lambda: "running" not in self.coordinators().values(), 240, "no coordinator runs", interval=0.3)

    def go_on(self) -> None:
        """Let them go on."""

        def unpaused(dag_id: str) -> bool:
            self.airflow.pause(dag_id, False)
            return True

        for dag_id in self.coordinating:
            eventually(partial(unpaused, dag_id), 240, f"{dag_id} is known")

    def coordinators(self) -> dict[str, str | None]:
        """The states of their tasks."""
        runs = [(dag_id, run["dag_run_id"]) for dag_id in self.coordinating for run in self.airflow.runs(dag_id)]
        return {dag_id: self.airflow.states(dag_id, run_id).get("coordinate") for dag_id, run_id in runs}

    def committed(self, timeout: float = 300) -> None:
        """Wait until every file is committed, and see that each number was counted once, in order."""
        eventually(
            lambda: len(self.ledger.names("history")) >= self.files,
            timeout,
            f"{self.files} transactions are committed",
            interval=0.3,
            explain=self.explain,
        )
        history = self.ledger.history()
        assert [entry.txid for entry in history] == list(range(1, self.files + 1))
        assert all(entry.outcome == "COMMITTED" for entry in history)
        eventually(lambda: self.stack.totals(self.dag), 240, "there are totals")
        self.stack.assert_counted_once(self.dag, self.files * SIZE)

    def record(self, txid: int) -> dict[str, Any]:
        """The record of an open transaction."""
        found: dict[str, Any] = self.ledger.read(f"coordinator/transactions/{txid}") or {}
        return found

    def log(self) -> str:
        """What the coordinators said."""
        runs = [(dag_id, run["dag_run_id"]) for dag_id in self.coordinating for run in self.airflow.runs(dag_id)]
        return "\n".join(self.airflow.whole_log(dag_id, run_id, "coordinate") for dag_id, run_id in runs)

    def red(self) -> dict[str, Any]:
        """The run that is red because it is blocked."""
        found = [run for dag_id in self.coordinating for run in self.airflow.runs(f"{dag_id}_blocked")]
        return next((run for run in found if run["state"] == "failed"), {})

    def explain(self) -> str:
        """For a test that fails."""
        runs = {run["dag_run_id"]: run["state"] for run in self.airflow.runs(self.dag)}
        open_ = {txid: self.record(int(txid)) for txid in self.ledger.names("coordinator/transactions")}
        return f"runs {runs}\nopen {open_}\n{self.log()}"


def worker(feed: Feed) -> int:
    """The process of the coordinator's task."""
    (coordinator,) = feed.coordinating

    def running() -> int:
        for run in feed.airflow.runs(coordinator):
            task = feed.airflow.task(coordinator, run["dag_run_id"], "coordinate")
            if task.get("state") == "running" and task.get("pid"):
                return int(task["pid"])
        return 0

    return int(eventually(running, 240, "the coordinator is in its worker", explain=feed.explain))
