"""A stage for tests: a topology on a store, whose runs go through the operators' code without Airflow's servers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from airflow_tx.base.compat import RunInfo
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.sources.api import Source
from airflow_tx.transaction.commit.check import Check
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.begin import ask
from airflow_tx.transaction.processing.outputs import RETURN_KEY, returned
from airflow_tx.transaction.processing.task import Processing
from airflow_tx.transaction.spec import TransactionSpec
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers, run_of


def begin_run(spec: TransactionSpec, run_id: str, *, info: RunInfo | None = None, **more: Any) -> Any:
    """Do what the first task of a run does, and return its answer."""
    options = {"retry": False, **more}
    return ask(spec, FakeTi(spec.begin, run_id, dag_id=spec.dag_id), info or run_of(run_id), **options)


def update(state: Any, task: str = "count", name: str = "return_value", **how: Any) -> Update:
    """Return the update of a state by an output of a task."""
    output: Any = SimpleNamespace(operator=SimpleNamespace(task_id=task), key=name)
    return Update(output, state, **how)


class Stage:
    """A topology with one processing task, `count`, unless its fields say otherwise.

    :param store: of its ledger; default: a new one in memory.
    :param kind: the class of its spec, whose `fields` are given, too.
    """

    def __init__(
        self,
        store: Any = None,
        source: Source | None = None,
        *,
        name: str = "numbers",
        kind: type[MemorySpec] = MemorySpec,
        **fields: Any,
    ) -> None:
        self.store = CountingStore() if store is None else store
        fields = {"max_pending": 8, "tasks": ("count",), **fields}
        self.spec = kind(name, name, source or Numbers(), memory=self.store, **fields)

    def begun(self, *run_ids: str) -> list[Begun]:
        """Begin runs, each of which gets a transaction."""
        answers = [begin_run(self.spec, run_id) for run_id in run_ids]
        assert all(isinstance(answer, Begun) for answer in answers), answers
        return answers


class StageRun:
    """A run of a stage: it begins, its tasks return rows, its committer finds them.

    :ivar begun: its newest attempt.
    :ivar committer: the task instance that commits, which knows the XComs and states of the other tasks.
    """

    def __init__(self, spec: MemorySpec, run_id: str, log: Any = None) -> None:
        self.spec: Any = spec
        self.run_id = run_id
        self.log: Any = log or logging.getLogger("task")
        self.begun: Any = None
        self.committer = FakeTi("commit", run_id)

    def begin(self, **more: Any) -> Any:
        """Begin the run, or its next attempt, and return the answer."""
        answer = begin_run(self.spec, self.run_id, **more)
        if isinstance(answer, Begun):
            self.begun = answer
        return answer

    def processing(self, ti: FakeTi, *, anchored: bool = True) -> Processing:
        """Return the part that a task instance has in the transaction."""
        own = TaskTry(ti.task_id, ti.map_index, str(ti.id))
        return Processing(self.spec, self.begun, own, anchored=anchored)

    def start(self, task: str = "count", index: int = -1, *, anchored: bool = True) -> Processing:
        """Start a task."""
        processing = self.processing(FakeTi(task, self.run_id, index), anchored=anchored)
        processing.start()
        return processing

    def end(self, processing: Processing, rows: list[dict[str, Any]], key: str = RETURN_KEY) -> None:
        """Let a task return rows, under a key if it gives several outputs, and succeed."""
        task = processing.task
        processing.ack(returned(rows if key == RETURN_KEY else {key: rows}, multiple=key != RETURN_KEY))
        self.committer.xcoms[task.task_id, key, task.map_index] = rows
        name = task.task_id if task.map_index < 0 else f"{task.task_id}_{task.map_index}"
        self.committer.states[name] = "success"

    def commit_of(self, updates: Sequence[Update], checks: Sequence[Check] = ()) -> Commit:
        """Return the commit of these updates, after these checks."""
        ledger = self.spec.ledger(self.spec.memory)
        return Commit(self.spec, self.begun, updates, ledger, self.committer, self.log, checks=checks)
