"""How large a batch is and why, from the source to the record, over every store; and what the last ones took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Store
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.sources.api import FIRST_ROWS, Batch, BatchSize, Json, TransactionalSource
from airflow_tx.transaction.processing.begin import allocate
from airflow_tx.transaction.spec import TransactionSpec
from tests.integration.pipeline import Pipeline
from tests.stage import begin_run

ROWS = 10_000_000


class Table(TransactionalSource):
    """Ten million numbered rows; a batch has as many as its limit lets it."""

    def __init__(self, target_seconds: float | None = None) -> None:
        self.batch_size = None if target_seconds is None else BatchSize(target_seconds=target_seconds)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.contract.test_sizes.Table", {}

    def backlog(self, position: Json) -> int:
        return ROWS - (position if isinstance(position, int) else 0)

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        start, there = ROWS - self.backlog(position), self.backlog(position)
        if not there:
            return None
        count = min(there, self.limit.rows or 7)
        return Batch([start, start + count], start + count, count, self.limit.reason_for(count, there))

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[dict[str, int]]:
        return ({"n": number} for number in range(*metadata))


@dataclass(frozen=True)
class Spec(TransactionSpec):
    """A transaction on the store of a test, whose clock is that of a pipeline."""

    pipeline: Any = None
    zookeeper_conn_id: str | None = "none"

    @contextmanager
    def store(self) -> Iterator[Any]:
        yield self.pipeline.store

    def ledger(self, store: Any) -> Ledger:
        found: Ledger = self.pipeline.ledger
        return found


class Topology(Pipeline):
    """A pipeline on a table: a transaction takes a second of overhead, and one for 100,000 rows."""

    def __init__(self, store: Store, root: str, source: TransactionalSource) -> None:
        super().__init__(store, root, topology="table", kind="transactional")
        self.spec = Spec("table", "table", source, max_pending=4, root=root, tasks=("task0",), pipeline=self)
        self.request = self.spec.request

    def begin(self, run: str) -> Begun:
        answer = begin_run(self.spec, run)
        assert isinstance(answer, Begun)
        return answer

    def finish(self, begun: Begun) -> None:
        # It stands still but for this: every look at the clock is a second.
        for _ in range((begun.metadata[1] - begun.metadata[0]) // 100_000):
            self._clock.now()
        self.mark(self.acquire(begun, self.process(begun)))


@pytest.fixture
def topology(each_store: Store, zookeeper_root: str) -> Topology:
    return Topology(each_store, zookeeper_root, Table(target_seconds=30))


def test_the_answer_of_begin_the_record_and_the_history_contain_the_batch_size_and_its_reason(
    topology: Topology,
) -> None:
    why = f"{FIRST_ROWS} of {ROWS} rows: nothing is measured yet, target_seconds=30"
    begun = topology.begin("r1")
    assert begun.size == {"rows": FIRST_ROWS, "why": why}
    for _ in range(2):
        (seen,) = topology_view(topology.store, topology.paths).transactions
        assert seen.document.size == {"rows": FIRST_ROWS, "why": why}
        if seen.open:
            topology.finish(begun)


def test_a_transactional_replay_keeps_the_batch_size_and_its_reason(topology: Topology) -> None:
    begun = topology.begin("r1")
    again = topology.begin("r1")
    assert (again.attempt.attempt, again.metadata, again.size) == (2, begun.metadata, begun.size)


def test_a_backlog_is_split_into_few_batches_that_fit_the_target_time(topology: Topology) -> None:
    sizes: list[int] = []
    while True:
        answer = begin_run(topology.spec, f"r{len(sizes)}")
        if not isinstance(answer, Begun):
            break
        assert answer.size is not None
        sizes.append(answer.size["rows"])
        topology.finish(answer)
    assert sum(sizes) == ROWS
    assert sizes[:2] == [FIRST_ROWS, 750_000], "the first one took 4 s"
    assert len(sizes) <= 8
    pace = topology.ledger.pace()
    assert max(seconds for _, seconds in pace) <= 33, "a look at the clock is a second"
    assert [rows for rows, _ in pace] == sizes
    last = topology_view(topology.store, topology.paths).transactions[0]
    assert last.document.size is not None
    assert last.document.size["why"] == f"all {sizes[-1]} rows that there were"


def test_the_coordinator_allocates_batches_that_fit_the_target_time(topology: Topology) -> None:
    topology.finish(topology.begin("r1"))
    answer = allocate(topology.spec, topology.ledger)
    assert isinstance(answer, Begun)
    assert answer.size is not None
    assert answer.size["rows"] == 750_000


def test_the_batch_size_of_a_source_without_limits_is_not_limited_by_measured_speed(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Table())
    begun = topology.begin("r1")
    assert begun.size == {"rows": 7, "why": f"7 of {ROWS} rows: no limit is set"}
    topology.finish(begun)
    ((rows, seconds),) = topology.ledger.pace()
    assert rows == 7
    assert seconds > 0


def test_the_position_of_a_topology_is_the_position_after_its_last_final_transaction(topology: Topology) -> None:
    assert topology.ledger.position() is None
    first, second = topology.begin("r1"), topology.begin("r2")
    assert topology.ledger.position() is None
    topology.finish(first)
    assert topology.ledger.position() == FIRST_ROWS
    topology.finish(second)
    assert topology.ledger.position() == second.position
