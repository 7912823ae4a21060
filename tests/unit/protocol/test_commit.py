"""Who gets the turn, and what a grant and a commit leave in the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import FailedTransaction, Outranked, RowsChanged
from airflow_tx.ledger.answers import (
    AlreadyCommitted,
    Committed,
    Done,
    FailureNoted,
    Granted,
    NotYet,
    Processed,
    Restarted,
    ToBeSkipped,
)
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps import commit
from airflow_tx.ledger.steps.commit import AcquireRequest
from tests.model.driver import Committer, Run, Topology


@pytest.fixture
def run(topology: Topology) -> Run:
    made = Run(topology, "r1")
    made.processed(2, {"a": 1})
    return made


@pytest.fixture
def committer(run: Run) -> Committer:
    made = run.committer()
    made.processed()
    return made


def record(run: Run) -> Any:
    return run.topology.record(1)


def granted(run: Run) -> Token:
    grant = run.written().grant
    assert grant is not None
    return grant.token


def failed(run: Run, epoch: int | None, reason: str = "of memory") -> Any:
    return run.topology.ledger().run(commit.note_commit_failed, run.attempt, epoch, reason=reason)


def test_no_grant_is_given_for_output_that_was_replaced_after_it_was_read(run: Run, committer: Committer) -> None:
    """Also if all has acked again meanwhile."""
    run.process({"a": 5})
    assert committer.ask() == Restarted()
    run.committer().processed()
    assert record(run).phase is Phase.PROCESSED
    assert committer.ask() == Restarted()
    committer.processed()
    assert isinstance(committer.ask(), Granted)


def test_each_grant_raises_the_epoch_by_one_and_outranks_the_previous_grant(run: Run, committer: Committer) -> None:
    before = record(run).epoch
    first = committer.ask().grant
    again = run.committer()
    again.processed()
    second = again.ask().grant
    assert [first.token.epoch, second.token.epoch] == [before + 1, before + 2]
    with pytest.raises(Outranked):
        run.topology.ledger().run(commit.commit, first.token, states=())


def test_a_committed_transaction_gets_no_grant(run: Run, committer: Committer) -> None:
    run.commit()
    assert committer.ask() == AlreadyCommitted(1)


def test_a_failed_transaction_gets_a_grant_only_to_be_skipped(run: Run, committer: Committer) -> None:
    run.start().fail("of memory")
    with pytest.raises(FailedTransaction, match="of memory"):
        committer.ask()
    run.topology.note_skip(1)
    assert committer.ask() == ToBeSkipped(1)


def test_a_request_for_the_turn_that_comes_too_early_returns_the_txid_that_has_the_turn(
    topology: Topology, run: Run
) -> None:
    second = Run(topology, "r2")
    second.processed(1, {})
    waiting = second.committer()
    waiting.processed()
    assert waiting.ask() == NotYet(1)
    topology.note_skip(2)
    assert waiting.ask() == NotYet(1)


def test_a_grant_is_recorded_with_all_facts_that_a_repair_needs(run: Run, committer: Committer) -> None:
    granted = committer.ask().grant
    found = record(run)
    assert (found.phase, found.granted, found.nonce, found.error) == (Phase.COMMITTING, True, granted.token.nonce, None)
    assert (found.granted_at, found.by_phase) == ("2013-01-01T00:00:00.000+00:00", False)


def test_a_grant_for_rows_with_another_digest_is_refused(run: Run, committer: Committer) -> None:
    request = AcquireRequest(run.attempt, record(run).epoch, "another")
    with pytest.raises(RowsChanged, match="another"):
        run.topology.ledger().run(commit.acquire, request)


def test_a_grant_to_a_commit_phase_with_several_tasks_is_recorded_as_such(run: Run, committer: Committer) -> None:
    request = AcquireRequest(run.attempt, record(run).epoch, record(run).rows_digest, by_phase=True)
    run.topology.ledger().run(commit.acquire, request)
    assert record(run).by_phase


# --- a commit that fails -----------------------------------------------------------------------------------------


def test_a_failed_commit_is_recorded_and_its_transaction_keeps_the_turn(run: Run, committer: Committer) -> None:
    epoch = committer.ask().grant.token.epoch
    assert failed(run, epoch, "no disk") == FailureNoted(first=True)
    found = record(run)
    assert (found.phase, found.failures, found.error) == (Phase.COMMITTING, 1, "no disk")


def test_only_the_first_failure_of_a_grant_is_counted(run: Run, committer: Committer) -> None:
    epoch = committer.ask().grant.token.epoch
    for reason in ("the first", "the second"):
        failed(run, epoch, reason)
    assert (record(run).failures, record(run).error) == (1, "the first")


@pytest.mark.parametrize("epoch", [1, None], ids=["an earlier one", "none"])
def test_the_failure_of_an_older_or_unknown_grant_is_not_recorded(
    run: Run, committer: Committer, epoch: int | None
) -> None:
    committer.ask()
    assert failed(run, epoch) == FailureNoted(first=False)
    assert (record(run).failures, record(run).error) == (0, None)


@pytest.mark.parametrize(("epoch", "failures"), [(1, 1), (None, 1), (9, 0)])
def test_a_failure_before_the_turn_is_recorded_only_for_the_current_output_or_for_none(
    run: Run, committer: Committer, epoch: int | None, failures: int
) -> None:
    failed(run, epoch)
    assert record(run).failures == failures


def test_every_failure_before_the_turn_is_counted(run: Run, committer: Committer) -> None:
    for reason in ("the first", "the second"):
        failed(run, 1, reason)
    assert (record(run).failures, record(run).error) == (2, "the second")


def test_a_failure_is_not_recorded_while_a_task_runs_or_after_the_commit(run: Run) -> None:
    assert failed(run, None) == FailureNoted(first=False)
    assert record(run).failures == 0
    run.commit()
    assert failed(run, None) == FailureNoted(first=False)


# --- the mark ----------------------------------------------------------------------------------------------------


def test_the_result_of_a_commit_says_whether_this_call_has_made_the_transaction_final(
    topology: Topology, run: Run
) -> None:
    token = granted(run)
    ledger = topology.ledger()
    assert ledger.run(commit.commit, token, states=()) == Committed(1, by_this_call=True)
    assert ledger.run(commit.commit, token, states=()) == Committed(1, by_this_call=False)


def test_the_commit_of_another_transaction_with_the_same_txid_is_refused(topology: Topology, run: Run) -> None:
    token = granted(run)
    topology.ledger().run(commit.commit, token, states=())
    with pytest.raises(Outranked, match="no open transaction"):
        topology.ledger().run(commit.commit, replace(token, birth="another"), states=())


def test_a_commit_writes_the_history_and_deletes_the_open_records(topology: Topology, run: Run) -> None:
    token = granted(run)
    topology.clock.advance(60)
    topology.ledger().run(commit.commit, token, states=("s",))
    found = topology.history(1)
    assert found is not None
    assert (found.txid, found.attempt, found.run_id) == (1, 1, "r1")
    assert (found.began, found.final.when) == ("2013-01-01T00:00:00.000+00:00", "2013-01-01T00:01:00.000+00:00")
    assert (found.processed, found.granted_at, found.birth) == (found.began, found.began, token.birth)
    assert (topology.topology.states, topology.topology.births) == ({"s": 1}, {"s": token.birth})
    assert topology.store().get(topology.paths.transaction(1)) is None
    assert topology.store().children(topology.paths.all_acks).names == ()


def test_the_outputs_of_a_second_call_are_recorded_in_addition_to_the_earlier_outputs(
    topology: Topology, run: Run
) -> None:
    token = granted(run)
    for outputs in ({"s": "1"}, {"t": "2"}):
        assert topology.ledger().run(commit.take_output, token, outputs) == Done()
    assert record(run).outputs == {"s": "1", "t": "2"}


def test_the_check_that_all_tasks_have_acked_can_be_repeated_during_the_turn(run: Run) -> None:
    token, committer = granted(run), run.committer()
    done = committer.processed()
    assert isinstance(done, Processed)
    assert done.epoch == token.epoch
