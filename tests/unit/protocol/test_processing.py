"""What a task of the processing phase notes in the ledger, and when it is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_tx.base.errors import (
    FailedTransaction,
    IncompleteBatch,
    RowsChanged,
    SkippedTransaction,
    StaleAttempt,
    StaleTry,
    UnknownTransaction,
)
from airflow_tx.base.remedy import Command
from airflow_tx.ledger.answers import AlreadyCommitted, Done, FailureNoted, Processed
from airflow_tx.ledger.api import Put, ack_name
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import MOST_OF_REASON, Ack, BatchRows, Phase, decode, encode
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.views.view import topology_view
from tests.model.driver import Run, Topology
from tests.remedies import remedy_of

NAMED = TaskTry("p", -1, "t1")
MAPPED = TaskTry("m", 4, "t2")


@pytest.fixture
def run(topology: Topology) -> Run:
    made = Run(topology, "r1")
    made.begin(2)
    return made


def start(run: Run, task: TaskTry, attempt: TransactionAttempt | None = None) -> Any:
    return run.topology.ledger().start(attempt or run.attempt, task)


def ack(run: Run, task: TaskTry, **given: Any) -> Any:
    return run.topology.ledger().run(processing.ack, run.attempt, task, **given)


def fail(run: Run, task: TaskTry, reason: str = "of memory") -> Any:
    return run.topology.ledger().run(processing.fail, run.attempt, task, reason=reason)


def processed(run: Run, rows_digest: str | None = None, expected: Any = None, **more: Any) -> Any:
    assert run.begun is not None
    ledger, wanted = run.topology.ledger(), rows_digest or run.begun.rows_digest
    return ledger.run(processing.processed, run.attempt, rows_digest=wanted, expected=expected, **more)


def folder(run: Run) -> str:
    record = run.topology.record(1)
    assert record is not None
    return run.topology.paths.acks(record.acks)


def entry(run: Run, task: TaskTry) -> Ack:
    path = f"{folder(run)}/{ack_name(task.task_id, task.map_index)}"
    return decode(Ack, path, run.topology.store().get(path).data)


# --- whose transaction it is -------------------------------------------------------------------------------------


def test_a_task_of_another_transaction_with_the_same_txid_is_refused(run: Run) -> None:
    with pytest.raises(StaleAttempt, match="another transaction with the same txid"):
        start(run, NAMED, replace(run.attempt, birth="another"))


def test_a_task_of_another_transaction_with_the_same_txid_is_refused_after_the_commit(run: Run) -> None:
    run.process({})
    run.commit()
    with pytest.raises(StaleAttempt, match="another transaction with the same txid"):
        start(run, NAMED, replace(run.attempt, birth="another"))


def test_a_task_without_a_birth_is_accepted(run: Run) -> None:
    assert start(run, NAMED, replace(run.attempt, birth="")) == Done()


def test_a_task_of_an_older_attempt_is_refused_with_the_number_of_the_newest_attempt(run: Run) -> None:
    old = run.attempt
    run.begin(2)
    with pytest.raises(StaleAttempt, match="attempt 1 refused: attempt 2 is the newest"):
        start(run, NAMED, old)


def test_a_task_of_a_committed_transaction_is_answered_that_it_is_committed(run: Run) -> None:
    run.process({})
    run.commit()
    assert start(run, NAMED) == AlreadyCommitted(1)
    assert processed(run) == AlreadyCommitted(1)
    assert fail(run, NAMED) == FailureNoted(first=False)
    with pytest.raises(UnknownTransaction, match="open transaction 1"):
        ack(run, NAMED)


def test_a_task_of_a_skipped_transaction_is_refused(run: Run) -> None:
    run.topology.skip(1)
    with pytest.raises(SkippedTransaction):
        start(run, NAMED)


def test_a_task_of_a_transaction_that_never_began_is_refused(run: Run) -> None:
    with pytest.raises(UnknownTransaction, match="open transaction 7"):
        start(run, NAMED, TransactionAttempt(7, 1))


# --- start, ack, fail --------------------------------------------------------------------------------------------


def test_every_start_and_every_ack_changes_the_version_of_the_folder_of_acks(run: Run) -> None:
    store, versions = run.topology.store(), list[int]()
    for step in (start, start, ack):
        versions.append(store.children(folder(run)).version)
        step(run, NAMED)
    assert [*versions, store.children(folder(run)).version] == [0, 1, 2, 3]


def test_a_task_that_begin_has_named_acks_the_message_that_begin_has_emitted(run: Run) -> None:
    start(run, NAMED)
    assert (entry(run, NAMED).emitted, entry(run, NAMED).acked) == ("0", "0")
    ack(run, NAMED)
    record = run.topology.record(1)
    assert record is not None
    assert (entry(run, NAMED).emitted, entry(run, NAMED).acked) == ("0", record.tasks["p"])


@pytest.mark.parametrize("task", [MAPPED, TaskTry("p", 0, "t3"), TaskTry("m", -1, "t4")], ids=str)
def test_any_other_mapped_instance_emits_a_message_at_its_start_and_acks_it_later(run: Run, task: TaskTry) -> None:
    start(run, task)
    emitted = entry(run, task).emitted
    assert len(emitted) == 16
    assert int(emitted, 16) != 0
    ack(run, task)
    assert (entry(run, task).emitted, entry(run, task).acked) == (emitted, emitted)


def test_an_ack_records_rows_and_outputs_and_a_new_start_deletes_them(run: Run) -> None:
    start(run, NAMED)
    ack(run, NAMED, rows=3, outputs=["a"])
    found = entry(run, NAMED)
    assert (found.task_try, found.done, found.rows, found.outputs) == ("t1", True, 3, ["a"])
    start(run, replace(NAMED, task_try="t2"))
    found = entry(run, NAMED)
    assert (found.task_try, found.done, found.rows, found.outputs) == ("t2", False, None, [])


def test_a_retry_with_the_same_task_id_keeps_the_earlier_ack_until_it_acks_itself(run: Run) -> None:
    resumed, retried = replace(NAMED, task_try="t1.1"), replace(NAMED, task_try="t1.2")
    start(run, resumed)
    ack(run, resumed, outputs=["a"])
    start(run, retried)
    found = entry(run, NAMED)
    assert (found.task_try, found.done, found.outputs) == ("t1.1", True, ["a"])
    ack(run, retried, outputs=["b"])
    found = entry(run, NAMED)
    assert (found.done, found.outputs) == (True, ["b"])


def test_the_first_start_of_a_task_does_not_read_an_ack(run: Run) -> None:
    start(run, NAMED)
    assert f"{folder(run)}/{ack_name('p', -1)}" not in run.topology.store().calls


def test_a_new_start_makes_a_processed_batch_unprocessed(run: Run) -> None:
    run.process({})
    processed(run)
    before = run.topology.record(1)
    assert before is not None
    assert (before.phase, before.processed is None) == (Phase.PROCESSED, False)
    start(run, MAPPED)
    after = run.topology.record(1)
    assert after is not None
    assert (after.phase, after.processed, after.epoch) == (Phase.PROCESSING, None, before.epoch + 1)


def test_a_new_start_clears_the_error_of_the_transaction_and_a_repeated_start_changes_nothing(run: Run) -> None:
    start(run, NAMED)
    fail(run, NAMED)
    start(run, NAMED)
    after = run.topology.record(1)
    assert after is not None
    assert (after.phase, after.error, after.failures, after.epoch) == (Phase.PROCESSING, None, 1, 2)
    start(run, NAMED)
    assert run.topology.record(1) == after


def test_an_ack_or_a_failure_of_a_try_that_never_started_is_refused(run: Run) -> None:
    for step in (ack, fail):
        with pytest.raises(StaleTry, match="no try"):
            step(run, NAMED)


def test_an_ack_or_a_failure_of_a_replaced_try_is_refused(run: Run) -> None:
    start(run, NAMED)
    start(run, replace(NAMED, task_try="t9"))
    for step in (ack, fail):
        with pytest.raises(StaleTry, match="t9"):
            step(run, NAMED)


def test_airflow_is_queried_about_a_try_only_if_another_try_has_started(run: Run) -> None:
    ledger = run.topology.ledger()
    for task in (NAMED, NAMED):
        ledger.start(run.attempt, task, is_current=lambda: pytest.fail("it was asked for"))
    with pytest.raises(StaleTry, match="t1"):
        ledger.start(run.attempt, replace(NAMED, task_try="t9"), is_current=lambda: False)


def test_an_ack_for_a_failed_transaction_is_refused_unless_it_was_recorded_before(run: Run) -> None:
    start(run, NAMED)
    start(run, MAPPED)
    ack(run, NAMED)
    fail(run, MAPPED, "of memory")
    with pytest.raises(FailedTransaction, match="of memory"):
        ack(run, MAPPED)
    assert ack(run, NAMED) == Done()


def test_a_failure_is_counted_once_and_its_recorded_reason_keeps_its_beginning_and_its_end(run: Run) -> None:
    start(run, NAMED)
    noted = [fail(run, NAMED, f"it broke {'x ' * MOST_OF_REASON} Mend it.") for _ in range(2)]
    assert noted == [FailureNoted(first=True), FailureNoted(first=False)]
    record = run.topology.record(1)
    assert record is not None
    assert (record.phase, record.failures) == (Phase.FAILED, 1)
    assert re.fullmatch(r"it broke .* \.\.\. .* Mend it\.", str(record.error))
    assert len(str(record.error)) <= MOST_OF_REASON


def test_the_remedy_of_a_refusal_is_stored_separately_from_its_reason_with_complete_commands(run: Run) -> None:
    start(run, NAMED)
    colour, long = "\x1b[31m", "x " * MOST_OF_REASON
    asked = "{long}{colour}Make room. Then: <airflow tx replay {topology} {txid}>"
    remedy = remedy_of(asked, topology="a b", txid=1, colour=colour, long=long)
    run.topology.ledger().fail(run.attempt, NAMED, reason="the disk is full", remedy=remedy)
    record = run.topology.record(1)
    assert record is not None
    assert record.remedy is not None
    assert record.error == "the disk is full"
    assert record.remedy.commands == (Command("replay", "a b", ("1",)),)
    assert str(record.remedy).endswith("Make room. Then: airflow tx replay 'a b' 1")
    assert colour not in str(record.remedy)
    assert len(str(record.remedy)) < MOST_OF_REASON + 50


def test_a_task_that_fails_makes_its_transaction_fail_even_after_every_task_has_acked(run: Run) -> None:
    start(run, NAMED)
    ack(run, NAMED)
    processed(run)
    fail(run, NAMED)
    assert run.topology.phase(1) is Phase.FAILED


# --- processed ---------------------------------------------------------------------------------------------------


def test_a_batch_is_processed_when_every_started_and_every_named_task_has_acked(run: Run) -> None:
    for missing, task in (("p", MAPPED), ("m[4]", NAMED)):
        with pytest.raises(IncompleteBatch, match=rf"{missing[0]}"):
            processed(run)
        start(run, task)
    with pytest.raises(IncompleteBatch, match=r"m\[4\], p"):
        processed(run)
    for task in (NAMED, MAPPED):
        ack(run, task)
    done = processed(run)
    assert isinstance(done, Processed)
    assert (set(done.acks), done.epoch) == ({("p", -1), ("m", 4)}, 1)
    assert processed(run) == done


def test_only_tasks_that_airflow_expects_to_run_must_ack(run: Run) -> None:
    start(run, MAPPED)
    start(run, NAMED)
    ack(run, NAMED)
    assert set(processed(run, expected={("p", -1)}).acks) == {("p", -1)}
    with pytest.raises(IncompleteBatch, match="q"):
        processed(run, expected={("p", -1), ("q", -1)})


def test_a_named_task_that_airflow_does_not_expect_to_run_need_not_ack(run: Run) -> None:
    assert processed(run, expected=()).acks == {}


def test_a_mapped_task_must_ack_for_its_instances_and_not_under_its_own_name(run: Run) -> None:
    record = run.topology.record(1)
    assert record is not None
    assert processing.must_ack(record, [("m", 4)]) == {("m", 4), ("p", -1)}
    assert processing.must_ack(record, [("p", 0)], mapped=["p"]) == {("p", 0)}


def test_a_batch_whose_rows_have_changed_is_not_processed(run: Run) -> None:
    run.process({})
    with pytest.raises(RowsChanged):
        processed(run, rows_digest="another")


def test_a_replay_without_counts_keeps_the_counts_of_the_first_attempt(run: Run) -> None:
    record, first = run.topology.record(1), BatchRows(3, {"python": "python:1"})
    assert record is not None
    run.topology.store().multi([], [Put(run.topology.paths.transaction(1), encode(replace(record, counted=first)))])
    start(run, NAMED)
    ack(run, NAMED)
    processed(run, same_rows=True)
    after = run.topology.record(1)
    assert after is not None
    assert (after.phase, after.counted) == (Phase.PROCESSED, first)


def test_a_failed_batch_is_not_processed_and_gives_the_reason(run: Run) -> None:
    start(run, NAMED)
    fail(run, NAMED, "of memory")
    with pytest.raises(FailedTransaction, match="of memory"):
        processed(run)


def test_a_batch_whose_acked_messages_differ_from_the_emitted_messages_is_not_processed(run: Run) -> None:
    start(run, NAMED)
    ack(run, NAMED)
    damaged = encode(replace(entry(run, NAMED), acked="1"))
    run.topology.store().multi([], [Put(f"{folder(run)}/{ack_name('p', -1)}", damaged)])
    with pytest.raises(IncompleteBatch, match="unknown tasks"):
        processed(run)


def test_a_message_that_was_never_acked_is_noticed(run: Run) -> None:
    """Whoever is done has acked what was emitted to it, and nothing else."""
    record = run.topology.record(1)
    assert record is not None
    done = Ack("t", "", emitted="5", acked="5", done=True)
    named = replace(done, emitted="0", acked=record.tasks["p"])
    both = {("p", -1): named, ("m", 0): done}
    assert processing.ack_val(record, both, both) == 0
    assert processing.ack_val(record, {**both, ("m", 0): replace(done, acked="4")}, both) == 1
    assert processing.ack_val(record, {("m", 0): done}, both) == int(record.tasks["p"], 16)
    assert processing.ack_val(record, {("m", 0): done}, [("m", 0)]) == 0


def test_the_name_of_the_failed_task_is_recorded_next_to_its_error_until_the_next_attempt(run: Run) -> None:
    start(run, NAMED)
    run.topology.ledger().fail(run.attempt, NAMED, reason="ValueError: no", failed_task="p")
    record = run.topology.record(1)
    assert record is not None
    assert (record.failed_task, record.error, record.said) == ("p", "ValueError: no", "task p: ValueError: no")
    run.begin(2)
    after = run.topology.record(1)
    assert after is not None
    assert (after.attempt, after.failed_task, after.error) == (2, "", None)
    assert after.replays[-1].why == record.said


def test_a_task_that_starts_again_clears_the_record_of_its_earlier_failure(run: Run) -> None:
    start(run, NAMED)
    run.topology.ledger().fail(run.attempt, NAMED, reason="ValueError: no", failed_task="p")
    start(run, TaskTry("p", -1, "another.1"))
    record = run.topology.record(1)
    assert record is not None
    assert (record.phase, record.said) == (Phase.PROCESSING, "")
    (shown,) = topology_view(run.topology.store(), run.topology.paths).transactions
    assert (shown.failed, shown.cause) == (False, None)
