"""The life of a topology: its runs go through the operators' code, and people act on it by the commands.

It runs in the process of the commands, which has an Airflow: `airflow_tx` reads DAG files, connections and runs there.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_tx import CommitOperator
from airflow_tx.base import compat
from airflow_tx.base.compat import RunInfo
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.steps import processing as steps
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.transaction.commit.committer import Commit, PhaseCommit
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.spec import spec_of
from tests.integration.kinds.topologies import Kind
from tests.stage import StageRun
from tests.unit.bench import FakeTi

log = logging.getLogger(__name__)

FIRST_DAY = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAY = timedelta(days=1)


@dataclass
class Topology:
    """A topology and its runs.

    :param airflow: does a command line of Airflow; `arrive` lets its source have a row.
    """

    kind: Kind
    file: Path
    airflow: Callable[..., None]
    arrive: Callable[[str], None]
    runs: dict[str, StageRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dag = runpy.run_path(str(self.file))["dag"]
        self.spec: Any = spec_of(self.dag)
        self.name = self.kind.name

    # --- what its runs do

    def begin(self, run_id: str) -> StageRun:
        """A run begins, or begins again: it has a transaction."""
        if run_id not in self.runs:
            if self.kind.trickles:
                self.arrive(run_id[1:])
            info = self.info(run_id)
            interval = (info.interval_start, info.interval_end) if info.interval_start and info.interval_end else None
            compat.create_run(self.name, run_id, interval=interval)
        run = self.runs[run_id] = StageRun(self.spec, run_id, log)
        answer = run.begin(info=self.info(run_id), dag=self.dag)
        assert run.begun is not None, (self.name, run_id, answer)
        self.put(run_id, "running")
        if self.spec.source.per_run:
            self.note_begun(run)
        return run

    def note_begun(self, run: StageRun) -> None:
        """Let Airflow have what `begin` returns: the page finds the transaction of a date by it."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        said = {"topology": self.name, **run.begun.to_json()}
        of = {"dag_id": self.name, "run_id": run.run_id, "task_id": self.spec.begin}
        with create_session() as session:
            XComModel.set(key="return_value", value=said, session=session, **of)

    def info(self, run_id: str) -> RunInfo:
        """The run as its tasks know it: of the day, and the partition, of its number."""
        number = int(run_id[1:])
        start = FIRST_DAY + number * DAY
        is_dated = bool(self.kind.dag_options)
        end = start + DAY if is_dated else None
        date = start if is_dated else None
        return RunInfo(run_id, "manual", date, end, date, f"p{number}", None, {})

    def worked(self, run_id: str) -> StageRun:
        """A run begins, and its task reads and counts the rows of its batch, and rejects one if there is a table."""
        run = self.begin(run_id)
        task = run.start()
        batch = CurrentBatch(task)
        rows = list(batch.read())
        if self.spec.rejected is not None:
            batch.reject({"line": run_id}, "no number")
        run.end(task, [{**self.kind.row, "n": len(rows)}])
        return run

    def failed(self, run_id: str, why: str = "it broke") -> StageRun:
        """A run begins, and its task fails."""
        run = self.begin(run_id)
        task = run.start()
        with self.ledger() as ledger:
            ledger.run(steps.fail, run.begun.attempt, task.task, reason=why)
        self.put(run_id, "failed")
        return run

    def committed(self, run_id: str) -> StageRun:
        """A whole run, and its commit."""
        run = self.worked(run_id)
        self.commit(run)
        return run

    def waits(self, run_id: str) -> StageRun:
        """A run whose task has counted: its committer notes that, and waits for its turn."""
        run = self.worked(run_id)
        with self.part(run, "commit" if self.spec.phase is None else self.spec.phase.acquire) as commit:
            commit.complete()
        return run

    def commit(self, run: StageRun) -> None:
        """Commit a run whose task has counted."""
        phase = self.spec.phase
        if phase is None:
            self.take_turn(run, "commit")
        else:
            run.committer.xcoms[phase.acquire, "return_value", -1] = self.take_turn(run, phase.acquire)
            for each in phase.committers:
                with self.part(run, each) as commit:
                    run.committer.xcoms[each, "return_value", -1] = commit.write_in_phase()
                run.committer.states[each] = "success"
            with self.part(run, phase.mark) as commit:
                commit.mark_in_phase()
        self.put(run.run_id, "success")

    def take_turn(self, run: StageRun, task: str) -> dict[str, Any]:
        """Commit in the turn, or begin a commit phase; what is left for later tasks."""
        with self.part(run, task) as commit:
            line = commit_in_turn(commit, commit.ledger.store, patience=0)
            assert line is None, (self.name, run.run_id, line)
            left: dict[str, Any] = commit.left if self.spec.phase is None else commit.shared
            return left

    @contextmanager
    def part(self, run: StageRun, task: str) -> Iterator[Any]:
        """Connect a task that commits to the ledger."""
        own = self.dag.get_task(task)
        every = [each for each in self.dag.tasks if isinstance(each, CommitOperator)]
        tasks = [own] if isinstance(own, CommitOperator) else every
        states = run.committer.states
        ti: Any = FakeTi(task, run.run_id, dag_id=self.name, xcoms=run.committer.xcoms, states=states)
        ti.task = own
        with self.spec.store() as store:
            updates = [update for each in tasks for update in each.updates]
            kind = Commit if self.spec.phase is None else PhaseCommit
            yield kind(self.spec, run.begun, updates, self.spec.ledger(store), ti, log)

    # --- what else happens

    @contextmanager
    def store(self) -> Iterator[ZooKeeperStore]:
        """Connect to the store of its ledger."""
        with self.spec.store() as store:
            yield store

    @contextmanager
    def zookeeper(self) -> Iterator[Any]:
        """Connect past the product, to do what only a fault does."""
        client = connect(ClientConfig(json.loads(os.environ["AIRFLOW_CONN_ZOOKEEPER_DEFAULT"])["host"]))
        try:
            yield client
        finally:
            disconnect(client)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Connect to its ledger."""
        with self.store() as store:
            yield self.spec.ledger(store)

    def person(self, command: str, *arguments: Any, why: str = "a bad file") -> None:
        """A person types a command, with the reason."""
        self.airflow("tx", *command.split(), self.name, *map(str, arguments), "--why", why)

    def put(self, run_id: str, state: str) -> None:
        """Put a run into a state in Airflow's database."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import update

        with create_session() as session:
            session.execute(update(DagRun).filter_by(dag_id=self.name, run_id=run_id).values(state=state))
