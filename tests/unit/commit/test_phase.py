"""A commit by several tasks: marked once each has done its part under one grant; else it names the one to clear."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import (
    FailedTransaction,
    FenceOutranked,
    LedgerBehind,
    OutputChanged,
    Outranked,
    PhaseIncomplete,
    StagingError,
)
from airflow_tx.ledger.attempt import Grant, TaskTry, Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.state import Count, MemoryState
from airflow_tx.state.persisted import PersistedState
from airflow_tx.transaction.commit.committer import grant_of
from airflow_tx.transaction.commit.update import Update, persistent_aggregate
from airflow_tx.transaction.commit.write import write_moment
from tests.unit.bench import CountingStore
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.run import AWAY, Noted, counts, failed
from tests.unit.commit.run import found as open_one

ROWS = [{"word": "man", "count": 3}, {"word": "dog", "count": 1}]
WRITTEN = {"man": 3, "dog": 1}


def words(name: str, kind: str = "opaque") -> MemoryState:
    return MemoryState(name, keys=["word"], values={"count": Count()}, kind=kind)


def update(task: str, state: MemoryState, key: str = "return_value", **options: Any) -> Update:
    source: Any = SimpleNamespace(operator=SimpleNamespace(task_id=task), key=key)
    return persistent_aggregate(source, state=state, **options)


@pytest.fixture
def of_b() -> MemoryState:
    return words("of_b")


@pytest.fixture
def of_d() -> MemoryState:
    return words("of_d")


@pytest.fixture
def phase(make: Any, of_b: MemoryState, of_d: MemoryState) -> PhaseRun:
    """Both committers take what was processed."""
    return PhaseRun(make, update("count", of_b), update("count", of_d), ROWS)


@pytest.fixture
def with_c(make: Any, of_b: MemoryState, of_d: MemoryState) -> PhaseRun:
    """`d` takes what `c` returns, a task between the committers."""
    return PhaseRun(make, update("count", of_b), update("c", of_d), ROWS, between=["c"])


def history(phase: PhaseRun) -> TransactionRecord:
    node = phase.run.spec.memory.get(phase.run.spec.paths.history(1))
    assert node is not None, "it is committed"
    return decode(TransactionRecord, "", node.data)


def is_committed(phase: PhaseRun) -> bool:
    return phase.run.spec.memory.get(phase.run.spec.paths.history(1)) is not None


def incomplete(phase: PhaseRun, problem: str) -> None:
    """The last task says what is missing, and marks nothing."""
    with pytest.raises(PhaseIncomplete, match=problem):
        phase.mark()
    assert not is_committed(phase)


# --- the whole of it


def test_a_commit_phase_is_committed_after_all_its_committers_have_written(
    phase: PhaseRun, of_b: MemoryState, of_d: MemoryState
) -> None:
    phase.acquire()
    phase.commit("b", "d")
    assert not is_committed(phase)
    phase.mark()
    assert is_committed(phase)
    assert counts(of_b) == counts(of_d) == WRITTEN


def test_the_receipt_of_a_commit_phase_names_the_keys_that_were_written_to_each_state(
    phase: PhaseRun, of_b: MemoryState, of_d: MemoryState
) -> None:
    grant = phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    receipt = Receipt.from_json(history(phase).receipt)
    assert {name: each.keys for name, each in receipt.written.items()} == {"of_b": 2, "of_d": 2}
    for each in (of_b, of_d):
        (kept,) = each.receipts()
        assert kept.text == replace(receipt, written={each.name: receipt.written[each.name]}).text
    assert (receipt.nonce, receipt.rows) == (grant.token.nonce, None)


def test_a_state_contains_only_the_last_output_of_a_committer_that_runs_again_with_fewer_keys(
    with_c: PhaseRun, of_d: MemoryState
) -> None:
    with_c.acquire()
    with_c.commit("b")
    for rows in (ROWS, ROWS[1:]):
        with_c.returns("c", rows)
        with_c.commit("d")
    with_c.mark()
    assert of_d.read() == ROWS[1:]
    assert Receipt.from_json(history(with_c).receipt).written["of_d"].sums == {"count": 1}


def test_the_receipt_contains_the_last_output_of_a_committer_that_runs_again(
    with_c: PhaseRun, of_d: MemoryState
) -> None:
    with_c.returns("c", ROWS)
    with_c.states["d"] = "success"
    with_c.acquire()  # writes again for d
    with_c.commit("b")
    with_c.returns("c", ROWS[1:])
    with_c.commit("d")
    with_c.mark()
    assert of_d.read() == ROWS[1:]
    assert Receipt.from_json(history(with_c).receipt).written["of_d"].sums == {"count": 1}


def test_the_first_task_of_a_commit_phase_passes_its_grant_to_the_other_tasks(phase: PhaseRun) -> None:
    grant = phase.acquire()
    assert grant_of(phase.shared, "numbers") == replace(grant, batch=Grant.batch)


def test_tasks_of_a_final_transaction_write_nothing(phase: PhaseRun, of_b: MemoryState) -> None:
    phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    fence = of_b.fence()
    assert phase.acquire() is None
    assert phase.shared == {"final": True}
    phase.commit("b", "d")
    phase.mark()
    assert of_b.fence() == fence
    assert phase.xcoms["b", "return_value", -1] is None
    assert phase.run.log.lines[-1] == "Transaction 1 of numbers is already committed: nothing to do"


def test_a_try_that_runs_after_another_try_has_committed_the_transaction_writes_nothing(
    phase: PhaseRun, of_b: MemoryState
) -> None:
    grant = phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    assert phase.committer("b").write_under(grant) == {}
    phase.mark()
    assert counts(of_b) == WRITTEN


def test_the_new_values_of_a_final_transaction_can_be_read_again(make: Any, of_b: MemoryState) -> None:
    phase = PhaseRun(make, update("count", of_b, new_values="totals"), update("count", words("of_d")), ROWS)
    phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    phase.acquire()
    committer = phase.committer("b")
    told = committer.write_in_phase()
    left = committer.left
    assert told is None
    assert left["totals"]["rows"] == 2


# --- what is missing


def test_a_task_of_a_commit_phase_is_refused_if_the_first_task_has_not_taken_the_turn(phase: PhaseRun) -> None:
    for pushed in (None, "a grant"):
        phase.xcoms["acquire", "return_value", -1] = pushed
        with pytest.raises(PhaseIncomplete, match=r"1\.1 .*acquire has not taken the turn. Clear acquire"):
            phase.commit("b")
        incomplete(phase, "acquire has not taken the turn. Clear acquire")


def test_the_error_names_a_committer_that_has_not_written(phase: PhaseRun) -> None:
    phase.acquire()
    phase.commit("b")
    phase.states["d"] = "success"  # marked by hand
    incomplete(phase, "d has not written with the grant of this commit phase. Clear d")


def test_the_error_names_a_committer_that_has_written_only_under_an_earlier_grant(phase: PhaseRun) -> None:
    phase.acquire()
    phase.commit("b", "d")
    phase.states["b"] = "failed"  # it was cleared, and so was the first task
    phase.acquire()
    phase.states["b"] = "success"  # marked by hand
    incomplete(phase, "b has not written with the grant of this commit phase. Clear b")
    phase.commit("b")
    phase.mark()
    assert is_committed(phase)


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "skipped", "removed", None])
def test_the_error_names_a_committer_that_has_not_succeeded(phase: PhaseRun, state: str | None) -> None:
    phase.acquire()
    phase.commit("b", "d")
    phase.states["d"] = state
    incomplete(phase, f"d is {state or 'not run'}. Clear d")


@pytest.mark.parametrize("state", ["failed", "upstream_failed", None])
def test_the_error_names_a_task_between_the_committers_that_has_not_succeeded(
    with_c: PhaseRun, state: str | None
) -> None:
    with_c.acquire()
    with_c.returns("c", ROWS)
    with_c.commit("b", "d")
    with_c.states["c"] = state
    incomplete(with_c, f"c is {state or 'not run'}. Clear c")


@pytest.mark.parametrize("index", [0, 1])
def test_the_error_names_the_mapped_instance_of_a_task_between_the_committers(
    make: Any, of_b: MemoryState, index: int
) -> None:
    phase = PhaseRun(make, update("count", of_b), update("count", words("of_d")), ROWS, between=["c"], mapped=["c"])
    phase.acquire()
    phase.commit("b", "d")
    phase.states.update({"c_0": "success", "c_1": "success", f"c_{index}": "failed"})
    incomplete(phase, rf"c\[{index}\] is failed. Clear c:")


@pytest.mark.parametrize("state", ["skipped", "removed"])
def test_a_task_between_the_committers_of_a_phase_may_be_skipped(phase: PhaseRun, make: Any, state: str) -> None:
    made = PhaseRun(make, phase.updates["b"][0], phase.updates["d"][0], ROWS, between=["c"])
    made.acquire()
    made.commit("b", "d")
    made.states["c"] = state
    made.mark()
    assert is_committed(made)


def test_no_value_is_written_or_committed_while_a_task_before_the_commit_phase_runs_again(
    phase: PhaseRun, of_b: MemoryState
) -> None:
    grant = phase.acquire()
    phase.commit("b", "d")
    phase.run.start()
    phase.states["count"] = "running"
    incomplete(phase, "a task before the commit phase runs again. Clear acquire")
    with pytest.raises(Outranked, match="a later grant"):
        phase.committer("b").write_under(grant)


def test_a_committer_of_an_outranked_grant_is_refused(phase: PhaseRun, of_b: MemoryState) -> None:
    first = phase.acquire()
    phase.acquire()
    with pytest.raises(Outranked, match="a later grant"):
        phase.committer("b").write_under(first)
    assert counts(of_b) == {}


def test_a_committer_with_an_outranked_grant_writes_no_value_to_a_state_without_a_fence(make: Any) -> None:
    noted = Noted()
    own = Update(update("count", words("of_b")).input, PersistedState(noted, noted))
    phase = PhaseRun(make, own, update("count", words("of_d")), ROWS)
    first = phase.acquire()
    phase.acquire()
    with pytest.raises(Outranked, match="a later grant"):
        phase.committer("b").write_under(first)
    assert noted.seen == []


def test_a_committer_is_refused_while_a_cleared_task_runs_that_has_not_started_in_the_ledger(
    phase: PhaseRun, of_b: MemoryState
) -> None:
    phase.run.spec = replace(phase.run.spec, tasks=("count", "branch"))
    phase.states["branch"] = "skipped"
    grant = phase.acquire()
    phase.states["branch"] = "running"  # it was cleared
    with pytest.raises(Outranked, match="a later grant"):
        phase.committer("b").write_under(grant)
    assert counts(of_b) == {}


def test_the_last_task_of_a_phase_notices_that_a_committer_was_outranked_after_its_write(
    phase: PhaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase.acquire()
    patched = "airflow_tx.transaction.commit.committer.write_moment"

    def write_and_be_outranked(moment: Any, *arguments: Any, **options: Any) -> Any:
        written = write_moment(moment, *arguments, **options)
        if moment:
            monkeypatch.setattr(patched, write_moment)
            phase.acquire()
        return written

    monkeypatch.setattr(patched, write_and_be_outranked)
    phase.commit("b", "d")
    incomplete(phase, "b has not written with the grant of this commit phase")


def test_an_older_try_that_is_killed_does_not_remove_the_values_of_a_newer_try(
    phase: PhaseRun, of_b: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any) -> int:
        raise RuntimeError("killed")

    phase.acquire()
    phase.commit("b")
    with monkeypatch.context() as patch:
        patch.setattr("airflow_tx.state.memory._MemoryTransaction.put", killed)
        with pytest.raises(RuntimeError, match="killed"):
            phase.commit("b")
    phase.commit("d")
    phase.mark()
    assert counts(of_b) == WRITTEN


# --- the turn is taken again


def test_the_first_task_of_a_phase_repeats_the_write_of_a_committer_that_is_not_cleared(
    phase: PhaseRun, of_b: MemoryState, of_d: MemoryState
) -> None:
    phase.acquire()
    phase.commit("b", "d")
    phase.states["d"] = None  # cleared, with the first task
    grant = phase.acquire()
    assert (counts(of_b), counts(of_d)) == (WRITTEN, {})
    assert phase.shared["healed"] == ["b"]
    assert "Writing the updates of task b again, under the new grant" in phase.run.log.lines
    phase.commit("d")
    phase.mark()
    assert counts(of_b) == counts(of_d) == WRITTEN
    written = Receipt.from_json(history(phase).receipt).written
    assert {name: each.keys for name, each in written.items()} == {"of_b": 2, "of_d": 2}
    fence = of_b.fence()
    assert fence is not None
    assert fence.token == grant.token


def test_the_first_task_of_a_phase_does_not_repeat_a_write_whose_input_task_runs_again(
    with_c: PhaseRun, of_d: MemoryState
) -> None:
    with_c.acquire()
    with_c.commit("b")
    with_c.returns("c", ROWS)
    with_c.commit("d")
    with_c.states["c"] = None
    with_c.acquire()
    assert with_c.shared["healed"] == ["b"]
    assert counts(of_d) == {}
    with_c.returns("c", ROWS[:1])
    incomplete(with_c, "d has not written with the grant of this commit phase")
    with_c.commit("d")
    with_c.mark()
    assert counts(of_d) == {"man": 3}


def test_the_fence_of_every_state_is_raised_when_the_first_task_takes_the_turn(
    phase: PhaseRun, of_b: MemoryState, of_d: MemoryState
) -> None:
    first = phase.acquire()
    second = phase.acquire()
    assert [state.fence().token for state in (of_b, of_d)] == [second.token] * 2  # type: ignore[union-attr]
    with pytest.raises(FenceOutranked):
        of_d.write(first, ROWS)


# --- what a task between the committers gives


def test_the_output_of_a_task_between_the_committers_is_written(with_c: PhaseRun, of_d: MemoryState) -> None:
    with_c.acquire()
    with_c.commit("b")
    with_c.returns("c", [{"word": "cat", "count": 9}])
    with_c.commit("d")
    with_c.mark()
    assert counts(of_d) == {"cat": 9}


def refuses_c(phase: PhaseRun, problem: str) -> None:
    with pytest.raises(StagingError, match=problem):
        phase.committer("d").write_in_phase()
    assert counts(phase.updates["d"][0].state) == {}  # type: ignore[arg-type]


NOT_WHAT_IT_GAVE = r"'return_value' of task c .*1\.2.* is not the output of the task in this attempt.*Clear task c"


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_output_of_another_attempt_from_a_task_between_the_committers_is_refused(
    with_c: PhaseRun, by_hand: bool
) -> None:
    with_c.returns("c", ROWS)
    with_c.begin(ROWS)
    with_c.acquire()
    if by_hand:
        with_c.returns("c", ROWS)
        with_c.xcoms["c", "return_value", -1] = ROWS[:1]
    refuses_c(with_c, NOT_WHAT_IT_GAVE)


def test_an_output_that_does_not_name_its_attempt_is_refused(with_c: PhaseRun) -> None:
    with_c.begin(ROWS)
    with_c.acquire()
    with_c.xcoms["c", "return_value", -1] = ROWS
    refuses_c(with_c, NOT_WHAT_IT_GAVE)


def test_an_output_that_is_returned_as_a_reference_is_read_for_the_attempt_in_the_reference(
    with_c: PhaseRun, of_d: MemoryState
) -> None:
    from airflow_tx.outputs.staging.area import write_manifest, write_rows

    with_c.acquire()
    with_c.returns("c", "what the operator returned")
    own = with_c.run.begun
    area = with_c.run.spec.staging().of_topology(own.incarnation)
    where = area.try_dir("numbers", own.attempt, TaskTry("c", -1, "try"))
    staged = write_manifest(where, {"words": write_rows(where, "words", ROWS)})["words"].to_json()
    with_c.xcoms["c", "return_value", -1] = staged
    with_c.commit("d")
    assert counts(of_d) == WRITTEN


def test_a_committer_can_write_one_of_several_outputs_of_a_task_between_the_committers(
    make: Any, of_d: MemoryState
) -> None:
    phase = PhaseRun(make, update("count", words("of_b")), update("c", of_d, "words"), ROWS, between=["c"])
    phase.acquire()
    phase.returns("c", {"words": ROWS})
    phase.xcoms["c", "words", -1] = ROWS
    phase.commit("d")
    assert counts(of_d) == WRITTEN


def test_a_task_between_the_committers_without_output_is_refused_unless_the_batch_is_empty(
    with_c: PhaseRun, of_d: MemoryState
) -> None:
    with_c.acquire()
    with_c.returns("c", None)
    refuses_c(with_c, "the task returned nothing")
    with_c.run.begun = replace(with_c.run.begun, metadata=None)
    with_c.commit("d")
    assert counts(of_d) == {}


# --- what is refused


def test_a_transactional_state_in_a_commit_phase_accepts_only_the_same_output(make: Any, of_d: MemoryState) -> None:
    exact = words("exact", "transactional")
    phase = PhaseRun(make, update("count", exact), update("count", of_d), ROWS)
    phase.acquire()
    phase.commit("b")
    phase.work(ROWS[:1])
    with pytest.raises(OutputChanged, match="'exact'"):
        phase.acquire()
    phase.work(ROWS)
    phase.acquire()
    phase.commit("d")
    phase.mark()
    assert counts(exact) == counts(of_d) == WRITTEN


def test_a_transactional_state_without_rows_in_a_commit_phase_accepts_another_output(
    make: Any, of_d: MemoryState
) -> None:
    exact = words("exact", "transactional")
    phase = PhaseRun(make, update("count", exact), update("count", of_d), ROWS)
    phase.acquire()
    phase.work(ROWS[:1])
    phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    assert counts(exact) == counts(of_d) == {"man": 3}


def set_back(phase: PhaseRun, state: MemoryState) -> None:
    """The ledger is set back to before a grant that has raised the fence of a state."""
    incarnation = phase.run.commit().ledger.topology().incarnation
    token = Token(1, 1, 9, 9, "n", phase.run.begun.attempt.birth)
    state.raise_fence(Grant("numbers", incarnation, token, {}))


def test_the_task_that_takes_the_turn_reports_that_its_ledger_was_set_back(phase: PhaseRun, of_d: MemoryState) -> None:
    set_back(phase, of_d)
    with pytest.raises(LedgerBehind, match="--ledger-lost"):
        phase.acquire()


def test_a_committer_reports_that_its_ledger_was_set_back(phase: PhaseRun, of_b: MemoryState) -> None:
    phase.acquire()
    set_back(phase, of_b)
    with pytest.raises(LedgerBehind, match="--ledger-lost"):
        phase.commit("b")


def test_a_failed_transaction_is_not_written_and_not_committed(phase: PhaseRun) -> None:
    phase.acquire()
    phase.run.start().fail("of memory")
    with pytest.raises(FailedTransaction):
        phase.commit("b")
    with pytest.raises(FailedTransaction):
        phase.mark()


def test_the_failure_of_a_task_in_a_commit_phase_is_recorded_only_under_the_newest_grant(
    phase: PhaseRun, store: CountingStore
) -> None:
    phase.acquire()
    outranked = phase.committer("b")
    grant = outranked.shared_grant()
    assert grant is not None
    phase.acquire()
    with pytest.raises(Outranked) as error:
        outranked.write_under(grant)
    failed(phase.run, outranked, error.value)
    assert (open_one(store).error, open_one(store).failures, open_one(store).by_phase) == (None, 0, True)
    newest = phase.committer("b")
    newest.read_shared()
    failed(phase.run, newest, AWAY)
    assert open_one(store).failures == 1
