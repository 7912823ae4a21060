"""Skips that take effect where somebody finds them, and waiting runs that make room, on the in-memory ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.base.errors import LedgerBehind, SkippedTransaction, SkipRefused, StateError
from airflow_tx.ledger.answers import Bidding, Committed, Granted, NotYet
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import end as skip
from airflow_tx.ledger.steps import run_slots
from airflow_tx.state import Count, MemoryState
from airflow_tx.state.persisted import PersistedState
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.handoff import (
    due_skip,
    pass_on,
    take_skip,
    take_skip_or_wait,
    undoable,
)
from airflow_tx.transaction.commit.run_slots import TaskRuns, start_yielded, yield_slot
from airflow_tx.transaction.commit.update import Update, states_of
from tests.stage import update
from tests.unit.bench import FakeTi
from tests.unit.commit.run import (
    WHY,
    Airflow,
    Noted,
    Run,
    counts,
    dies,
    failed,
    killed_before_the_mark,
    open_run,
    record,
)


def test_a_waiting_committer_executes_the_requested_skip_of_the_transaction_before_it(
    make: Any, state: MemoryState
) -> None:
    first, second = open_run(make, "r1", work=False), open_run(make, "r2")
    first.commit().ledger.run(skip.note_skip, 1, WHY)
    assert second.commit_now() is None
    assert counts(state) == {"count": 10}
    assert any("Transaction 1.1 of numbers is skipped" in line for line in second.log.lines)


def test_a_committer_that_passes_on_the_turn_skips_the_next_transactions_with_a_requested_skip(
    make: Any, store: Any, state: MemoryState
) -> None:
    first, second = open_run(make, "r1"), open_run(make, "r2")
    open_run(make, "r3", work=False).commit().ledger.run(skip.note_skip, 3, WHY)
    second.commit().ledger.run(skip.note_skip, 2, WHY)
    assert first.commit_now() is None
    assert (record(store, 2), record(store, 3)) == (None, None)
    assert counts(state) == {"count": 10}
    assert open_run(make, "r4").commit_now() is None
    assert counts(state) == {"count": 20}


def test_no_turn_is_passed_on_while_an_earlier_transaction_has_the_turn(make: Any) -> None:
    run = open_run(make, "r1")
    runs: Any = TaskRuns("numbers", run.committer)
    pass_on(run.commit().ledger, {}, runs, NotYet(1), log=run.log)
    assert run.log.lines == []


def test_a_committer_whose_own_transaction_must_be_skipped_writes_no_value(make: Any, state: MemoryState) -> None:
    run = open_run(make, "r1")
    run.commit().ledger.run(skip.note_skip, 1, WHY)
    with pytest.raises(SkippedTransaction, match="airflow tx readmit numbers 1"):
        run.commit_now()
    with pytest.raises(SkippedTransaction):
        run.commit_now()
    assert counts(state) == {}


def test_a_committer_that_finds_its_own_requested_skip_at_its_turn_skips_and_reports_it(
    make: Any, store: Any, state: MemoryState
) -> None:
    committer = open_run(make, "r1").commit()
    committer.complete()
    committer.prepare()
    committer.ledger.run(skip.note_skip, 1, WHY)
    with pytest.raises(SkippedTransaction, match="Transaction 1 of numbers was skipped"):
        committer.try_to_commit()
    assert (record(store, 1), counts(state)) == (None, {})


def test_a_skip_rolls_back_the_writes_of_its_transaction(
    make: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(make, "r1")
    commit = run.commit()
    killed_before_the_mark(commit)
    assert counts(state) == {"count": 10}
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {state.name: state}, log=run.log), Committed)
    assert counts(state) == {}


def test_a_transactional_state_that_may_contain_the_transaction_refuses_its_skip(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MemoryState("kept", keys=["word"], values={"count": Count()}, kind="transactional")
    run: Run = make("r1", [update(kept)])
    run.begin()
    run.work()
    commit = run.commit()
    killed_before_the_mark(commit)
    again = run.commit()
    again.ledger.run(skip.note_skip, 1, WHY)
    with pytest.raises(SkipRefused, match="kept.*cannot undo"):
        run.commit_now()
    assert counts(kept) == {"count": 10}


def test_a_transactional_state_without_rows_of_the_transaction_allows_its_skip(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MemoryState("kept", keys=["word"], values={"count": Count()}, kind="transactional")
    run: Run = make("r1", [update(kept)])
    run.begin()
    run.work()
    dies(run, monkeypatch, kept, "raise_and_write")
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {kept.name: kept}, log=run.log), Committed)
    assert counts(kept) == {}


def test_the_skip_is_refused_if_a_write_happens_between_its_check_and_its_fence(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MemoryState("kept", keys=["word"], values={"count": Count()}, kind="transactional")
    run: Run = make("r1", [update(kept)])
    run.begin()
    run.work()
    committer, ledger, looks = run.commit(), run.commit().ledger, kept.holds
    committer.complete()
    committer.prepare()

    def look_and_be_overtaken(txid: int) -> bool:
        found = looks(txid)
        monkeypatch.setattr(kept, "holds", looks)
        killed_before_the_mark(committer)
        ledger.run(skip.note_skip, 1, WHY)
        return found

    monkeypatch.setattr(kept, "holds", look_and_be_overtaken)
    with pytest.raises(SkipRefused, match="kept.*cannot undo it. Replay it until it is committed"):
        take_skip(ledger, 1, {kept.name: kept}, log=run.log)
    ledger.run(skip.withdraw_skip, 1)
    run.begin()
    run.work()
    assert run.commit_now() is None
    assert counts(kept) == {"count": 10}


def test_a_refused_skip_is_withdrawn_and_the_cleared_run_is_replayed(
    make: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MemoryState("kept", keys=["word"], values={"count": Count()}, kind="transactional")
    run: Run = make("r1", [update(kept)])
    run.begin()
    run.work()
    ledger = run.commit().ledger
    killed_before_the_mark(run.commit())
    # Once before it is granted, and once after a committer has written since the first look.
    for held in (True, False):
        ledger.run(skip.note_skip, 1, WHY)
        looks = iter([held, True])
        with monkeypatch.context() as patch:
            patch.setattr(kept, "holds", lambda txid, looks=looks: next(looks))
            with pytest.raises(SkipRefused, match="kept already, which cannot undo it"):
                take_skip(ledger, 1, {kept.name: kept}, log=run.log)
        opened = record(store, 1)
        assert opened is not None
        assert opened.skip is None
        assert ledger.topology().skips == []
    run.begin()
    run.work()
    assert run.commit_now() is None
    assert counts(kept) == {"count": 10}


def test_a_transaction_that_was_never_granted_is_skipped_even_if_a_state_cannot_be_checked(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = MemoryState("kept", keys=["word"], values={"count": Count()}, kind="transactional")
    run: Run = make("r1", [update(kept)])
    run.begin()
    monkeypatch.setattr(kept, "holds", lambda txid: None)
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {kept.name: kept}, log=run.log), Committed)


def test_a_skip_reports_that_its_ledger_was_set_back(make: Any, store: Any, state: MemoryState) -> None:
    run = open_run(make, "r1")
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    before = store.snapshot()
    for _ in range(2):
        answer = ledger.run(skip.grant_skip, 1, {})
        assert isinstance(answer, Granted)
        state.raise_fence(answer.grant)
    store.restore(before)
    with pytest.raises(LedgerBehind, match="airflow tx repair numbers --ledger-lost"):
        take_skip(run.commit().ledger, 1, {state.name: state}, log=run.log)


def test_a_requested_skip_is_executed_only_once(make: Any, state: MemoryState) -> None:
    ledger = open_run(make, "r1").commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    states, log = {state.name: state}, open_run(make, "r2").log
    assert take_skip(ledger, 1, states, log=log) == Committed(1, by_this_call=True)
    assert take_skip(ledger, 1, states, log=log) == Committed(1, by_this_call=False)


def test_a_requested_skip_is_due_when_its_transaction_has_the_turn(make: Any) -> None:
    first = make("r1")
    assert first.begin().attempt.txid == 1
    ledger = open_run(make, "r2").commit().ledger
    ledger.run(skip.note_skip, 2, WHY)
    assert due_skip(ledger) is None
    first.work()
    first.commit_now()
    assert due_skip(ledger) is None, "whoever passed the turn on has taken it"
    assert ledger.turn().record is None
    open_run(make, "r3")
    ledger.run(skip.note_skip, 3, WHY)
    assert due_skip(ledger) == 3


def test_a_transaction_can_be_undone_in_a_state_that_can_roll_back_or_does_not_contain_it(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(make, "r1", work=False)
    ledger = run.spec.ledger(run.spec.memory)
    opaque, exact = (MemoryState(kind, values={"n": Count()}, kind=kind) for kind in ("opaque", "transactional"))
    states = {"opaque": opaque, "exact": exact}
    for held, undoes in ((False, True), (True, False), (None, None)):
        for each in states.values():
            monkeypatch.setattr(each, "holds", {1: held}.__getitem__)
        assert undoable(ledger, states, 1) == {"opaque": True, "exact": undoes}


def test_the_states_of_a_dag_are_the_states_of_all_its_committers(state: MemoryState) -> None:
    other = MemoryState("other", values={"n": Count()})
    committers = [SimpleNamespace(updates=(update(state),)), SimpleNamespace(updates=(update(other),))]
    assert states_of(SimpleNamespace(tasks=[*committers, object()])) == {"words": state, "other": other}


def test_a_user_defined_state_is_not_notified_of_a_skip_and_a_skip_after_its_write_is_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Noted()
    own = PersistedState(noted, noted)
    run = open_run(make, "r1")
    run.updates = [Update(update(own).input, own)]
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {own.name: own}, log=run.log), Committed)
    assert noted.seen == []
    second = open_run(make, "r2")
    second.updates = run.updates
    killed_before_the_mark(second.commit())
    second.commit().ledger.run(skip.note_skip, 2, WHY)
    with pytest.raises(SkipRefused, match="cannot undo"):
        second.commit_now()
    assert noted.seen == [(2, 1)]


class Undoing:
    """A state of one's own that takes back what it has of a txid when that txid begins again."""

    kind = "opaque"
    can_roll_back = True

    def __init__(self) -> None:
        self.of: dict[int | None, list[Any]] = {}
        self.updates = 0
        self.broken = False

    @property
    def total(self) -> int:
        return sum(row["count"] for rows in self.of.values() for row in rows)

    def begin_commit(self, txid: int | None) -> None:
        if self.broken:
            raise OSError("the disk is full")
        self.of[txid] = []

    def commit(self, txid: int | None) -> None:
        pass

    def update_state(self, state: Undoing, rows: Any) -> None:
        self.updates += 1
        state.of[max(state.of, key=lambda txid: txid or 0)] = list(rows)


