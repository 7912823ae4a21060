"""A DAG run whose task emits messages, by the operators' own code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.collector import Collector
from airflow_tx.commit.case import CommitCase
from airflow_tx.commit.commit import Commit
from airflow_tx.commit.turn import commit_in_turn
from airflow_tx.commit.update import Update
from airflow_tx.processing.batch import CurrentBatch
from airflow_tx.processing.begin import ask
from airflow_tx.processing.outputs import returned
from airflow_tx.processing.task import Processing
from airflow_tx.protocol.answers import Begun
from airflow_tx.protocol.attempt import TaskTry
from airflow_tx.protocol.records import TransactionRecord, decode
from airflow_tx.state import MemoryState
from tests.unit.bench import FakeTi, MemorySpec, run_of


@dataclass(frozen=True)
class MessageSpec(MemorySpec):
    """A transaction whose ackers are where a test says.

    :param make_ackers: connects to them.
    :param broken: the error that connecting to them raises, if there is one.
    """

    make_ackers: Any = None
    broken: Any = None

    @contextmanager
    def open_ackers(self, store: Any) -> Iterator[AckerStore]:
        if self.broken:
            raise self.broken[0]
        ackers = self.make_ackers()
        yield ackers
        ackers.close()


class MessageRun:
    """A DAG run whose task `count` emits messages."""

    def __init__(self, spec: MessageSpec, state: MemoryState, log: Any, run_id: str = "r1") -> None:
        self.spec = spec
        self.state = state
        self.log = log
        self.run_id = run_id
        self.committer = FakeTi("commit", run_id)
        self.collector = Collector(spec.make_ackers(), interval=600)

    def begin(self, *, retry: bool = False) -> Begun:
        answer = ask(self.spec, FakeTi(self.spec.begin, self.run_id), run_of(self.run_id), retry=retry)
        assert isinstance(answer, Begun)
        self.begun = answer
        return answer

    def start(self, *, anchored: bool = True) -> Processing:
        task = TaskTry("count", -1, str(FakeTi("count", self.run_id).id))
        processing = Processing(self.spec, self.begun, task, anchored=anchored)
        processing.start()
        return processing

    def work(self, messages: int = 1) -> list[str]:
        """The task from its start to its ack; the references that it has emitted."""
        processing = self.start()
        references = CurrentBatch(processing).emit_many(messages)
        self.end(processing)
        return references

    def end(self, processing: Processing) -> None:
        rows = [{"word": "count", "count": 10}]
        processing.ack(returned(rows, multiple=False))
        self.committer.xcoms["count", "return_value", -1] = rows
        self.committer.states["count"] = "success"

    def commit(self) -> Commit:
        ledger = self.spec.ledger(self.spec.memory)
        update = Update(SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value"), self.state)
        return Commit(CommitCase(self.spec, self.begun, [update], ledger, self.committer, self.log))

    def commit_now(self) -> Any:
        return commit_in_turn(self.commit(), self.spec.memory, patience=0)

    def ack(self, *references: str) -> None:
        for each in references:
            self.collector.process(each).ack()
        self.collector.flush()

    @property
    def record(self) -> TransactionRecord | None:
        path = self.spec.paths.transaction(1)
        node = self.spec.memory.get(path)
        return None if node is None else decode(TransactionRecord, path, node.data)

    @property
    def count(self) -> int:
        return sum(stored.value[0] for stored in self.state.database.rows.values() if stored.value is not None)
