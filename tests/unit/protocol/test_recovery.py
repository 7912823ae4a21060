"""Automatic replays: noted once, counted, and stopped; the mark of one that is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.answers import Blocked, Done, ReplayNoted
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.audit import rebuild
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import BlockMark, encode
from airflow_tx.ledger.steps import commit, recovery
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.state import MemoryState, Sum
from tests.model.driver import Run, Topology

NOW = "2013-01-01T00:00:00.000+00:00"


@pytest.fixture
def opened(topology: Topology) -> Topology:
    """Transactions 1 and 2 are open."""
    for run_id in ("r1", "r2"):
        Run(topology, run_id).begin(1)
    return topology


def blocked(topology: Topology, txid: int, attempt: int = 1) -> BlockMark | None:
    """Let an attempt be replayed once too often; gives the mark that is there afterwards."""
    answer = topology.note_replay(txid, attempt, limit=0)
    assert answer == Blocked(txid, "its run failed")
    return topology.topology.blocked


def mark(topology: Topology, txid: int, attempt: int) -> None:
    noted = replace(topology.topology, blocked=BlockMark(txid, attempt, "its run failed", NOW))
    topology.store().multi([], [Put(topology.paths.record, encode(noted))])


def unblocked(topology: Topology) -> BlockMark | None:
    assert topology.ledger().run(recovery.unblock) == Done()
    return topology.topology.blocked


def test_a_blocked_transaction_is_recorded_with_the_attempt_and_the_reason_and_the_time(opened: Topology) -> None:
    found = blocked(opened, 1)
    assert found == BlockMark(1, 1, "its run failed", NOW)


def test_the_record_that_an_attempt_is_blocked_is_not_changed_for_the_same_attempt(opened: Topology) -> None:
    first = blocked(opened, 1)
    opened.clock.advance(60)
    assert blocked(opened, 1) == first


def test_the_record_that_an_attempt_is_blocked_is_replaced_for_another_attempt(opened: Topology) -> None:
    mark(opened, txid=1, attempt=7)
    found = blocked(opened, 1)
    assert found is not None
    assert (found.txid, found.attempt) == (1, 1)


@pytest.mark.parametrize(("there", "expected"), [(1, 1), (3, 2)], ids=["an earlier one", "a later one"])
def test_the_earlier_of_two_failed_transactions_is_recorded_as_blocked(
    opened: Topology, there: int, expected: int
) -> None:
    mark(opened, txid=there, attempt=1)
    found = blocked(opened, 2)
    assert found is not None
    assert found.txid == expected


def test_a_transaction_stays_blocked_until_a_person_has_replayed_it(opened: Topology) -> None:
    before = blocked(opened, 1)
    assert unblocked(opened) == before
    Run(opened, "r1").begin(1)
    assert unblocked(opened) is None
    assert unblocked(opened) is None


def test_a_transaction_is_no_longer_blocked_when_a_person_requests_its_skip(opened: Topology) -> None:
    blocked(opened, 1)
    opened.note_skip(1)
    assert unblocked(opened) is None


def test_a_transaction_is_no_longer_blocked_when_it_is_final(opened: Topology) -> None:
    mark(opened, txid=7, attempt=1)
    assert unblocked(opened) is None


def test_a_replay_is_noted_only_by_the_first_process_that_requests_it(opened: Topology) -> None:
    assert opened.note_replay(1, 1) == ReplayNoted(True, 1)
    assert opened.note_replay(1, 1) == ReplayNoted(False, 1)
    assert opened.note_replay(2, 1, counts=False) == ReplayNoted(True, 0)


def test_replays_are_counted_from_attempt_to_attempt_up_to_the_limit(opened: Topology) -> None:
    for attempt in (1, 2):
        assert opened.note_replay(1, attempt, limit=2) == ReplayNoted(True, attempt)
        Run(opened, "r1").begin(1)
    assert opened.note_replay(1, 3, limit=2) == Blocked(1, "its run failed")


@pytest.fixture
def refused(opened: Topology) -> Topology:
    """Of transaction 1 the commit was refused, as it would be in every replay."""
    opened.states = [MemoryState("s0", keys=["key"], values={"n": Sum()})]
    run = Run(opened, "r1")
    run.begin(1)
    run.process({})
    refuse(run)
    return opened


def refuse(run: Run, **more: Any) -> None:
    committer = run.committer()
    committer.processed()
    epoch = committer.ask().grant.token.epoch
    told = run.topology.ledger().run(
        commit.note_commit_failed,
        run.attempt,
        epoch,
        reason="State 's' refused: it is another one.",
        for_good=True,
        **more,
    )
    assert told.first


def test_a_permanently_refused_transaction_is_blocked_immediately_with_the_text_of_the_refusal(
    refused: Topology,
) -> None:
    answer = refused.note_replay(1, 2)
    assert answer == Blocked(1, "State 's' refused: it is another one.")
    mark = refused.topology.blocked
    assert mark is not None
    assert (mark.txid, mark.attempt, mark.reason) == (1, 2, "State 's' refused: it is another one.")
    assert refused.note_replay(1, 2, counts=False) == answer


def test_a_permanently_refused_transaction_continues_after_a_replay_by_a_person(refused: Topology) -> None:
    refused.note_replay(1, 2)
    run = Run(refused, "r1")
    run.begin(1)
    assert unblocked(refused) is None
    assert refused.note_replay(1, 3) == ReplayNoted(True, 1)
    run.begin(1)
    run.process({})
    refuse(run)
    run.commit()  # the same attempt: only its commit task was cleared
    assert refused.current == 2


def test_a_permanently_refused_transaction_is_replayed_after_a_repair(refused: Topology) -> None:
    refused.note_replay(1, 2)
    refused.ledger().run(rebuild.state_lost, "s0", Audit("me", "it was restored"))
    assert refused.topology.blocked is None
    assert refused.note_replay(1, 2) == ReplayNoted(True, 1)


def test_a_permanently_refused_transaction_with_a_requested_skip_gets_a_run_again(refused: Topology) -> None:
    refused.note_skip(1)
    assert refused.note_replay(1, 2, counts=False) == ReplayNoted(True, 0)


def test_only_the_record_of_a_restatement_notes_that_a_repair_can_resolve_its_refusal(opened: Topology) -> None:
    opened.states = [MemoryState("s0", keys=["key"], values={"n": Sum()})]
    run = Run(opened, "r1")
    run.begin(1)
    run.process({})
    refuse(run, repairable=True)
    record = opened.record(1)
    assert record is not None
    assert not record.repairable
    assert b"repairable" not in encode(record)


def test_a_task_that_starts_again_clears_a_permanent_refusal(refused: Topology) -> None:
    run = Run(refused, "r1")
    run.begin(1)
    run.process({})
    refuse(run)
    run.start()
    record = refused.record(1)
    assert record is not None
    assert (record.error, record.for_good) == (None, 0)


def test_a_replay_by_a_person_restarts_the_count_of_replays(opened: Topology) -> None:
    opened.note_replay(1, 1)
    for _ in range(2):
        Run(opened, "r1").begin(1)
    assert opened.note_replay(1, 3) == ReplayNoted(True, 1)


def test_a_noted_replay_that_had_no_effect_is_noted_again_and_counts(opened: Topology) -> None:
    opened.note_replay(1, 1)
    before = opened.clock.advance(60)
    assert opened.note_replay(1, 1, overdue=before) == ReplayNoted(False, 1)
    later = opened.clock.advance(60)
    assert opened.note_replay(1, 1, overdue=later) == ReplayNoted(True, 2)
