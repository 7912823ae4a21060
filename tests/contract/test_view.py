"""The read model, over every store: what commands and the UI say of a topology."""

from __future__ import annotations

import pytest

from airflow_tx.errors import UnknownTransaction, UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.processing import TaskTry
from airflow_tx.protocol.requirement import Create, Delete, Put
from airflow_tx.protocol.view import topologies, topology_view, transaction_details
from tests.integration.pipeline import Pipeline


@pytest.fixture
def pipeline(each_store: Store, zookeeper_root: str) -> Pipeline:
    return Pipeline(each_store, zookeeper_root, tasks=2)


def test_topologies_are_listed_by_their_own_names(each_store: Store, zookeeper_root: str) -> None:
    assert topologies(each_store, zookeeper_root) == ()
    for name in ("a/b", "flights", "x.y"):
        Pipeline(each_store, zookeeper_root, topology=name).begin("r")
    each_store.ensure(f"{zookeeper_root}/not-a-topology")
    assert topologies(each_store, zookeeper_root) == ("a/b", "flights", "x.y")


def test_every_transaction_says_what_it_waits_for(pipeline: Pipeline) -> None:
    pipeline.run("r1")
    second, third, fourth = (pipeline.begin(run) for run in ("r2", "r3", "r4"))
    pipeline.work(second, "task0")
    pipeline.process(third)
    broken = TaskTry("task1", -1, "999999")
    ledger = pipeline.ledger
    ledger.start(fourth.attempt, broken)
    ledger.fail(fourth.attempt, broken, "task1: it broke")

    view = topology_view(pipeline.store, pipeline.paths)
    assert (view.current, view.allocated) == (2, 4)
    assert [(each.txid, each.status, each.waiting_for) for each in view.transactions] == [
        (4, "FAILED", "a replay: clear its failed task or its run"),
        (3, "PROCESSED", "transaction 2.1 (run r2, PROCESSING)"),
        (2, "PROCESSING", "an ack of task1"),
        (1, "COMMITTED", None),
    ]
    assert [each.error for each in view.transactions] == ["task1: it broke", None, None, None]
    assert [each.ack_val == "0" * 16 for each in view.transactions] == [False, True, False, True]
    assert [each.open for each in view.transactions] == [True, True, True, False]
    committed = view.transactions[-1]
    assert committed.began < str(committed.processed) < str(committed.granted) < str(committed.ended)


def test_a_committing_transaction_waits_for_its_committer(pipeline: Pipeline) -> None:
    begun = pipeline.begin("r1")
    pipeline.acquire(begun, pipeline.process(begun))
    (only,) = topology_view(pipeline.store, pipeline.paths).transactions
    assert (only.status, only.waiting_for) == ("COMMITTING", "its committer")
    assert only.granted is not None


def test_only_the_last_ended_ones_are_read(pipeline: Pipeline) -> None:
    for run in ("r1", "r2", "r3"):
        pipeline.run(run)
    pipeline.begin("r4")
    for recent, txids in ((0, [4]), (2, [4, 3, 2]), (9, [4, 3, 2, 1])):
        view = topology_view(pipeline.store, pipeline.paths, recent=recent)
        assert [each.txid for each in view.transactions] == txids


def test_the_details_of_one_transaction_name_its_rows_and_acks(pipeline: Pipeline) -> None:
    pipeline.run("r1")
    pipeline.work(pipeline.begin("r2"), "task0")
    opened = transaction_details(pipeline.store, pipeline.paths, 2)
    assert opened.batch is not None
    assert (opened.batch.rows, opened.transaction.run_id) == (2, "r2")
    assert {task: ack.done for task, ack in opened.acks.items()} == {"task0": True}
    assert transaction_details(pipeline.store, pipeline.paths, 1).transaction.status == "COMMITTED"
    with pytest.raises(UnknownTransaction, match="transaction 9 of topology 'flights'"):
        transaction_details(pipeline.store, pipeline.paths, 9)


def test_the_owner_is_shown_and_nonsense_there_stops_nothing(pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    store, paths = pipeline.store, pipeline.paths
    assert topology_view(store, paths).owner is None
    store.multi([], [Create(paths.owner, b'{"run_id":"r1"}')])
    assert topology_view(store, paths).owner == {"run_id": "r1"}
    for nonsense in (b"", b"\xff", b"[]"):
        store.multi([], [Put(paths.owner, nonsense)])
        assert topology_view(store, paths).owner is None
    store.multi([], [Delete(paths.owner)])


def test_a_damaged_record_stops_with_its_path(pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    pipeline.store.multi([], [Put(pipeline.paths.transaction(1), b"")])
    with pytest.raises(UnreadableRecord, match=pipeline.paths.transaction(1)):
        topology_view(pipeline.store, pipeline.paths)