def test_a_user_defined_state_with_an_undo_method_undoes_a_skipped_transaction(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undoing = Undoing()
    own = PersistedState(undoing, undoing)
    run = open_run(make, "r1")
    run.updates = [Update(update(own).input, own)]
    killed_before_the_mark(run.commit())
    assert undoing.total == 10
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {own.name: own}, log=run.log), Committed)
    assert (undoing.total, undoing.updates) == (0, 1)
    ledger.run(skip.note_readmission, 1, WHY)
    assert run.begin().attempt.txid == 2
    run.work()
    assert run.commit_now() is None
    assert undoing.total == 10


def test_a_process_that_is_outranked_during_a_skip_waits_for_the_other_process_to_finish_it(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = MemoryState("slow", keys=["word"], values={"count": Count()})
    ledger = open_run(make, "r1").commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    others = []

    def overtaken(grant: Any) -> None:
        monkeypatch.undo()
        answer = ledger.run(skip.grant_skip, 1, {"slow": True})
        assert isinstance(answer, Granted)
        others.append(answer.grant)
        state.raise_fence(grant)

    def finish(seconds: float) -> None:
        (grant,) = others
        state.raise_fence(grant)
        state.pass_over(grant)
        assert isinstance(ledger.run(skip.commit_skip, grant.token, states=["slow"]), Committed)

    monkeypatch.setattr(state, "raise_fence", overtaken)
    ended = take_skip_or_wait(ledger, 1, {"slow": state}, log=open_run(make, "r2").log, sleep=finish)
    assert ended == Committed(1, by_this_call=False)
    assert len(others) == 1


def test_a_skip_that_a_user_defined_state_fails_to_undo_stays_open_and_can_be_repeated(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undoing = Undoing()
    own = PersistedState(undoing, undoing)
    run = open_run(make, "r1")
    run.updates = [Update(update(own).input, own)]
    killed_before_the_mark(run.commit())
    ledger = run.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    undoing.broken = True
    with pytest.raises(StateError, match="'Undoing' refused: it did not undo transaction 1: OSError: the disk is full"):
        take_skip(ledger, 1, {own.name: own}, log=run.log)
    undoing.broken = False
    assert isinstance(take_skip(ledger, 1, {own.name: own}, log=run.log), Committed)
    assert undoing.total == 0


def test_a_committer_that_was_killed_after_its_commit_starts_yielded_runs_in_its_next_try(
    make: Any, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_run(make, "r1"), open_run(make, "r2")
    with pytest.raises(AirflowFailException, match="yields"):
        yields(second, 1, 2, "r1")
    first.committer.runs["r2"] = "failed"
    commit = first.commit()

    def killed(*_: Any) -> None:
        raise OSError("killed")

    commit.complete()
    commit.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(Commit, "_hand_over", killed)
        with pytest.raises(OSError, match="killed"):
            commit.try_to_commit()
    assert airflow.started == []
    assert first.commit_now() is None
    assert airflow.started == ["r2"]


def test_a_requested_skip_waits_until_its_transaction_has_the_turn(make: Any, state: MemoryState) -> None:
    open_run(make, "r1")
    ledger = open_run(make, "r2").commit().ledger
    ledger.run(skip.note_skip, 2, WHY)
    assert isinstance(take_skip(ledger, 2, {state.name: state}, log=None), NotYet)


def test_the_next_transaction_is_skipped_only_if_a_skip_was_requested(make: Any, state: MemoryState) -> None:
    first, _ = open_run(make, "r1"), open_run(make, "r2")
    assert first.commit_now() is None
    assert not [line for line in first.log.lines if "skipped" in line]


def test_the_batch_of_a_readmitted_transaction_is_committed_once_under_a_new_txid(
    make: Any, state: MemoryState
) -> None:
    first = open_run(make, "r1")
    ledger = first.commit().ledger
    ledger.run(skip.note_skip, 1, WHY)
    take_skip(ledger, 1, {state.name: state}, log=first.log)
    assert open_run(make, "r2").commit_now() is None
    ledger.run(skip.note_readmission, 1, WHY)
    begun = first.begin()
    assert (begun.attempt.txid, begun.metadata) == (3, [0, 10])
    first.work()
    assert first.commit_now() is None
    assert counts(state) == {"count": 20}
    assert make("r5").begin().metadata == [20, 30]


# --- making room ---------------------------------------------------------------------------------------------------


def yields(run: Run, blocking: int, txid: int | None, holder: str) -> None:
    ti = FakeTi("commit", run.run_id, runs={holder: "queued"})
    ledger = run.spec.ledger(run.spec.memory)
    assert ledger.run(run_slots.bid, Waiter(run.run_id, txid, str(ti.id), blocking)) == Bidding(run.run_id)
    yield_slot(run.spec, {"ti": ti, "task": SimpleNamespace()}, blocking=blocking, txid=txid, log=run.log)


def test_a_run_that_yields_fails_with_a_reason_and_the_committer_before_it_restarts_the_run(
    make: Any, airflow: Airflow, store: Any
) -> None:
    first, second = open_run(make, "r1"), open_run(make, "r2")
    second.commit().complete()
    with pytest.raises(AirflowFailException, match=r"Run r2 yields: transaction 1 .* run r1 .*Nothing is lost") as end:
        yields(second, 1, 2, "r1")
    failed(second, None, end.value)
    noted = record(store, 2)
    assert noted is not None
    assert (noted.yielded, noted.attempt, noted.failures) == (1, 1, 0)
    first.committer.runs["r2"] = "failed"
    assert first.commit_now() is None
    assert airflow.started == ["r2"]
    # Airflow starts it as a whole: its batch is processed once more.
    again = second.begin()
    assert (again.attempt.txid, again.attempt.attempt) == (2, 2)


def test_a_run_without_a_transaction_can_yield_and_is_started_again(make: Any, airflow: Airflow) -> None:
    first, waiting = open_run(make, "r1"), make("r2", max_pending=1)
    with pytest.raises(AirflowFailException, match="yields"):
        yields(waiting, 1, None, "r1")
    first.committer.runs["r2"] = "failed"
    assert first.commit_now() is None
    assert airflow.started == ["r2"]


def test_the_committer_waits_until_a_run_that_has_just_yielded_has_ended(
    make: Any, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_run(make, "r1"), open_run(make, "r2")
    with pytest.raises(AirflowFailException, match="yields"):
        yields(second, 1, 2, "r1")
    first.committer.runs["r2"] = "running"
    monkeypatch.setattr(time, "sleep", lambda seconds: first.committer.runs.update(r2="failed"))
    assert first.commit_now() is None
    assert airflow.started == ["r2"]


def test_yielded_runs_are_started_although_another_process_has_passed_on_the_turn(
    make: Any, airflow: Airflow, state: MemoryState
) -> None:
    first, second, third = (open_run(make, f"r{number}") for number in (1, 2, 3))
    with pytest.raises(AirflowFailException, match="yields"):
        yields(third, 1, 3, "r1")
    first.committer.runs["r3"] = "running"
    second.commit().ledger.run(skip.note_skip, 2, WHY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: None)
        assert first.commit_now() is None
    ledger = first.commit().ledger
    assert (ledger.turn().current, airflow.started) == (3, [])
    first.committer.runs["r3"] = "failed"
    runs, ended = TaskRuns("numbers", first.committer), Committed(1, by_this_call=True, waiting=("r3",), skip=True)
    pass_on(ledger, {state.name: state}, runs, ended, log=first.log)
    assert airflow.started == ["r3"]


def test_a_yielded_run_is_not_started_again_while_the_next_run_waits_for_a_run_slot(
    make: Any, airflow: Airflow
) -> None:
    first, _, third = open_run(make, "r1"), open_run(make, "r2"), open_run(make, "r3")
    with pytest.raises(AirflowFailException, match="yields"):
        yields(third, 1, 3, "r1")
    first.committer.runs.update(r2="queued", r3="failed")
    assert first.commit_now() is None
    assert airflow.started == []
    first.committer.runs["r2"] = "running"
    assert list(start_yielded(first.commit().ledger, TaskRuns(first.spec.dag_id, first.committer), ["r3"]))
    assert airflow.started == ["r3"]


def test_no_run_yields_while_the_dag_is_paused(make: Any, airflow: Airflow) -> None:
    open_run(make, "r1")
    airflow.paused = True
    second = open_run(make, "r2")
    yields(second, 1, 2, "r1")
    assert "is paused" in second.log.lines[-1]


def test_only_the_waiting_run_that_leads_the_bids_yields_its_slot(make: Any, airflow: Airflow) -> None:
    open_run(make, "r1")
    second, third = open_run(make, "r2"), open_run(make, "r3")
    ledger = third.commit().ledger
    ledger.run(run_slots.bid, Waiter("r3", 3, "z", 1))
    ti = FakeTi("commit", "r2", runs={"r1": "queued"})
    yield_slot(second.spec, {"ti": ti, "task": SimpleNamespace()}, blocking=1, txid=2, log=second.log)
    assert "run r3 does" in second.log.lines[-1]
