"""Batches of many tasks and of many partitions: no multi grows beyond what ZooKeeper takes. Source: protocol.md §4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import RequirementFailed, StoreUnavailable, TooMuchMetadata
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Create, Put, Requirement, Store, Write, ack_name
from airflow_tx.ledger.attempt import Grant, TransactionAttempt
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.records import Ack, TopologyRecord, TransactionRecord, decode, encode
from airflow_tx.ledger.steps import end
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.state import Sum
from airflow_tx.state.api import FencedState
from airflow_tx.state.sql.state import SqlState
from airflow_tx.transaction.commit.handoff import take_skip
from tests.integration.pipeline import Pipeline

TASKS, INSTANCES = 6, 1024
MOST = 20
"""Requests that a commit takes."""


class Logger:
    """A log that nobody reads."""

    def info(self, *_: object) -> None:
        """Forget it."""


class Finished(Pipeline):
    """A pipeline that ends what has acked."""

    def finish(self, begun: Begun) -> None:
        grant = self.acquire(begun, self.complete(begun))
        self.write(grant, begun.metadata)
        self.mark(grant)


class Wide(Finished):
    """Each task is mapped to many instances."""

    def map(self, begun: Begun, *, tasks: int = TASKS) -> str:
        """Let all instances have acked; where their acks lie."""
        txid = begun.attempt.txid
        acks = self.paths.acks(self.record(txid).acks)
        entry = encode(Ack("1", "op", emitted="1", acked="1", done=True, rows=1))
        mapped = [f"count_the_words_of_part_{task}" for task in range(tasks)]
        names = [ack_name(task, index) for task in mapped for index in range(INSTANCES)]
        for start in range(0, len(names), 1000):
            made = [Create(f"{acks}/{name}", entry) for name in names[start : start + 1000]]
            self.store.multi([], [*made, Put(acks, b"")])
        return acks

    def record(self, txid: int) -> TransactionRecord:
        node = self.store.get(path := self.paths.transaction(txid))
        assert node is not None
        return decode(TransactionRecord, path, node.data)

    def garbage(self) -> list[str]:
        node = self.store.get(self.paths.record)
        assert node is not None
        return decode(TopologyRecord, self.paths.record, node.data).garbage

    def kept(self) -> Sequence[str]:
        children = self.store.children(self.paths.all_acks)
        assert children is not None
        return children.names


class Cut:
    """A store whose process dies when it removes what a step has left."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.died = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        if not requirements and writes:
            self.died += 1
            raise StoreUnavailable(hosts="h", connection="c", reason="killed")
        self._store.multi(requirements, writes)


@pytest.mark.lead
def test_a_transaction_with_more_than_six_thousand_mapped_task_instances_commits(
    store: ZooKeeperStore, zookeeper_root: str
) -> None:
    pipeline = Wide(store, zookeeper_root, tasks=0)
    first = pipeline.begin("r1")
    pipeline.map(first)
    pipeline.finish(first)
    assert (pipeline.kept(), pipeline.garbage()) == ((), [])
    assert pipeline.run("r2") == 2


def test_a_replay_of_a_large_batch_counts_only_the_acks_of_the_new_attempt(
    store: ZooKeeperStore, zookeeper_root: str
) -> None:
    pipeline = Wide(store, zookeeper_root, tasks=1)
    pipeline.map(pipeline.begin("r1"))
    again = pipeline.begin("r1")
    assert (again.attempt.attempt, len(pipeline.kept()), pipeline.garbage()) == (2, 1, [])
    assert list(pipeline.process(again).acks) == [("task0", -1)]
    pipeline.finish(again)
    assert (pipeline.kept(), pipeline.garbage()) == ((), [])


def test_a_skipped_large_batch_leaves_no_acks_in_the_ledger(store: ZooKeeperStore, zookeeper_root: str) -> None:
    pipeline = Wide(store, zookeeper_root, tasks=0)
    pipeline.map(pipeline.begin("r1"))
    pipeline.ledger.run(end.note_skip, 1, Audit("ann", "test"))
    take_skip(pipeline.ledger, 1, {}, log=Logger())
    assert (pipeline.kept(), pipeline.garbage()) == ((), [])
    assert pipeline.run("r2") == 2


