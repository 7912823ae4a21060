"""Days that are backfilled, and what their test remembers of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_tx.testing.eventually import eventually
from tests.airflow.dags.daily import DAY, FIRST
from tests.airflow.stack import Final, Stack

DAYS = [FIRST + number * DAY for number in range(4)]


@dataclass
class Days:
    """A DAG whose runs stand for days."""

    stack: Stack
    dag_id: str

    @contextmanager
    def told(self, what: str, *days: datetime) -> Iterator[None]:
        """Within the block the counts of these days fail, or hold."""
        folder = self.stack.folder / what / self.dag_id
        folder.mkdir(parents=True)
        for day in days:
            Path(folder, f"{day:%Y-%m-%d}").touch()
        try:
            yield
        finally:
            shutil.rmtree(folder)

    def runs(self) -> dict[str, str]:
        """The state of every run."""
        return {run["dag_run_id"]: run["state"] for run in self.stack.airflow.runs(self.dag_id)}

    def run_of(self, day: datetime) -> str:
        """The run of a day."""
        runs = {datetime.fromisoformat(run["logical_date"]): run for run in self.stack.airflow.runs(self.dag_id)}
        return str(runs[day]["dag_run_id"])

    def wait(self, states: dict[str, str]) -> None:
        """Wait until runs are in these states."""
        self.stack.airflow.wait_runs(self.dag_id, states)

    def wait_all(self, count: int, timeout: float = 300) -> list[str]:
        """Wait until there are so many runs, and all have ended as success."""
        what = f"{count} runs of {self.dag_id} have succeeded"

        def told() -> str:
            return "\n".join(self.stack.airflow.describe_run(self.dag_id, run_id) for run_id in self.runs())

        eventually(lambda: [*self.runs().values()] == ["success"] * count, timeout, what, interval=0.3, explain=told)
        return list(self.runs())

    def backfill(self, **options: Any) -> None:
        """Backfill all days; the backfill before it has ended."""
        self.stack.airflow.end_backfills(self.dag_id)
        self.stack.airflow.backfill(self.dag_id, DAYS[0], DAYS[-1], **options)

    def log(self, run_id: str, task_id: str = "begin") -> str:
        """The logs of all tries of a task."""
        return self.stack.airflow.whole_log(self.dag_id, run_id, task_id)

    def history(self) -> list[Final]:
        """The final transactions."""
        return self.stack.ledger(self.dag_id).history()

    def totals(self) -> dict[str, tuple[int, int]]:
        """What the state holds."""
        return self.stack.totals(self.dag_id)


@dataclass
class Story:
    """What was seen in the course of it."""

    days: Days
    seen: dict[str, Any] = field(default_factory=dict)
