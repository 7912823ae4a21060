"""A transaction with messages: it is committed when every one of them is acked, never before."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.base.errors import (
    AckersUnavailable,
    FailedTransaction,
    MessagesFailed,
    MessagesLost,
    StaleMessage,
    TransactionDefinitionError,
    UnknownMessage,
)
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps import processing as steps
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.outputs.messages.messages import Collector, TaskEmitter
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.messages.tree import Origin, Reference, TreeReport, origin_of
from airflow_tx.transaction.commit.committer import Completion
from airflow_tx.transaction.commit.handoff import Messages, is_processing, messages_of
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.triggers.turn import MessagesTrigger
from tests.unit.bench import CountingStore
from tests.unit.commit.message_run import MessageRun
from tests.unit.commit.run import Broker
from tests.unit.conftest import Sleeps

STILL_WAITS = r"it still waits after \S+ s \(processing_timeout\)"
AWAY = AckersUnavailable(where="redis", reason="refused")


@pytest.fixture
def make(make_with_messages: Any) -> Any:
    return make_with_messages


@pytest.fixture
def run(make: Any) -> MessageRun:
    made: MessageRun = make()
    return made


def test_a_transaction_is_committed_after_all_its_messages_are_acked(run: MessageRun) -> None:
    run.begin()
    first, second = run.work(2)
    run.ack(first)
    line = run.commit_now()
    assert line is not None
    assert line.messages
    assert run.count == 0
    assert run.record is not None
    assert run.record.phase is Phase.PROCESSING
    assert "of its 2 message trees, these are not complete: 1 of task count" in run.log.lines[-1]
    run.ack(second)
    assert run.commit_now() is None
    assert run.count == 10


def test_only_the_newest_attempt_waits_for_messages_and_only_until_it_is_processed(run: MessageRun) -> None:
    run.begin()
    record = run.record
    assert record is not None
    assert is_processing(record, 1)
    assert not is_processing(replace(record, phase=Phase.PROCESSED), 1)
    assert not is_processing(record, 2)
    assert not is_processing(None, 1)


def test_the_status_of_a_transaction_shows_how_many_trees_are_still_open(run: MessageRun) -> None:
    run.begin()
    run.work(3)
    (view,) = topology_view(run.spec.memory, run.spec.paths).transactions
    assert view.waiting_for == "acks of its messages (3 trees), and its committer"


def test_a_commit_deletes_the_trees_of_its_transaction_from_the_ackers(
    run: MessageRun, acker_nodes: MemoryStore
) -> None:
    run.begin()
    (root,) = run.work()
    run.ack(root)
    run.commit_now()
    found = acker_nodes.children(f"/airflow_tx.acks/numbers@{run.begun.incarnation}")
    assert found is not None
    assert found.names == ()
    run.collector.process(root).ack()
    with pytest.raises(UnknownMessage, match="transaction 1 is not open: it has ended"):
        run.collector.flush()


def test_a_failed_message_fails_its_attempt_and_the_next_attempt_refuses_older_messages(run: MessageRun) -> None:
    run.begin()
    lost, failed = run.work(2)
    with pytest.raises(ZeroDivisionError), run.collector.process(failed):
        raise ZeroDivisionError("by nothing")
    with pytest.raises(
        MessagesFailed, match=r"1\.1 has failed: a worker failed a message: ZeroDivisionError: by nothing"
    ):
        run.commit_now()
    assert run.record is not None
    assert (run.record.phase, run.record.failures) == (Phase.FAILED, 1)
    with pytest.raises(FailedTransaction):
        run.commit_now()
    assert run.begin().attempt.attempt == 2
    again = run.work(2)
    with pytest.raises(StaleMessage, match=r"1\.1 of topology 'numbers' refused: attempt 2 is the newest"):
        run.ack(lost)
    run.ack(*again)
    assert run.commit_now() is None
    assert run.count == 10


def test_messages_that_are_not_acked_before_the_time_limit_fail_the_attempt(make: Any) -> None:
    run: MessageRun = make(message_timeout=1e-6)
    run.begin()
    run.work(3)
    with pytest.raises(
        MessagesFailed,
        match=rf"{STILL_WAITS}: of its 3 message trees, .* 3 of task count\. Clear `begin`",
    ):
        run.commit_now()
    assert run.record is not None
    assert run.record.phase is Phase.FAILED
    assert run.count == 0


def test_messages_that_were_acked_in_time_do_not_time_out_afterwards(make: Any) -> None:
    run: MessageRun = make(message_timeout=1e-6)
    run.begin()
    run.ack(*run.work())
    assert run.commit_now() is None


@pytest.mark.parametrize(("seconds", "late"), [(59.999, False), (60.0, True), (61.0, True)])
def test_the_time_limit_for_messages_starts_at_begin(seconds: float, late: bool) -> None:
    trees = TreeReport(emitted={TaskTry("count", -1, "try"): 2}, open={"count": 1}, twice={})
    ackers: Any = SimpleNamespace(report=lambda origin: trees)
    began = datetime(2013, 1, 1, tzinfo=timezone.utc)
    record: Any = SimpleNamespace(began=began.isoformat())
    found = messages_of(
        lambda: nullcontext(ackers),
        Origin("numbers", 1, 1),
        record,
        timeout=60,
        now=began + timedelta(seconds=seconds),
    )
    waiting = "of its 2 message trees, these are not complete: 1 of task count"
    expected = Messages(problem=f"it still waits after 60 s (processing_timeout): {waiting}")
    assert found == (expected if late else Messages(waiting=waiting))


def test_the_source_is_notified_of_failed_messages(make: Any) -> None:
    broker = Broker()
    run: MessageRun = make(source=broker, message_timeout=1e-6)
    run.begin()
    run.work()
    with pytest.raises(MessagesFailed):
        run.commit_now()
    ((txid, rows, reason),) = broker.learned
    assert (txid, rows) == (1, [0, 10])
    assert "processing_timeout" in reason


def test_a_message_that_was_acked_twice_fails_its_attempt(run: MessageRun) -> None:
    run.begin()
    with run.collector.process(*run.work()) as root:
        word = root.emit()
    for _ in range(3):
        run.collector.process(word).ack()
    run.collector.flush()
    with pytest.raises(MessagesFailed, match="messages of count were acked more than once"):
        run.commit_now()


def test_the_committer_waits_while_the_ackers_are_unreachable(run: MessageRun) -> None:
    run.begin()
    run.ack(*run.work())
    run.spec.broken.append(AWAY)
    assert run.commit_now().messages
    assert run.log.lines[-1].startswith("Transaction 1.1 of numbers waits: The ackers at redis cannot be reached")
    assert run.count == 0
    run.spec.broken.clear()
    assert run.commit_now() is None


def test_ackers_that_stay_unreachable_until_the_time_limit_fail_the_attempt(make: Any) -> None:
    run: MessageRun = make(message_timeout=1e-6)
    run.begin()
    run.work()
    run.spec.broken.append(AWAY)
    with pytest.raises(
        MessagesFailed,
        match=rf"{STILL_WAITS}: The ackers at redis cannot be reached",
    ):
        run.commit_now()


def test_ackers_that_restart_without_their_data_prevent_the_commit(run: MessageRun, acker_nodes: MemoryStore) -> None:
    run.begin()
    run.work(2)
    acker_nodes.restore(())
    with pytest.raises(MessagesLost, match=r"2 trees of count .*, the ackers hold no trees\. Their store was emptied"):
        run.commit_now()
    assert run.count == 0


def test_ackers_that_were_restored_to_a_state_with_fewer_trees_prevent_the_commit(
    run: MessageRun, acker_nodes: MemoryStore
) -> None:
    run.begin()
    processing = run.start()
    run.ack(CurrentBatch(processing).emit())
    before = acker_nodes.snapshot()
    CurrentBatch(processing).emit()
    acker_nodes.restore(before)
    run.finish(processing)
    with pytest.raises(MessagesLost, match=r"2 trees of count .* hold 1 tree of count"):
        run.commit_now()


def test_a_retried_begin_opens_the_attempt_in_the_ackers_if_the_failed_begin_did_not(run: MessageRun) -> None:
    run.spec.broken.append(AWAY)
    with pytest.raises(AckersUnavailable):
        run.begin()
    run.spec.broken.clear()
    assert run.begin(retry=True).attempt.attempt == 1
    run.ack(*run.work())
    assert run.commit_now() is None


def test_a_task_that_has_emitted_messages_cannot_be_retried_in_the_same_attempt(run: MessageRun) -> None:
    run.begin()
    CurrentBatch(run.start()).emit()
    with pytest.raises(AirflowFailException, match=r"Task count has emitted messages of transaction 1\.1 .* `begin`"):
        CurrentBatch(run.start()).emit()
    assert run.begin().attempt.attempt == 2
    run.ack(*run.work())
    assert run.commit_now() is None


def test_messages_of_an_earlier_try_are_noticed_although_the_last_try_emitted_no_messages(run: MessageRun) -> None:
    run.begin()
    run.ack(CurrentBatch(run.start()).emit())
    run.finish(run.start())
    with pytest.raises(MessagesLost, match="acked no trees, the ackers hold 1 tree of count"):
        run.commit_now()


def test_the_commit_of_a_processed_transaction_does_not_query_the_ackers_again(
    run: MessageRun, acker_nodes: MemoryStore
) -> None:
    run.begin()
    run.ack(*run.work())
    assert run.commit().complete() is Completion.READY
    acker_nodes.restore(())
    assert run.commit_now() is None


def test_failed_messages_do_not_fail_a_processed_transaction(run: MessageRun) -> None:
    run.begin()
    ledger = run.spec.ledger(run.spec.memory)
    run.ack(*run.work())
    assert run.commit().complete() is Completion.READY
    ledger.run(steps.fail_messages, run.begun.attempt, "too late")
    assert run.record is not None
    assert run.record.phase is Phase.PROCESSED
    assert run.commit_now() is None
    ledger.run(steps.fail_messages, run.begun.attempt, "much too late")


# --- of an application


def test_a_commit_waits_for_the_messages_of_a_spark_application_as_for_messages_of_its_task(run: MessageRun) -> None:
    run.begin()
    processing = run.start()
    origin = origin_of("numbers", run.begun.attempt, run.begun.incarnation)
    emitter = TaskEmitter(origin, processing.task, 2, lambda: run.spec.open_ackers(run.spec.memory))
    references = [*emitter.emit(2, tracked=True), CurrentBatch(processing).emit()]
    processing.messages.add_application(emitter.trees, processing.task)
    run.finish(processing)
    run.ack(*references[1:])
    assert run.commit().complete() is Completion.MESSAGES
    run.ack(references[0])
    assert run.commit_now() is None


def test_a_retry_cannot_resume_an_earlier_spark_application_that_has_emitted_messages(run: MessageRun) -> None:
    run.begin()
    messages, earlier = run.start().messages, TaskTry("count", -1, "earlier")
    messages.add_application(0, earlier)
    with pytest.raises(AirflowFailException, match="in an earlier try, and workers may have taken them"):
        messages.add_application(1, earlier)


# --- without tracking


def test_without_ackers_the_commit_waits_for_no_messages(make: Any) -> None:
    run: MessageRun = make(ackers=0)
    run.begin()
    (reference,) = run.work()
    assert Reference.parse(reference).lineage.trees == ()
    assert run.commit_now() is None


def test_the_commit_does_not_wait_for_an_untracked_message(run: MessageRun) -> None:
    run.begin()
    processing = run.start()
    assert Reference.parse(CurrentBatch(processing).emit(tracked=False)).lineage.trees == ()
    run.finish(processing)
    assert run.commit_now() is None


def test_tracked_messages_that_no_commit_waits_for_are_refused(make: Any) -> None:
    without: MessageRun = make(ackers=None)
    without.begin()
    with pytest.raises(TransactionDefinitionError, match=r"task count emits messages. Write .*ackers=1"):
        CurrentBatch(without.start()).emit()
    CurrentBatch(without.start()).emit(tracked=False)
    beside: MessageRun = make()
    beside.begun = without.begun
    with pytest.raises(TransactionDefinitionError, match="not upstream of the committer"):
        CurrentBatch(beside.start(anchored=False)).emit()


# --- waiting


def _trigger(run: MessageRun, **options: Any) -> MessagesTrigger:
    fields: dict[str, Any] = {"topology": "numbers", "txid": 1, "attempt": 1, "acker_store": None, "timeout": 3600}
    fields["incarnation"] = run.begun.incarnation
    return MessagesTrigger(zookeeper_conn_id="none", root="/airflow_tx", hold=0, **{**fields, **options})


@pytest.fixture
def beside(make: Any, store: CountingStore) -> MessageRun:
    """Its ackers lie beside its ledger."""
    run: MessageRun = make()
    object.__setattr__(run.spec, "make_ackers", lambda: ZnodeAckers(store, "/airflow_tx"))
    run.collector = Collector(ZnodeAckers(store, "/airflow_tx"), interval=600)
    run.begin()
    return run


def test_a_waiting_committer_is_woken_when_the_last_message_is_acked(beside: MessageRun, store: CountingStore) -> None:
    first, second = beside.work(2)
    beside.ack(first)
    assert _trigger(beside).event(store) is None
    beside.ack(second)
    assert _trigger(beside).event(store) == {"reason": "its messages are acked"}
    assert beside.commit_now() is None
    assert _trigger(beside).event(store) == {"reason": "its record changed"}


def test_a_failed_message_or_a_late_message_or_a_changed_record_wakes_a_waiting_committer(
    beside: MessageRun, store: CountingStore
) -> None:
    failed, _ = beside.work(2)
    late = _trigger(beside, timeout=1e-6).event(store)
    assert late is not None
    assert "it still waits" in late["reason"]
    beside.collector.process(failed).fail("no use")
    assert _trigger(beside).event(store) == {"reason": "a worker failed a message: no use"}
    beside.begin()
    assert _trigger(beside).event(store) == {"reason": "its record changed"}


def test_the_trigger_for_messages_can_be_created_again_from_its_serialized_fields(
    beside: MessageRun, store: CountingStore, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shared_store", "shared_watched_store"):
        monkeypatch.setattr(f"airflow_tx.hooks.zookeeper.{name}", lambda conn_id: store)
    beside.ack(*beside.work())
    path, fields = _trigger(beside).serialize()
    assert path == "airflow_tx.triggers.MessagesTrigger"

    async def first() -> Any:
        return await anext(MessagesTrigger(**fields).run())

    assert asyncio.run(first()).payload == {"reason": "its messages are acked"}
