"""A topology whose tasks reject rows, on a real ledger: its DAG file, and its transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state import CommittedTable
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import rejected_update
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import Stage, StageRun

NAME = "visits"
SCHEMA = "page STRING, seconds INT"
MALFORMED = "column seconds INT: it is no whole number in digits"
AUDIT = Audit("ann", "a bad file")
log = logging.getLogger("task")

_DAG = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, Transaction, append
from airflow_tx.state import DeltaTable, SqlTable

with DAG("visits", schedule=None):
    with Transaction(source=FileSource({files!r}, schema={schema!r}, malformed={malformed!r}){rejected}):
        @task
        def count():
            return []
        CommitOperator(task_id="commit", updates=[append(count(), state=SqlTable("tx_state", table="visits"))])
"""

Rejected = Sequence[tuple[Any, str]]


@dataclass
class Rejecting:
    """The topology, whose source has one file a transaction.

    :param table: of the rejected rows; `named`: as the DAG file names it.
    """

    store: ZooKeeperStore
    root: str
    folder: Path
    table: CommittedTable
    named: str
    runs: dict[str, StageRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._files = f"{self.folder}/inbox/*.csv"
        source = FileSource(self._files, schema=SCHEMA, malformed="reject", files_per_batch=1)
        names = ("count", "commit")
        self.stage = Stage(self.store, source, name=NAME, root=self.root, inside=names, rejected=self.table)
        (self.folder / "inbox").mkdir()

    def dag_file(self, *, rejected: bool = True) -> str:
        """Write the DAG file."""
        block = f", rejected={self.named}" if rejected else ""
        kind = "reject" if rejected else "refuse"
        return _DAG.format(files=self._files, schema=SCHEMA, malformed=kind, rejected=block)

    def begin(self, run_id: str, *lines: str) -> StageRun:
        """Begin a run, whose batch is a file with these lines."""
        (self.folder / "inbox" / f"{run_id}.csv").write_text("\n".join(["page,seconds", *(lines or ["home,5"]), ""]))
        run = self.runs[run_id] = StageRun(self.stage.spec, run_id, log)
        run.begin()
        return run

    def processed(self, run_id: str, rejected: Rejected = (), *lines: str, task: str = "count") -> StageRun:
        """Let the task of a run read its batch, and reject rows."""
        return self.work(self.begin(run_id, *lines), rejected, task=task)

    def work(self, run: StageRun, rejected: Rejected = (), *, task: str = "count") -> StageRun:
        """Let the task of a run that has begun read its batch, and reject rows."""
        processing = run.start(task)
        batch = CurrentBatch(processing)
        assert list(batch.read())
        for row, reason in rejected:
            batch.reject(row, reason)
        run.end(processing, [])
        return run

    def commit(self, run: StageRun, work: Callable[[Any], Any] | None = None) -> None:
        """Commit what a run has rejected."""
        commit = run.commit_of([rejected_update(self.table)])
        if work is not None:
            work(commit)
            return
        assert commit_in_turn(commit, commit.ledger.store, patience=0) is None

    def committed(self, run_id: str, rejected: Rejected = (), *lines: str) -> StageRun:
        """Commit a whole run."""
        run = self.processed(run_id, rejected, *lines)
        self.commit(run)
        return run

    def skip(self, txid: int) -> None:
        """Skip a transaction, as a person does."""
        ledger = self.stage.spec.ledger(self.store)
        ledger.run(note_skip, txid, AUDIT)
        take_skip(ledger, txid, {self.table.name: self.table}, log=log)

    def restate(
        self, txid: int, run_id: str, rejected: Rejected = (), *, commit: Callable[[Any], Any] | None = None
    ) -> None:
        """Restate a transaction, whose run begins again."""
        self.stage.spec.ledger(self.store).run(want, WishRequest(txid, run_id, run_id), AUDIT)
        run = self.runs[run_id]
        run.begin()
        self.commit(self.work(run, rejected), commit)