def test_the_next_commit_removes_acks_that_a_killed_committer_left_after_its_commit(
    store: ZooKeeperStore, zookeeper_root: str
) -> None:
    pipeline = Wide(store, zookeeper_root, tasks=0)
    begun = pipeline.begin("r1")
    acks = pipeline.map(begun, tasks=1)
    pipeline.store = dying = Cut(store)  # type: ignore[assignment]
    pipeline.finish(begun)
    assert (dying.died, len(pipeline.garbage())) == (1, 1)
    pipeline.store = store
    with pytest.raises(RequirementFailed):
        store.multi([], [Create(acks, b"")])
    pipeline.run("r2")
    assert (pipeline.kept(), pipeline.garbage()) == ((), [])


# --- partitions --------------------------------------------------------------------------------------------------

PARTITIONS = [f"orders-of-the-whole-shop-{number}" for number in range(5000)]


class Partitioned(Finished):
    """Each transaction takes a row of each partition."""

    def __init__(self, store: Store, root: str, states: Sequence[FencedState] = ()) -> None:
        super().__init__(store, root, states)
        self.request = TopologyRequest("dag", "opaque", 8, partitioned=True)

    def begin(self, run: str) -> Begun:
        request = BeginRequest(self.request, run, run, f"{next(self._tries):06}", False, {"task0": "1"})
        begun = self.ledger.begin(request, Outside(decide=self.decide, run_state=lambda run_id: "failed"))
        assert isinstance(begun, Begun), begun
        return begun

    def decide(self, attempt: TransactionAttempt, position: Any) -> Any:
        places = position or dict.fromkeys(PARTITIONS, 0)
        rows: Any = {name: [place, place + 1] for name, place in places.items()}
        return Batch(rows, {name: place + 1 for name, place in places.items()})

    def write(self, grant: Grant, rows: Any) -> None:
        super().write(grant, 1)


@pytest.fixture
def state(tmp_path: Path) -> SqlState:
    url = f"sqlite:///{tmp_path / 's.db'}"
    return SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, label="s")


def test_a_batch_of_5000_partitions_is_begun_replayed_and_committed(
    store: ZooKeeperStore, zookeeper_root: str, state: SqlState
) -> None:
    pipeline = Partitioned(store, zookeeper_root, [state])
    assert pipeline.run("r1") == 1
    pipeline.begin("r2")
    assert pipeline.begin("r2").attempt.attempt == 2
    assert pipeline.run("r2") == 2
    third = pipeline.begin("r3")
    assert (third.metadata[PARTITIONS[-1]], len(third.metadata)) == ([2, 3], 5000)
    pipeline.process(third)
    before = store.requests
    pipeline.finish(third)
    assert store.requests - before <= MOST


def test_a_lost_ledger_of_5000_partitions_is_rebuilt(
    store: ZooKeeperStore, zookeeper_root: str, state: SqlState
) -> None:
    pipeline = Partitioned(store, zookeeper_root, [state])
    pipeline.run("r1")
    pipeline.begin("r2")
    fence = state.fence()
    assert fence is not None
    held = [HeldState.of(state.name, undoable=True, fence=fence)]
    Repairs(pipeline.ledger).ledger_lost(held, pipeline.request, Audit("ann", "restored"))
    assert pipeline.run("r2") == 2
    assert pipeline.totals() == [2]


def test_a_batch_that_is_too_large_for_a_record_is_refused_and_gets_no_txid(
    store: ZooKeeperStore, zookeeper_root: str
) -> None:
    pipeline = Pipeline(store, zookeeper_root)
    pipeline.ledger.open(pipeline.request)
    request = BeginRequest(pipeline.request, "r1", "r1", "0", False, {"task0": "1"})
    with pytest.raises(TooMuchMetadata, match=f"{pipeline.paths.meta(1)} would hold .* let the source put fewer rows"):
        pipeline.ledger.begin(request, Outside(decide=lambda *_: Batch("x" * 1_050_000, 1), run_state=lambda _: None))
    assert store.get(pipeline.paths.transaction(1)) is None
    assert pipeline.run("r1") == 1
