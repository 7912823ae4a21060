"""A DAG run whose task emits messages, by the operators' own code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.outputs.messages.messages import Collector
from airflow_tx.outputs.messages.stores import AckerStore
from airflow_tx.state import MemoryState
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.processing.task import Processing
from tests.stage import StageRun, update
from tests.unit.bench import MemorySpec


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


class MessageRun(StageRun):
    """A DAG run whose task `count` emits messages."""

    def __init__(self, spec: MessageSpec, state: MemoryState, log: Any, run_id: str = "r1") -> None:
        super().__init__(spec, run_id, log)
        self.state = state
        self.collector = Collector(spec.make_ackers(), interval=600)

    def work(self, messages: int = 1) -> list[str]:
        """The task from its start to its ack; the references that it has emitted."""
        processing = self.start()
        references = CurrentBatch(processing).emit_many(messages)
        self.finish(processing)
        return references

    def finish(self, processing: Processing) -> None:
        self.end(processing, [{"word": "count", "count": 10}])

    def commit(self) -> Commit:
        return self.commit_of([update(self.state)])

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
