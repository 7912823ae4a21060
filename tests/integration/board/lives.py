"""What an Airflow without a scheduler leaves to the tests: its runs go on, as far as they can by themselves.

It runs in the process of the commands. A run that a person has cleared or created goes through the operators' code; a
refusal reaches the ledger as it does from a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from airflow.models.backfill import Backfill
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

from airflow_tx.base import compat
from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import TxError
from airflow_tx.operators.commit import note_commit_failure
from airflow_tx.transaction.commit import committer
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.processing.task import Processing, task_failed
from airflow_tx.transaction.spec import COMMIT_KEY, WHY_NOT
from tests.integration.kinds.life import Topology, log
from tests.integration.kinds.topologies import Kind
from tests.stage import StageRun
from tests.unit.bench import FakeTi

BROKEN = "broken"
"""The task of a topology fails as long as a file of this name is in its folder."""
CORRECTED = "corrected"
"""The task gives no negative number as soon as a file of this name is there."""
RUNS: dict[tuple[str, str], StageRun] = {}
"""What tasks of runs gave, which Airflow keeps as XComs."""


class Life(Topology):
    """A topology, as its DAG file is now."""

    def __init__(self, file: str, home: str) -> None:
        super().__init__(Kind(Path(file).stem), Path(file), lambda *_: None, lambda _: None)
        self.home = Path(home)

    def info(self, run_id: str) -> RunInfo:
        return RunInfo(run_id, "manual", None, None, None, None, None, {})

    # --- Airflow's database

    def tasks(self) -> dict[str, dict[str, str | None]]:
        """The tasks of each run that is queued or running, with their states."""
        with create_session() as session:
            asked = (
                sa.select(TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state)
                .join(DagRun, (DagRun.run_id == TaskInstance.run_id) & (DagRun.dag_id == TaskInstance.dag_id))
                # Airflow starts no queued run of a backfill that is paused.
                .where(DagRun.dag_id == self.name)
                .where((DagRun.state == "running") | ((DagRun.state == "queued") & DagRun.backfill_id.is_(None)))
                .order_by(DagRun.id)
            )
            found: dict[str, dict[str, str | None]] = {}
            for run_id, task_id, state in session.execute(asked):
                found.setdefault(run_id, {})[task_id] = state
            return found

    def note(self, run_id: str, task_id: str, state: str) -> None:
        """Put a task into a state, and its run likewise if it fails, or if it is the last one."""
        of = {"dag_id": self.name, "run_id": run_id}
        with create_session() as session:
            session.execute(sa.update(TaskInstance).filter_by(**of, task_id=task_id).values(state=state))
            if state in ("failed", "skipped") or task_id == "commit":
                end = "failed" if state == "failed" else "success"
                session.execute(sa.update(DagRun).filter_by(**of).values(state=end))
            else:
                session.execute(sa.update(DagRun).filter_by(**of).values(state="running"))

    # --- its runs

    def go_on(self) -> None:
        """Let each run do what it can, until no run can do more."""
        moved = True
        while moved:
            moved = sum(self.step(run_id, tasks) for run_id, tasks in self.tasks().items()) > 0

    def step(self, run_id: str, tasks: dict[str, str | None]) -> bool:
        """Let the next task of a run work; False: there is none, or it waits."""
        for task_id in ("begin", "count", "commit"):
            if tasks[task_id] != "success":
                return bool(getattr(self, f"do_{task_id}")(run_id))
        return False

    def do_begin(self, run_id: str) -> bool:
        run = RUNS[self.name, run_id] = StageRun(self.spec, run_id, log)
        try:
            answer = run.begin(info=self.info(run_id), dag=self.dag)
        except TxError as error:
            self.say(run_id, error)
            self.note(run_id, "begin", "failed")
            return True
        if run.begun is None:
            log.info("%s: %s", run_id, answer)
            self.note(run_id, "begin", "skipped")
            return True
        run.committer.xcoms["begin", "return_value", -1] = run.begun.to_json()
        self.note(run_id, "begin", "success")
        return True

    def do_count(self, run_id: str) -> bool:
        run = RUNS[self.name, run_id]
        ti: Any = FakeTi("count", run_id, dag_id=self.name, xcoms=run.committer.xcoms)
        context: Any = {"ti": ti, "dag": self.dag, "task": self.dag.get_task("count")}
        try:
            own = Processing.of(context)
            own.start()
            if (self.home / BROKEN).exists():
                raise ValueError("it broke")
            rows = list(CurrentBatch(own).read())
            total = sum(int(row["n"]) for row in rows)
            run.end(own, [{"key": "all", "n": abs(total) if (self.home / CORRECTED).exists() else total}])
        except (TxError, ValueError) as error:
            context["exception"] = error
            task_failed(context)
            self.note(run_id, "count", "failed")
            return True
        self.note(run_id, "count", "success")
        return True

    def do_commit(self, run_id: str) -> bool:
        run = RUNS[self.name, run_id]
        operator = self.dag.get_task("commit")
        ti: Any = FakeTi("commit", run_id, dag_id=self.name, xcoms=run.committer.xcoms, states=run.committer.states)
        ti.task = operator
        context: Any = {"ti": ti, "dag": self.dag, "task": operator}
        with self.spec.store() as store:
            commit = Commit(
                self.spec, run.begun, operator.updates, self.spec.ledger(store), ti, log, checks=operator.checks
            )
            context[COMMIT_KEY] = commit
            try:
                if commit_in_turn(commit, store, patience=0) is not None:
                    return False
            except TxError as error:
                context["exception"] = error
                note_commit_failure(context)
                self.note(run_id, "commit", "failed")
                return True
        self.note(run_id, "commit", "success")
        return True

    def say(self, run_id: str, error: TxError) -> None:
        """Let Airflow have why `begin` has failed."""
        said = {"problem": error.problem_text, "advice": error.advice and error.advice.as_stored()}
        of: Any = {"dag_id": self.name, "run_id": run_id, "task_id": "begin"}
        with create_session() as session:
            XComModel.set(key=WHY_NOT, value=said, session=session, **of)


@contextmanager
def unscheduled() -> Iterator[None]:
    """Take every try for the current one: there is no scheduler that says otherwise."""
    current = patch.object(compat, "is_current_try", lambda task_try: True)
    with current, patch.object(compat, "earlier_live_run", lambda dag_id, date: None):
        yield


def go_on(file: str, home: str, *created: str) -> None:
    """Create runs, and let all that are queued or running go on."""
    own = Life(file, home)
    with unscheduled():
        for run_id in created:
            compat.create_run(own.name, run_id)
        own.go_on()


def begin(file: str, home: str, run_id: str) -> None:
    """Create a run, and let it begin."""
    own = Life(file, home)
    with unscheduled():
        compat.create_run(own.name, run_id)
        own.do_begin(run_id)


def die(point: str, file: str, home: str, run_id: str) -> None:
    """Create a run whose process ends at a point of the code; its committer is tried again later."""

    def failpoint(reached: str, **where: Any) -> None:
        if reached == point:
            raise Killed

    with patch.object(committer, "failpoint", failpoint), suppress(Killed):
        go_on(file, home, run_id)


class Killed(BaseException):
    """The process is gone."""


def clear_task(dag_id: str, run_id: str, *tasks: str) -> None:
    """Clear tasks of a run."""
    of = {"dag_id": dag_id, "run_id": run_id}
    with create_session() as session:
        for task_id in tasks:
            session.execute(sa.update(TaskInstance).filter_by(**of, task_id=task_id).values(state=None))
        session.execute(sa.update(DagRun).filter_by(**of).values(state="running"))


def clear(file: str, home: str) -> None:
    """Empty the states of a topology, and their fences."""
    for update in Life(file, home).dag.get_task("commit").updates:
        update.state.clear()


def strand(dag_id: str, run_id: str) -> None:
    """Put a run into a backfill that is paused."""
    day = datetime(2026, 5, 1, tzinfo=timezone.utc)
    with create_session() as session:
        backfill = Backfill(dag_id=dag_id, from_date=day, to_date=day, max_active_runs=1, is_paused=True)
        session.add(backfill)
        session.flush()
        of = {"dag_id": dag_id, "run_id": run_id}
        session.execute(sa.update(DagRun).filter_by(**of).values(backfill_id=backfill.id, state="queued"))


def delete(dag_id: str, run_id: str) -> None:
    """Delete a run."""
    with create_session() as session:
        for model in (TaskInstance, DagRun):
            session.execute(sa.delete(model).filter_by(dag_id=dag_id, run_id=run_id))
