"""Runs in Airflow's database, and what commands do to their transactions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_tx.ledger.answers import Begun, Granted
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.receipt import CheckNote
from airflow_tx.ledger.steps import commit, processing
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.state import Sum
from airflow_tx.state.sql.state import SqlState
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline

DAG_ID = "the_dag"


AUDIT = Audit("ann", "bad file")


ASK_DAG_SERVER = """
import json
from airflow_tx.operations.actions.dag_server import DagServer
from airflow_tx.base.errors import TxError
try:
    print(json.dumps(DagServer().answer(json.loads(arguments[0]))))
except TxError as error:
    print(json.dumps(str(error)))
"""
"""Ask the process that answers with the code of DAG files a question, which is JSON."""


_MAKE_RUNS = """
from airflow_tx.base import compat
for run_id in arguments:
    compat.create_run("the_dag", run_id)
"""


_MAKE_DAYS = """
from datetime import datetime
from airflow_tx.base import compat
for run_id, start, end in (each.split() for each in arguments):
    compat.create_run("daily", run_id, interval=(datetime.fromisoformat(start), datetime.fromisoformat(end)))
"""


_STRAND = """
from datetime import datetime, timezone
from airflow.models.backfill import Backfill
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import update

day = datetime(2026, 5, 1, tzinfo=timezone.utc)
with create_session() as session:
    backfill = Backfill(dag_id="the_dag", from_date=day, to_date=day, max_active_runs=1, is_paused=True)
    session.add(backfill)
    session.flush()
    session.execute(update(DagRun).where(DagRun.run_id == arguments[0]).values(backfill_id=backfill.id))
