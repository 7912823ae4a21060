"""How many requests a transaction sends to ZooKeeper: constant, whatever the txid."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_tx.base.errors import IncompleteBatch
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Create, Paths, Put
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.records import Counter, Metadata, encode
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import transaction_details
from airflow_tx.transaction.commit.turn import Move, read_line
from tests.finals import final_record
from tests.integration.pipeline import Pipeline

MOST = 20
MOST_PER_TASK = 4


class Counted(Pipeline):
    """Counts; every step is by a ledger object that remembers nothing, those of the committer aside."""

    def transaction(self, run: str) -> int:
        """A whole run, the announcement of the owner included; how many requests it took."""
        before = self.sent
        begun = self.begin(run)
        for task in self.tasks:
            self.work(begun, task)
        ledger = self.ledger
        processed = self.complete(begun, ledger)
        with self._store.announce(self.paths.owner("n"), b"me"):
            self.mark(self.acquire(begun, processed, ledger), ledger)
        assert begun.attempt.txid == int(run)
        return self.sent - before

    def map(self, begun: Begun, count: int, *, acks: bool = True) -> None:
        """So many instances of one task start, and ack if they are to."""
        for index in range(count):
            own, ledger = TaskTry("task0", index, f"{next(self._tries):06}"), self.ledger
            ledger.start(begun.attempt, own)
            if acks:
                ledger.run(processing.ack, begun.attempt, own)

    @property
    def _store(self) -> ZooKeeperStore:
        assert isinstance(self.store, ZooKeeperStore)
        return self.store

    @property
    def sent(self) -> int:
        """Requests so far."""
        return self._store.requests


def stand_at(store: ZooKeeperStore, paths: Paths, txid: int, *, history: int) -> None:
    """Let the ledger look as if all transactions before `txid` had committed."""
    final = final_record(
        txid=0,
        began="2026-01-01T00:00:00+00:00",
        rows=1,
    )
    past = [Create(paths.history(each), encode(final)) for each in range(max(txid - history, 1), txid)]
    for start in range(0, len(past), 200):
        store.multi([], past[start : start + 200])
    position = encode(Metadata(1, txid - 1, txid - 1))
    places = [Put(paths.current, encode(Counter(txid))), Put(paths.allocated, encode(Counter(txid - 1)))]
    store.multi([], [*places, Create(paths.meta(txid - 1), position)])


@pytest.fixture
def standing(store: ZooKeeperStore, zookeeper_root: str) -> Callable[..., Counted]:
    """Makes a pipeline that stands at a txid."""

    def make(txid: int, tasks: int = 1) -> Counted:
        pipeline = Counted(store, f"{zookeeper_root}/{txid}-{tasks}", tasks=tasks, history=1000)
        pipeline.ledger.open(pipeline.request)
        stand_at(store, pipeline.paths, txid, history=1000)
        return pipeline

    return make


def test_a_transaction_with_one_task_needs_the_same_number_of_requests_at_any_txid(
    standing: Callable[..., Counted],
) -> None:
    small, large = standing(10), standing(10_000)
    early = [small.transaction(str(txid)) for txid in range(10, 13)]
    late = [large.transaction(str(txid)) for txid in range(10_000, 10_003)]
    assert set(early) == set(late)
    assert max(early) <= MOST, early


def test_each_additional_task_adds_at_most_four_requests(standing: Callable[..., Counted]) -> None:
    one, five = standing(10), standing(10, tasks=5)
    assert five.transaction("10") - one.transaction("10") <= 4 * MOST_PER_TASK


def test_the_number_of_live_records_does_not_grow_with_committed_transactions(
    standing: Callable[..., Counted], store: ZooKeeperStore
) -> None:
    pipeline = standing(10_000)
    paths = pipeline.paths
    pipeline.transaction("10000")
    before = _records(store, paths)
    for txid in range(10_001, 10_006):
        pipeline.transaction(str(txid))
    after = _records(store, paths)
    assert after - before == 5, "one binding a run, and nothing else"


def _records(store: ZooKeeperStore, paths: Paths) -> int:
    def count(path: str) -> int:
        children = store.children(path)
        return 1 + sum(count(f"{path}/{name}") for name in (children.names if children else ()))

    return count(paths.base)


MAPPED = 150
"""Instances of a mapped task: more than a waiting committer reads the acks of."""


def test_a_waiting_transaction_does_not_read_the_acks_of_an_earlier_transaction(
    standing: Callable[..., Counted],
) -> None:
    pipeline = standing(10, tasks=0)
    first = pipeline.begin("10")
    pipeline.map(first, MAPPED)
    pipeline.begin("11")
    before = pipeline.sent
    line = read_line(ReadOnlyLedger(pipeline.store, pipeline.paths), 11, ["task0"])
    assert (pipeline.sent - before, line.move) == (4, Move.WAIT_BRIEFLY)
    pipeline.complete(first)
    assert read_line(ReadOnlyLedger(pipeline.store, pipeline.paths), 11, ["task0"]).move is Move.WAIT


def test_showing_a_transaction_reads_each_ack_once(standing: Callable[..., Counted]) -> None:
    pipeline = standing(10, tasks=0)
    pipeline.map(pipeline.begin("10"), MAPPED)
    before = pipeline.sent
    details = transaction_details(pipeline.store, pipeline.paths, 10)
    assert len(details.acks) == MAPPED
    assert pipeline.sent - before <= MAPPED + 10


def test_the_message_about_missing_acks_of_many_tasks_lists_only_some_of_them(standing: Callable[..., Counted]) -> None:
    pipeline = standing(10, tasks=0)
    begun = pipeline.begin("10")
    pipeline.map(begun, MAPPED, acks=False)
    with pytest.raises(IncompleteBatch, match=r"no ack from task0\[0\], .* and 130 more\. Clear"):
        pipeline.complete(begun)
    view = transaction_details(pipeline.store, pipeline.paths, 10).transaction
    assert str(view.waiting_for).endswith(", and 130 more")
