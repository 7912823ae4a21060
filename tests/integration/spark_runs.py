"""Runs of a topology whose tasks use Spark: the operators' code on the ledger in memory, without Airflow's servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.staging.area import StagingArea, scan_output, write_manifest, write_rows
from airflow_tx.outputs.staging.row_hash import digest_of_batch
from airflow_tx.sources.api import Source
from airflow_tx.state.api import FencedState
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.task import _KEY, Processing
from tests.stage import Stage, StageRun
from tests.stage import update as stage_update
from tests.unit.bench import FakeTi


@dataclass
class PushingTi(FakeTi):
    """A task instance that keeps what is pushed where its committer finds it."""

    pushed: dict[str, Any] = field(default_factory=dict)
    stats_tags: dict[str, str] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class Topology(Stage):
    """A topology of one processing task called `count`, and its committer.

    :param folder: of the DAG file.
    """

    def __init__(self, source: Source, folder: Path, dag_file: str) -> None:
        super().__init__(MemoryStore(), source, name="flights", max_pending=4, inside=("count",))
        self.dag: Any = SimpleNamespace(fileloc=dag_file)
        self.folder = folder

    @property
    def area(self) -> StagingArea:
        """The part of the staging area that belongs to it, once it has begun."""
        return self.spec.staging().of_topology(self.spec.ledger(self.store).incarnation())

    def begin(self, run_id: str) -> SparkRun:
        """Start a run, or its next attempt."""
        run = SparkRun(self, run_id)
        assert isinstance(run.begin(), Begun)
        return run


class SparkRun(StageRun):
    """One attempt of a run."""

    def __init__(self, topology: Topology, run_id: str) -> None:
        super().__init__(topology.spec, run_id)
        self.topology = topology
        self.new_values: dict[str, Any] = {}
        self.committer.task = SimpleNamespace(dag=topology.dag)  # type: ignore[attr-defined]

    def execute(self, operator: Any) -> PushingTi:
        """Run an operator as the task `count`."""
        ti, processing = self._started()
        context: Any = {"ti": ti, "dag": self.topology.dag, _KEY: processing}
        operator.execute(context)
        self._succeeded(ti)
        return ti

    def emit(self, *parts: Any, noted: Any = None) -> PushingTi:
        """Let the task `count` emit rows as an application would, as the output `counts`: a file for each part.

        :param noted: the rows whose digest is noted; None: none is.
        """
        ti, processing = self._started()
        processing.start()
        where = processing.staging.try_dir("flights", self.begun.attempt, processing.task)
        for number, rows in reversed(list(enumerate(parts))):
            write_rows(where, "counts", rows)
            file = processing.staging.files.read(where.child("counts/part-0.parquet"))
            processing.staging.files.write(where.child(f"counts/part-{number}.parquet"), file)
        digest = "" if noted is None else digest_of_batch(noted.combine_chunks().to_batches()[0]).text
        refs = write_manifest(where, {"counts": replace(scan_output(where, "counts"), row_digest=digest)})
        ti.pushed = {name: ref.to_json() for name, ref in refs.items()}
        processing.ack(list(ti.pushed.values()))
        self._succeeded(ti)
        return ti

    def _started(self) -> tuple[PushingTi, Processing]:
        ti = PushingTi("count", self.run_id)
        return ti, self.processing(ti)

    def _succeeded(self, ti: PushingTi) -> None:
        self.committer.states["count"] = "success"
        self.committer.xcoms.update({("count", name, -1): value for name, value in ti.pushed.items()})

    def commit(self, *updates: Update) -> Any:
        """Commit now."""
        commit = self.commit_of(updates)
        line = commit_in_turn(commit, self.spec.memory, patience=0)
        self.new_values = commit.left
        return line


def update(state: FencedState, name: str = "counts", **how: Any) -> Update:
    """The output of the task `count`, added to a state."""
    return stage_update(state, name=name, **how)
