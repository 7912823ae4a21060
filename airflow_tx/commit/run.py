"""What a commit asks of the run whose transaction it commits; a transaction of a lane has none, and answers itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_tx import compat

InstanceStates = Mapping[tuple[str, int], "str | None"]
"""States of task instances, by task id and map index (−1: not mapped)."""


class CommittingRun(Protocol):
    """The run of a transaction, as its committer reaches it."""

    @property
    def run_id(self) -> str:
        """The run that the ledger has bound to the transaction."""

    @property
    def task_id(self) -> str:
        """The committer."""

    @property
    def task_try(self) -> str:
        """This try of it."""

    @property
    def dag_file(self) -> str:
        """The file of its DAG; "": it is not known."""

    @property
    def dag_version(self) -> str:
        """The version of its DAG; "": it is not known."""

    def instance_states(self, tasks: Collection[str], mapped: Collection[str]) -> InstanceStates:
        """The state of every instance of tasks."""

    def output(self, task: str, name: str, index: int) -> Any:
        """What an instance of a task has returned or emitted under a name; None: nothing."""


@dataclass(frozen=True)
class AirflowRun:
    """A DAG run, reached by the task instance of its committer."""

    ti: Any

    @property
    def run_id(self) -> str:
        return str(self.ti.run_id)

    @property
    def task_id(self) -> str:
        return str(self.ti.task_id)

    @property
    def task_try(self) -> str:
        return str(self.ti.id)

    @property
    def dag_file(self) -> str:
        task = getattr(self.ti, "task", None)
        return str(task.dag.fileloc) if task is not None else ""

    @property
    def dag_version(self) -> str:
        return compat.dag_version(self.ti)

    def instance_states(self, tasks: Collection[str], mapped: Collection[str]) -> InstanceStates:
        return compat.instance_states(self.ti, tasks, mapped)

    def output(self, task: str, name: str, index: int) -> Any:
        return compat.pull(self.ti, task, name, index)
