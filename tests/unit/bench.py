"""Operators on the in-memory store, run without Airflow's servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.base.compat import RunInfo
from airflow_tx.ledger.api import Children, Node, Requirement, Write
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.sources.api import Batch, Json, SourceKind, TransactionalSource
from airflow_tx.transaction.spec import TransactionSpec
from airflow_tx.triggers.run_slots import SlotWatch


class Numbers(TransactionalSource):
    """0 to 9 are the first transaction, 10 to 19 the second, and so on."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.unit.bench.Numbers", {}

    def initialize_transaction(self, txid: int, position: Json) -> Batch:
        first = position if isinstance(position, int) else 0
        return Batch(metadata=[first, first + 10], position=first + 10)

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[dict[str, int]]:
        return ({"number": number} for number in range(*metadata))


class Lending(Numbers):
    """Numbers that come over a connection, which each reading opens."""

    def __init__(self) -> None:
        self.lent: list[str] = []
        self._connection: int | None = None

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[dict[str, int]]:
        self._connection = len(self.lent)
        self.lent.append("open")
        return super().emit_batch(attempt, metadata, spark)

    def close(self) -> None:
        if self._connection is not None:
            self.lent[self._connection] = "closed"
            self._connection = None


class OpaqueNumbers(Numbers):
    kind = SourceKind.OPAQUE


class CountingStore(MemoryStore):
    """Counts what would be requests to a server."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def get(self, path: str) -> Node | None:
        self.requests += 1
        return super().get(path)

    def children(self, path: str) -> Children | None:
        self.requests += 1
        return super().children(path)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        self.requests += 1
        super().multi(requirements, writes)

    def sync(self) -> None:
        self.requests += 1


@dataclass(frozen=True)
class MemorySpec(TransactionSpec):
    """A transaction whose ledger is in memory."""

    memory: Any = None
    root: str | None = "/airflow_tx"
    zookeeper_conn_id: str | None = "none"

    @contextmanager
    def store(self) -> Iterator[Any]:
        yield self.memory


_ids: Iterator[int] = iter(range(1, 1 << 30))


def run_of(run_id: str) -> RunInfo:
    """A run that somebody started by hand."""
    return RunInfo(run_id, "manual", None, None, None, None, None, {})


@dataclass
class FakeTi:
    """What a task instance tells and asks; the border to Airflow."""

    task_id: str
    run_id: str
    map_index: int = -1
    dag_id: str = "numbers"
    try_number: int = 1
    max_tries: int = 0
    dag_version_id: str = "v1"
    id: uuid.UUID = field(default_factory=lambda: uuid.UUID(int=next(_ids)))
    xcoms: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    states: dict[str, str | None] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int | None) -> Any:
        return self.xcoms.get((task_ids, key, -1 if map_indexes is None else map_indexes))

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.xcoms[self.task_id, key, self.map_index] = value

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        asked = {name: state for name, state in self.states.items() if {name, name.rpartition("_")[0]} & set(task_ids)}
        return {self.run_id: asked}

    def get_dagrun_state(self, *, dag_id: str, run_id: str) -> str:
        return self.runs.get(run_id, "running")


class Looking:
    """A waiting run, whose trigger looks every second."""

    watch: SlotWatch

    def __init__(self, store: CountingStore) -> None:
        self.now, self.store = 0.0, store

    def looks(self, seconds: float) -> Any:
        """The event within so many seconds, if there is one."""

        async def answer(question: Any) -> Any:
            return question(self.store)

        end = self.now + seconds
        while self.now < end:
            self.now += 1
            event = asyncio.run(self.watch.event(answer))
            if event is not None:
                return event
        return None
