"""The read model, over every store: what commands and the UI say of a topology."""

from __future__ import annotations

import pytest

from airflow_tx.base.errors import StaleAttempt, UnknownTransaction
from airflow_tx.ledger.answers import Begun, Granted
from airflow_tx.ledger.api import Create, Delete, Put, Store, topologies
from airflow_tx.ledger.attempt import LANE_TRY, TaskTry
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import commit, processing, recovery, run_slots
from airflow_tx.ledger.steps.end import commit_skip, grant_skip, note_readmission, note_skip
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.status import TransactionView
from airflow_tx.ledger.views.view import topology_view, transaction_details
from tests.integration.pipeline import Pipeline

AUDIT = Audit("ann", "the file is broken")


@pytest.fixture
def pipeline(each_store: Store, zookeeper_root: str) -> Pipeline:
    return Pipeline(each_store, zookeeper_root, tasks=2)


def test_topologies_are_listed_by_name_and_other_nodes_are_not_listed(each_store: Store, zookeeper_root: str) -> None:
    assert topologies(each_store, zookeeper_root) == ()
    for name in ("a/b", "flights", "x.y"):
        Pipeline(each_store, zookeeper_root, topology=name).begin("r")
    each_store.ensure(f"{zookeeper_root}/not-a-topology")
    assert topologies(each_store, zookeeper_root) == ("a/b", "flights", "x.y")


def test_the_view_shows_what_each_transaction_waits_for(pipeline: Pipeline) -> None:
    pipeline.run("r1")
    second, third, fourth = (pipeline.begin(run) for run in ("r2", "r3", "r4"))
    pipeline.work(second, "task0")
    pipeline.process(third)
    broken = TaskTry("task1", -1, "999999")
    ledger = pipeline.ledger
    ledger.start(fourth.attempt, broken)
    ledger.run(processing.fail, fourth.attempt, broken, reason="task1: it broke")

    view = topology_view(pipeline.store, pipeline.paths)
    assert (view.current, view.allocated) == (2, 4)
    assert [(each.txid, each.status, each.waiting_for) for each in view.transactions] == [
        (4, "FAILED", "a replay: airflow tx replay flights 4, or clear its failed task"),
        (3, "PROCESSED", "transaction 2.1 (run r2, PROCESSING)"),
        (2, "PROCESSING", "an ack of task1"),
        (1, "COMMITTED", None),
    ]
    assert [each.document.error for each in view.transactions] == ["task1: it broke", None, None, None]
    assert [each.ack_val == "0" * 16 for each in view.transactions] == [False, True, False, True]
    assert [each.open for each in view.transactions] == [True, True, True, False]
    committed = view.transactions[-1]
    times = [committed.began, committed.processed, committed.granted, committed.ended]
    assert times == sorted(each for each in times if each is not None)


def test_a_committing_transaction_waits_for_its_committer(pipeline: Pipeline) -> None:
    begun = pipeline.begin("r1")
    pipeline.acquire(begun, pipeline.process(begun))
    (only,) = topology_view(pipeline.store, pipeline.paths).transactions
    assert (only.status, only.waiting_for) == ("COMMITTING", "its committer")
    assert only.granted is not None


def test_a_failed_commit_is_shown_with_its_reason_until_a_task_takes_the_turn_again(pipeline: Pipeline) -> None:
    begun = pipeline.begin("r1")
    first = pipeline.acquire(begun, pipeline.process(begun))
    for reason in ("task write: the database is away", "task mark: task write has failed"):
        pipeline.ledger.run(commit.note_commit_failed, begun.attempt, first.token.epoch, reason=reason)
    shown = of(pipeline, 1)
    assert (shown.status, shown.document.failures, shown.document.error) == (
        "COMMITTING",
        1,
        "task write: the database is away",
    )
    assert shown.waiting_for == "its committer, which has failed: airflow tx replay flights 1, or clear its failed task"

    again = pipeline.acquire(begun, pipeline.complete(begun))
    pipeline.ledger.run(
        commit.note_commit_failed, begun.attempt, first.token.epoch, reason="the first one lived on, and has failed now"
    )
    pipeline.ledger.run(
        commit.note_commit_failed, begun.attempt, None, reason="one that never had the turn has failed now"
    )
    shown = of(pipeline, 1)
    assert (shown.status, shown.document.failures, shown.document.error) == ("COMMITTING", 1, None)
    assert pipeline.ledger.holds(again.token)
    pipeline.mark(again)
    assert (of(pipeline, 1).status, of(pipeline, 1).document.failures) == ("COMMITTED", 1)
    pipeline.ledger.run(commit.note_commit_failed, begun.attempt, again.token.epoch, reason="it is committed by now")
    assert of(pipeline, 1).document.failures == 1