"""


_HELD_UP = {
    "paused": (["is_paused"], "DAG the_dag starts no run, since it is paused: airflow dags unpause the_dag"),
    "broken": (
        ["is_stale", "has_import_errors"],
        "DAG the_dag starts no run, since its file cannot be imported: airflow dags list-import-errors",
    ),
    "gone": (["is_stale"], "DAG the_dag starts no run, since Airflow has no DAG with this id: add it to a DAG file"),
}


class Runs:
    """The runs of the DAG, as Airflow's database has them."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._database = f"{commands.environment['AIRFLOW_HOME']}/airflow.db"

    def make(self, **states: str) -> None:
        """Make runs and put them into these states."""
        self._commands.python(_MAKE_RUNS, *states)
        for run_id, state in states.items():
            self.put(run_id, state)

    def make_days(self, *days: str) -> list[tuple[str | None, ...]]:
        """Make runs with data intervals; their names and dates."""
        self._commands.python(_MAKE_DAYS, *days)
        dates = "logical_date, data_interval_start, data_interval_end"
        rows = self._sql(f"SELECT run_id, {dates} FROM dag_run WHERE dag_id = 'daily' ORDER BY id")
        return [tuple(each and str(each).partition(".")[0] for each in row) for row in rows]

    def put(self, run_id: str, state: str) -> None:
        """Put a run into a state."""
        self._sql("UPDATE dag_run SET state = ? WHERE dag_id = 'the_dag' AND run_id = ?", state, run_id)

    def fail(self, run_id: str, task_id: str) -> None:
        """Let a task of a run have failed, and the others have succeeded."""
        self._sql("UPDATE task_instance SET state = 'success' WHERE run_id = ?", run_id)
        self._sql("UPDATE task_instance SET state = 'failed' WHERE run_id = ? AND task_id = ?", run_id, task_id)

    def failed(self, run_id: str) -> list[str]:
        """The tasks of a run that have failed."""
        query = "SELECT task_id FROM task_instance WHERE run_id = ? AND state = 'failed'"
        return [task for (task,) in self._sql(query, run_id)]

    def states(self) -> dict[str, str]:
        """The runs that there are, by id."""
        return dict(self._sql("SELECT run_id, state FROM dag_run WHERE dag_id = 'the_dag' ORDER BY run_id"))

    def conf(self, run_id: str) -> Any:
        """What a run was started with."""
        ((conf,),) = self._sql("SELECT conf FROM dag_run WHERE dag_id = 'the_dag' AND run_id = ?", run_id)
        return json.loads(conf)

    def pause(self, *, paused: bool) -> None:
        """Pause the DAG, or not."""
        self._sql("UPDATE dag SET is_paused = ? WHERE dag_id = 'the_dag'", str(int(paused)))

    @contextmanager
    def held_up(self, why: str, dag_id: str = "the_dag") -> Iterator[str]:
        """Let Airflow start no run of a DAG within the block; what is then said of it.

        :param why: it is paused, its file is broken, or it is gone.
        """
        columns, said = _HELD_UP[why]
        put = "UPDATE dag SET {} = ? WHERE dag_id = ?"
        for each in columns:
            self._sql(put.format(each), "1", dag_id)
        try:
            yield said.replace("the_dag", dag_id)
        finally:
            for each in columns:
                self._sql(put.format(each), "0", dag_id)

    def strand(self, run_id: str) -> None:
        """Put a run into a backfill that is paused, as a cancelled one is."""
        self._commands.python(_STRAND, run_id)

    def delete(self) -> None:
        """Forget them all."""
        for table in ("xcom", "task_instance_history", "task_instance", "dag_run", "backfill"):
            self._sql(f"DELETE FROM {table}")

    def audited(self) -> list[tuple[str, str]]:
        """Event and details of Airflow's audit log, oldest first."""
        return self._sql("SELECT event, extra FROM log ORDER BY id")

    def audited_of(self, run_id: str) -> list[str]:
        """Events of Airflow's audit log that concern a run, oldest first."""
        return [event for (event,) in self._sql("SELECT event FROM log WHERE run_id = ? ORDER BY id", run_id)]

    @contextmanager
    def without_runs(self) -> Iterator[None]:
        """The table of the runs is missing within the block."""
        self._sql("ALTER TABLE dag_run RENAME TO dag_run_away")
        try:
            yield
        finally:
            self._sql("ALTER TABLE dag_run_away RENAME TO dag_run")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Another process writes within the block."""
        handle = sqlite3.connect(self._database, isolation_level=None)
        try:
            handle.execute("BEGIN IMMEDIATE")
            yield
        finally:
            handle.close()

    def _sql(self, statement: str, *values: str) -> list[Any]:
        handle = sqlite3.connect(self._database)
        try:
            with handle:
                return handle.execute(statement, values).fetchall()
        finally:
            handle.close()


def state_of(airflow: Commands, table: str, kind: str = "opaque") -> SqlState:
    url = f"sqlite:///{airflow.database}"
    return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()}, kind=kind, label="tx_state")


def fail(pipeline: Pipeline, begun: Begun, why: str = "it broke") -> None:
    broken = TaskTry("task0", -1, "999999")
    ledger = pipeline.ledger
    ledger.start(begun.attempt, broken)
    ledger.run(processing.fail, begun.attempt, broken, reason=why)


def granted(pipeline: Pipeline, run: str, *states: str) -> Granted:
    """Begin, process, and take the turn for these states."""
    begun = pipeline.begin(run)
    epoch = pipeline.process(begun).epoch
    answer = pipeline.ledger.run(commit.acquire, AcquireRequest(begun.attempt, epoch, begun.rows_digest, {}, states))
    assert isinstance(answer, Granted)
    return answer


def checked(pipeline: Pipeline, run: str, *names: str) -> Begun:
    """A transaction whose commit was refused, as these checks have failed."""
    begun = pipeline.begin(run)
    epoch = pipeline.process(begun).epoch
    found = {name: CheckNote(False, f"{name}: 3 of 9 rows", f"of {name}") for name in names}
    pipeline.ledger.note_commit_failed(begun.attempt, epoch, reason="refused", for_good=True, checks=found)
    return begun


def one_line(told: str) -> str:
    (line,) = told.strip().splitlines()
    return line
