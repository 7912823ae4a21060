"""A skip from the wish to the end, and back: what the ledger keeps, and who is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import (
    AlreadyFinal,
    ChangeRefused,
    NotSkipped,
    Outranked,
    SkipRefused,
    StateMissing,
    UnknownTransaction,
)
from airflow_tx.ledger.answers import AlreadySkipped, Committed, Done, Granted, NotYet
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Deed, DeedOfAttempt, Outcome
from airflow_tx.ledger.records import BatchRows, Phase, Skipped, encode
from airflow_tx.ledger.steps import end
from airflow_tx.ledger.steps.commit import AcquireRequest, acquire
from airflow_tx.ledger.steps.replay import note_changed, to_decide_anew
from airflow_tx.ledger.steps.step import Audit, Stamp
from tests.model.driver import Run, Topology

ADA = Audit("ada", "it breaks the job")
NOTED = Deed("ada", "2013-01-01T00:00:00.000+00:00", "it breaks the job")


@pytest.fixture
def run(topology: Topology) -> Run:
    made = Run(topology, "r1")
    made.processed(2, {"a": 1})
    return made


def record(topology: Topology, txid: int = 1) -> Any:
    return topology.record(txid)


def noted(topology: Topology, txid: int = 1) -> Any:
    return topology.ledger().run(end.note_skip, txid, ADA)


def withdrawn(topology: Topology, txid: int = 1) -> Any:
    return topology.ledger().run(end.withdraw_skip, txid)


def granted(topology: Topology, **states: bool) -> Any:
    return topology.ledger().run(end.grant_skip, 1, states)


def token(topology: Topology, **states: bool) -> Token:
    answer = granted(topology, **states)
    assert isinstance(answer, Granted)
    return answer.grant.token


def fenced(run: Run, *states: str) -> None:
    """Let a grant be about to write to these states."""
    request = AcquireRequest(run.attempt, record(run.topology).epoch, record(run.topology).rows_digest, {}, states)
    run.committer().processed()
    run.topology.ledger().run(acquire, request)


# --- the wish ----------------------------------------------------------------------------------------------------


def test_a_requested_skip_is_recorded_in_the_transaction_and_listed_in_the_topology(
    topology: Topology, run: Run
) -> None:
    Run(topology, "r2").begin(1)
    for txid in (2, 1, 2):
        assert noted(topology, txid) == Done()
    assert [record(topology, txid).skip for txid in (1, 2)] == [NOTED, NOTED]
    assert topology.topology.skips == [1, 2]


def test_withdrawing_a_skip_restores_the_transaction(topology: Topology, run: Run) -> None:
    before = record(topology)
    noted(topology)
    assert withdrawn(topology) == Done()
    after = record(topology)
    assert topology.topology.skips == []
    assert (after.skip, after.phase, after.epoch, after.error) == (None, before.phase, before.epoch, before.error)
    assert withdrawn(topology) == Done()
    assert record(topology) == after


def test_withdrawing_a_skip_keeps_the_record_of_a_failure(topology: Topology, run: Run) -> None:
    run.start().fail("of memory")
    noted(topology)
    withdrawn(topology)
    assert (record(topology).phase, record(topology).error) == (Phase.FAILED, "of memory")


def test_withdrawing_a_skip_that_has_a_grant_outranks_the_grant_and_requires_a_replay(
    topology: Topology, run: Run
) -> None:
    noted(topology)
    grant = token(topology)
    withdrawn(topology)
    after = record(topology)
    assert (after.phase, after.epoch) == (Phase.FAILED, grant.epoch + 1)
    assert after.error == "it was to be skipped, and that was withdrawn"
    with pytest.raises(Outranked):
        topology.ledger().run(end.commit_skip, grant, states=())


def test_a_skip_of_a_final_transaction_cannot_be_requested_and_cannot_be_withdrawn(
    topology: Topology, run: Run
) -> None:
    topology.skip(1)
    assert noted(topology) == AlreadySkipped(1)
    assert granted(topology) == AlreadySkipped(1)
    with pytest.raises(AlreadyFinal, match="airflow tx readmit trace 1 --why TEXT"):
        withdrawn(topology)
    Run(topology, "r2").whole(1)
    for step in (noted, withdrawn):
        with pytest.raises(AlreadyFinal, match="committed"):
            step(topology, 2)
        for txid in (0, 9):
            with pytest.raises(UnknownTransaction, match=f"transaction {txid} of topology 'trace'"):
                step(topology, txid)


# --- the grant ---------------------------------------------------------------------------------------------------


def test_a_skip_that_was_not_requested_is_refused_with_the_command_that_requests_it(
    topology: Topology, run: Run
) -> None:
    with pytest.raises(SkipRefused, match="airflow tx skip trace 1 --why TEXT"):
        granted(topology)


def test_a_skip_waits_until_its_transaction_has_the_turn(topology: Topology, run: Run) -> None:
    Run(topology, "r2").begin(1)
    noted(topology, 2)
    assert topology.ledger().run(end.grant_skip, 2, {}) == NotYet(1)


def test_a_grant_for_a_skip_outranks_all_earlier_grants_and_does_not_allow_a_write(
    topology: Topology, run: Run
) -> None:
    noted(topology)
    before = record(topology)
    grant = token(topology)
    after = record(topology)
    assert (after.phase, after.granted) == (Phase.COMMITTING, False)
    assert after.nonce == grant.nonce == after.op
    assert after.epoch == grant.epoch == before.epoch + 1
    assert token(topology).epoch == before.epoch + 2
    with pytest.raises(Outranked):
        topology.ledger().run(end.commit_skip, grant, states=())


def test_a_transaction_is_not_skipped_if_a_state_that_cannot_undo_it_may_contain_it(
    topology: Topology, run: Run
) -> None:
    fenced(run, "s", "t")
    noted(topology)
    with pytest.raises(SkipRefused, match="in state s already, which cannot undo it. Replay it"):
        granted(topology, s=False, t=True)
    with pytest.raises(StateMissing, match="t"):
        granted(topology, s=True)
    assert isinstance(granted(topology, s=True, t=True), Granted)


def test_a_skip_that_is_refused_before_it_was_requested_reports_that_nothing_was_changed(
    topology: Topology, run: Run
) -> None:
    fenced(run, "s")
    with pytest.raises(SkipRefused, match="Nothing was changed. Replay it"):
        end.check_undoable(topology.paths, record(topology), {"s": False}, noted=False)
    end.check_undoable(topology.paths, record(topology), {"s": True}, noted=False)


# --- the end, and after it ---------------------------------------------------------------------------------------


def test_a_skipped_transaction_keeps_its_rows_and_a_repeated_skip_gets_the_same_answer(
    topology: Topology, run: Run
) -> None:
    noted(topology)
    grant = token(topology)
    ledger = topology.ledger()
    assert ledger.run(end.commit_skip, grant, states=("s",)) == Committed(1, by_this_call=True)
    assert ledger.run(end.commit_skip, grant, states=("s",)) == Committed(1, by_this_call=False)
    kept = Reader(topology.store()).peek(Skipped, topology.paths.skipped(1))
    assert (kept.key, kept.run_id, kept.rows, kept.skip, kept.readmit) == ("r1", "r1", [0, 2], NOTED, None)
    history = topology.history(1)
    assert history is not None
    assert (history.final.outcome, history.skip, history.rows) == (Outcome.SKIPPED, NOTED, None)
    assert (topology.current, topology.topology.skips, topology.topology.states) == (2, [], {"s": 1})


def test_the_receipt_of_a_skip_that_is_requested_twice_has_the_second_person_and_reason(
    topology: Topology, run: Run
) -> None:
    later = Audit("bob", "it is in the way")
    noted(topology)
    topology.ledger().run(end.note_skip, 1, later)
    assert record(topology).skip.who == "bob"
    grant = token(topology)
    assert topology.ledger().run(end.note_skip, 1, ADA) == Done()
    topology.ledger().run(end.commit_skip, grant, states=())
    history = topology.history(1)
    assert history is not None
    assert history.receipt is not None
    assert history.skip == history.receipt.skip == replace(NOTED, who="bob", why="it is in the way")


def test_a_skip_with_a_grant_that_is_not_in_the_ledger_is_refused(topology: Topology, run: Run) -> None:
    with pytest.raises(Outranked):
        topology.ledger().run(end.commit_skip, Token(1, 1, 1, 1, "n"), states=())


def test_only_a_skipped_transaction_that_is_not_readmitted_can_be_readmitted(topology: Topology, run: Run) -> None:
    with pytest.raises(NotSkipped, match="not skipped"):
        topology.ledger().run(end.note_readmission, 1, ADA)
    topology.skip(1)
    assert topology.ledger().run(end.note_readmission, 1, ADA) == Done()
    assert Reader(topology.store()).peek(Skipped, topology.paths.skipped(1)).readmit == NOTED
    Run(topology, "r1").begin(2)
    with pytest.raises(NotSkipped, match="re-admitted as 2"):
        topology.ledger().run(end.note_readmission, 1, ADA)


# --- rows that are to be decided again ---------------------------------------------------------------------------


def changed(topology: Topology, **states: bool) -> Any:
    return topology.ledger().run(note_changed, 1, states, audit=ADA)


def test_a_request_to_decide_rows_again_fails_the_attempt_and_outranks_its_grant(topology: Topology, run: Run) -> None:
    before = replace(record(topology), counted=BatchRows(2))
    topology.store().multi([], [Put(topology.paths.transaction(1), encode(before))])
    assert changed(topology) == Done()
    after = record(topology)
    assert after.counted is None
    assert (after.phase, after.epoch) == (Phase.FAILED, before.epoch + 1)
    assert after.changed == [DeedOfAttempt(NOTED.who, NOTED.when, NOTED.why, 1)]
    assert after.error == "its rows are to be decided again"
    assert changed(topology) == Done()
    assert record(topology) == after


def test_a_request_to_decide_rows_again_keeps_the_earlier_error(topology: Topology, run: Run) -> None:
    before = replace(record(topology), error="row 3 has no date")
    topology.store().multi([], [Put(topology.paths.transaction(1), encode(before))])
    changed(topology)
    assert record(topology).error == "row 3 has no date"


def test_each_attempt_with_a_request_to_decide_rows_again_stays_recorded(topology: Topology, run: Run) -> None:
    changed(topology)
    Run(topology, "r1").begin(2)
    changed(topology)
    assert [each.attempt for each in record(topology).changed] == [1, 2]


def test_rows_cannot_be_decided_again_if_a_state_that_cannot_undo_them_may_contain_them(
    topology: Topology, run: Run
) -> None:
    fenced(run, "s", "t", "u")
    with pytest.raises(ChangeRefused, match="in state t, u already"):
        changed(topology, s=True, t=False)
    assert changed(topology, s=True, t=True, u=True) == Done()


def test_rows_of_a_skipped_transaction_cannot_be_decided_again(topology: Topology, run: Run) -> None:
    topology.skip(1)
    assert changed(topology) == AlreadySkipped(1)


def test_rows_are_decided_again_only_if_there_are_rows_and_no_skip_is_requested(topology: Topology, run: Run) -> None:
    assert not to_decide_anew(record(topology), [0, 2])
    changed(topology)
    assert to_decide_anew(record(topology), [0, 2])
    assert not to_decide_anew(record(topology), None)
    noted(topology)
    assert not to_decide_anew(record(topology), [0, 2])


def test_a_reason_is_stored_in_one_line_without_control_characters() -> None:
    stamp = Stamp("2013-01-01", "op", 1, 10)
    assert Audit("ann", " the \x1b[31mfile\x1b[0m\n is\x07 broken ").noted(stamp).why == "the file is broken"