def test_a_commit_that_fails_before_its_turn_is_shown_until_a_task_runs_again(pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    begun = pipeline.begin("r2")
    processed = pipeline.process(begun)
    pipeline.ledger.run(commit.note_commit_failed, begun.attempt, processed.epoch, reason="its output is gone")
    pipeline.ledger.run(commit.note_commit_failed, begun.attempt, None, reason="its trigger has failed")
    assert (of(pipeline, 2).status, of(pipeline, 2).document.failures) == ("PROCESSED", 2)
    assert of(pipeline, 2).document.error == "its trigger has failed"
    for _ in range(2):
        pipeline.work(begun, "task0")
        assert of(pipeline, 2).document.error is None
        pipeline.ledger.run(commit.note_commit_failed, begun.attempt, processed.epoch, reason="its output is gone")
        assert of(pipeline, 2).document.error is None
        pipeline.complete(begun)
    pipeline.begin("r2")
    with pytest.raises(StaleAttempt):
        pipeline.ledger.run(commit.note_commit_failed, begun.attempt, processed.epoch, reason="its output is gone")


def test_the_view_reads_open_and_only_the_most_recent_ended_transactions(pipeline: Pipeline) -> None:
    for run in ("r1", "r2", "r3"):
        pipeline.run(run)
    pipeline.begin("r4")
    for recent, txids in ((0, [4]), (2, [4, 3, 2]), (9, [4, 3, 2, 1])):
        view = topology_view(pipeline.store, pipeline.paths, recent=recent)
        assert [each.txid for each in view.transactions] == txids


def test_the_details_of_a_transaction_contain_its_rows_and_its_acks(pipeline: Pipeline) -> None:
    pipeline.run("r1")
    pipeline.work(pipeline.begin("r2"), "task0")
    opened = transaction_details(pipeline.store, pipeline.paths, 2)
    assert opened.batch is not None
    assert (opened.batch.rows, opened.transaction.document.run_id) == (2, "r2")
    assert {task: ack.done for task, ack in opened.acks.items()} == {("task0", -1): True}
    assert transaction_details(pipeline.store, pipeline.paths, 1).transaction.status == "COMMITTED"
    with pytest.raises(UnknownTransaction, match="transaction 9 of topology 'flights'"):
        transaction_details(pipeline.store, pipeline.paths, 9)


def test_the_view_shows_which_run_has_the_turn_and_ignores_an_unreadable_owner_record(pipeline: Pipeline) -> None:
    begun = pipeline.begin("r1")
    store, paths = pipeline.store, pipeline.paths
    assert topology_view(store, paths).owner is None
    owner = paths.owner(pipeline.acquire(begun, pipeline.process(begun)).token.nonce)
    assert topology_view(store, paths).owner is None
    store.multi([], [Create(owner, b'{"run_id":"r1"}')])
    assert topology_view(store, paths).owner == {"run_id": "r1"}
    for nonsense in (b"", b"\xff", b"[]"):
        store.multi([], [Put(owner, nonsense)])
        assert topology_view(store, paths).owner is None
    store.multi([], [Delete(owner)])


def test_the_view_shows_a_lane_as_the_owner_of_the_turn_while_it_commits(pipeline: Pipeline) -> None:
    pipeline.begins_as = LANE_TRY
    begun = pipeline.begin("r1")
    store, paths = pipeline.store, pipeline.paths
    lane = paths.lane(f"{LANE_TRY}000000")
    store.multi([], [Create(lane, b'{"run_id":"coordinate"}')])
    assert topology_view(store, paths).owner is None
    pipeline.acquire(begun, pipeline.process(begun))
    assert topology_view(store, paths).owner == {"run_id": "coordinate"}
    store.multi([], [Delete(lane)])
    assert topology_view(store, paths).owner is None


def test_the_view_names_the_path_of_a_damaged_record_and_shows_the_other_transactions(pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    pipeline.begin("r2")
    pipeline.store.multi([], [Put(pipeline.paths.transaction(1), b"")])
    damaged, other = sorted(topology_view(pipeline.store, pipeline.paths).transactions, key=lambda each: each.txid)
    assert pipeline.paths.transaction(1) in str(damaged.document.error)
    assert (other.txid, other.status) == (2, "PROCESSING")


def of(pipeline: Pipeline, txid: int) -> TransactionView:
    """One transaction, which lists and details must tell alike."""
    listed = {each.txid: each for each in topology_view(pipeline.store, pipeline.paths).transactions}
    shown = transaction_details(pipeline.store, pipeline.paths, txid).transaction
    assert listed.get(txid, shown) == shown
    return shown


def fail(pipeline: Pipeline, begun: Begun, task_try: str) -> None:
    broken = TaskTry("task1", -1, task_try)
    ledger = pipeline.ledger
    ledger.start(begun.attempt, broken)
    ledger.run(processing.fail, begun.attempt, broken, reason="it broke")


def skip(pipeline: Pipeline, txid: int) -> None:
    """Skip the transaction whose turn it is; the topology has no states."""
    pipeline.ledger.run(note_skip, txid, AUDIT)
    answer = pipeline.ledger.run(grant_skip, txid, {})
    assert isinstance(answer, Granted)
    pipeline.ledger.run(commit_skip, answer.grant.token, states=[])


def test_the_view_shows_a_skip_from_its_request_until_the_readmission(pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    pipeline.begin("r2")
    pipeline.ledger.run(note_skip, 2, AUDIT)
    noted = of(pipeline, 2)
    assert noted.skip is not None
    assert (noted.skip.who, noted.skip.why) == ("ann", "the file is broken")
    assert noted.waiting_for == "transaction 1.1 (run r1, PROCESSING), then it is skipped"

    skip(pipeline, 1)
    assert of(pipeline, 2).waiting_for == "its skip"
    skip(pipeline, 2)
    skipped = of(pipeline, 2)
    assert (skipped.status, skipped.waiting_for, skipped.open) == ("SKIPPED", None, False)
    assert skipped.skip is not None
    assert (skipped.skip.who, skipped.skip.why) == ("ann", "the file is broken")
    batch = transaction_details(pipeline.store, pipeline.paths, 2).batch
    assert batch is not None
    assert batch.rows == 2

    pipeline.ledger.run(note_readmission, 2, Audit("bob", "mended"))
    assert of(pipeline, 2).waiting_for == "begin of run r2, which takes the skipped rows again"
    pipeline.begin("r2")
    back = of(pipeline, 2)
    assert (back.status, back.readmitted_as, back.waiting_for) == ("READMITTED", 3, None)
    assert back.readmit is not None
    assert (back.readmit.who, back.readmit.why) == ("bob", "mended")
    assert (of(pipeline, 3).document.pinned, of(pipeline, 1).document.pinned) == (True, False)


def test_a_skipped_transaction_stays_visible_after_its_history_entry_was_deleted(
    each_store: Store, zookeeper_root: str
) -> None:
    pipeline = Pipeline(each_store, zookeeper_root, history=1)
    pipeline.begin("r1")
    skip(pipeline, 1)
    pipeline.run("r2")
    pipeline.run("r3")
    for recent, txids in ((0, [1]), (9, [3, 1])):
        view = topology_view(pipeline.store, pipeline.paths, recent=recent)
        assert [each.txid for each in view.transactions] == txids
    forgotten = of(pipeline, 1)
    assert (forgotten.status, forgotten.document.run_id, forgotten.document.attempt, forgotten.began) == (
        "SKIPPED",
        "r1",
        0,
        None,
    )
    assert forgotten.skip is not None
    assert forgotten.ended == forgotten.skip.when
    batch = transaction_details(pipeline.store, pipeline.paths, 1).batch
    assert batch is not None
    assert batch.rows == 1

    pipeline.ledger.run(note_readmission, 1, AUDIT)
    pipeline.begin("r1")
    assert [each.txid for each in topology_view(pipeline.store, pipeline.paths, recent=0).transactions] == [4]
    assert (of(pipeline, 1).status, of(pipeline, 1).readmitted_as) == ("READMITTED", 4)


def test_a_batch_waits_for_a_replay_if_its_predecessor_ends_at_another_position(pipeline: Pipeline) -> None:
    pipeline.process(pipeline.begin("r1"))
    pipeline.process(pipeline.begin("r2"))
    pipeline.process(pipeline.begin("r3"))
    assert [of(pipeline, txid).stale for txid in (1, 2, 3)] == [False, False, False]
    request = BeginRequest(pipeline.request, "r1", "r1", "999999", False, {})
    pipeline.ledger.begin(request, Outside(decide=lambda _, position: Batch([1, 2], 2), run_state=lambda _: None))
    assert [of(pipeline, txid).stale for txid in (1, 2, 3)] == [False, True, False]
    assert of(pipeline, 2).waiting_for == (
        "a replay, since its batch does not start where transaction 1 ended: airflow tx replay flights 2"
    )


def test_the_view_shows_automatic_replays_and_the_block_until_a_person_acts(
    pipeline: Pipeline,
) -> None:
    first = pipeline.begin("r1")
    fail(pipeline, first, "900001")
    replay = ReplayRequest(first.attempt, "task1: it broke", counts=True, limit=1)
    pipeline.ledger.run(recovery.note_replay, replay)
    noted = of(pipeline, 1).document.replay
    assert noted is not None
    assert (noted.attempt, noted.count, noted.reason) == (1, 1, "task1: it broke")
    assert of(pipeline, 1).blocked is None

    second = pipeline.begin("r1")
    fail(pipeline, second, "900002")
    pipeline.ledger.run(recovery.note_replay, ReplayRequest(second.attempt, "it broke again", counts=True, limit=1))
    blocked = of(pipeline, 1)
    assert blocked.blocked == "it broke again"
    assert blocked.waiting_for == (
        "a person: it is replayed no more (it broke again): airflow tx replay flights 1, "
        "or airflow tx skip flights 1 --why TEXT"
    )
    pipeline.begin("r1")
    assert of(pipeline, 1).blocked is None


def test_the_view_shows_for_which_transaction_a_run_has_yielded_its_slot(pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    pipeline.process(pipeline.begin("r2"))
    waiter = Waiter("r2", 2, "000099", 1)
    pipeline.ledger.run(run_slots.bid, waiter)
    pipeline.ledger.run(run_slots.note_yield, waiter)
    assert of(pipeline, 2).document.yielded == 1
    told = "the run of transaction 1, to which it gave its run slot; then it is started again"
    assert of(pipeline, 2).waiting_for == told
    pipeline.ledger.run(run_slots.came_back, "r2")
    assert of(pipeline, 2).document.yielded is None
    assert of(pipeline, 2).waiting_for == "transaction 1.1 (run r1, PROCESSING)"


def test_the_details_of_a_partitioned_batch_combine_the_positions_of_all_partitions(pipeline: Pipeline) -> None:
    topology = TopologyRequest("dag", "opaque", 8, partitioned=True)
    for run, batch in (("r1", ({"a": [0, 1], "b": [0, 5]}, {"a": 1, "b": 5})), ("r2", ({"a": [1, 2]}, {"a": 2}))):
        request = BeginRequest(topology, run, run, "000001", False, {})
        pipeline.ledger.begin(request, Outside(decide=lambda *_, batch=batch: Batch(*batch), run_state=lambda _: None))
    found = transaction_details(pipeline.store, pipeline.paths, 2)
    assert found.partitioned
    assert found.batch is not None
    assert (found.batch.rows, found.batch.position) == ({"a": [1, 2]}, {"a": 2, "b": 5})
