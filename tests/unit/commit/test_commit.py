"""The way of a transaction through the operators' own code, on the in-memory ledger and states."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.base.errors import (
    FailedTransaction,
    FenceOutranked,
    IncompleteBatch,
    LedgerBehind,
    OutputChanged,
    Outranked,
    RowsNotKept,
    SourceError,
    StagingError,
    StaleAttempt,
    StaleBatch,
    StateMissing,
    StateUnavailable,
    StoreUnavailable,
    TxError,
)
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.answers import AlreadyCommitted, Begun, WindowFull
from airflow_tx.ledger.api import Delete
from airflow_tx.ledger.attempt import Grant, TaskTry, Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.records import Phase, TopologyRecord, TransactionRecord, decode
from airflow_tx.ledger.steps import recovery
from airflow_tx.operators.commit import connected, final_errors, note_commit_failure
from airflow_tx.sources.api import Batch, SourceKind
from airflow_tx.state import Count, Fence, MemoryState
from airflow_tx.transaction.commit.committer import Commit, Completion
from airflow_tx.transaction.commit.turn import advice, commit_in_turn
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.processing.begin import ask, committed_batch
from airflow_tx.transaction.processing.outputs import returned
from airflow_tx.transaction.processing.task import Processing
from tests.stage import update
from tests.unit.bench import CountingStore, FakeTi, Numbers, OpaqueNumbers, run_of
from tests.unit.commit.run import AWAY, Broker, context_of, counts, dies, failed, found, record

PER_TRANSACTION = 20


def test_a_run_of_the_dag_is_committed_as_one_transaction(make: Any, state: MemoryState) -> None:
    run = make("r1")
    assert run.begin().attempt.txid == 1
    run.work()
    assert run.commit_now() is None
    assert counts(state) == {"count": 10}
    assert isinstance(make("r1").begin(), AlreadyCommitted)


def test_a_second_commit_of_a_transaction_changes_no_value(make: Any, state: MemoryState) -> None:
    run = make("r1")
    run.begin()
    run.work()
    run.commit_now()
    assert run.commit_now() is None
    assert counts(state) == {"count": 10}
    assert "Transaction 1 of numbers is already committed: nothing to do" in run.log.lines


def test_max_pending_limits_the_number_of_open_transactions(make: Any) -> None:
    assert isinstance(make("r1", max_pending=1).begin(), Begun)
    assert isinstance(make("r2", max_pending=1).begin(), WindowFull)


def test_the_committer_of_a_later_transaction_frees_its_worker_and_logs_what_it_waits_for(
    make: Any, state: MemoryState
) -> None:
    first, second = make("r1"), make("r2")
    first.begin()
    second.begin()
    second.work()
    second.committer.runs["r1"] = "failed"
    line = second.commit_now(patience=60)
    assert (line.txid, line.current) == (2, 1)
    assert counts(state) == {}
    assert second.log.lines[-1] == (
        "Transaction 2 of numbers waits for transaction 1 (PROCESSING) of run r1, which is failed. "
        "To continue, clear that run, or replay it: airflow tx replay numbers 1. To continue without it: "
        "airflow tx skip numbers 1 --why TEXT"
    )


def test_the_committer_of_the_next_transaction_waits_in_its_worker_and_commits_at_its_turn(
    make: Any, store: CountingStore, state: MemoryState
) -> None:
    import threading

    first, second = make("r1"), make("r2")
    first.begin()
    second.begin()
    first.work()
    second.work(count=5)
    waiting = threading.Thread(target=second.commit_now, kwargs={"patience": 600}, daemon=True)
    waiting.start()
    assert first.commit_now() is None
    waiting.join(300)
    assert not waiting.is_alive()
    assert counts(state) == {"count": 15}


def test_a_committer_stops_waiting_in_its_worker_after_the_configured_patience(make: Any) -> None:
    first, second = make("r1"), make("r2")
    first.begin()
    second.begin()
    first.work()
    second.work()
    assert second.commit_now(patience=0.05).current == 1


def test_a_committer_waits_in_its_worker_when_all_tasks_of_its_predecessor_have_acked(make: Any) -> None:
    from airflow_tx.transaction.commit.turn import Move, read_line

    first, second = make("r1"), make("r2")
    first.begin()
    second.begin()
    spec = first.spec
    assert read_line(ReadOnlyLedger(spec.memory, spec.paths), 2, ()).move is Move.WAIT_BRIEFLY
    first.work()
    assert read_line(ReadOnlyLedger(spec.memory, spec.paths), 2, ()).move is Move.WAIT


def test_a_batch_is_not_committed_while_an_ack_is_missing(make: Any) -> None:
    run = make("r1", tasks=("count", "other"))
    run.begin()
    run.work()
    run.committer.states = {"count": "success", "other": "success"}
    with pytest.raises(IncompleteBatch, match="no ack from other"):
        run.commit_now()


def test_the_commit_waits_for_a_task_that_runs_again_and_writes_its_new_output(make: Any, state: MemoryState) -> None:
    run = make("r1")
    run.begin()
    run.work()
    again = run.start()
    run.committer.states = {"count": "running"}
    assert run.commit_now().current == 1
    again.ack(returned([{"word": "count", "count": 7}], multiple=False))
    run.committer.xcoms["count", "return_value", -1] = [{"word": "count", "count": 7}]
    assert run.commit_now() is None
    assert counts(state) == {"count": 7}


def test_output_that_was_read_before_its_task_started_again_is_not_written(make: Any, state: MemoryState) -> None:
    run = make("r1")
    run.begin()
    run.work()
    commit = run.commit()
    assert commit.complete() is Completion.READY
    commit.prepare()
    run.work(count=7)
    assert commit.try_to_commit() is False
    assert run.commit_now() is None
    assert counts(state) == {"count": 7}


def test_skipped_tasks_contribute_no_rows_and_do_not_block_the_commit(make: Any, state: MemoryState) -> None:
    run = make("r1", tasks=("count", "branch"))
    run.begin()
    run.work()
    run.committer.states = {"count": "success", "branch": "skipped"}
    assert run.commit_now() is None
    assert counts(state) == {"count": 10}


def test_the_rows_of_all_instances_of_a_mapped_task_are_summed(make: Any, state: MemoryState) -> None:
    run = make("r1", mapped=frozenset({"count"}))
    run.begin()
    run.work(index=0, count=1)
    run.work(index=1, count=2)
    run.work(index=2, count=4)
    assert run.commit_now() is None
    assert counts(state) == {"count": 7}


def test_a_mapped_instance_that_was_marked_success_by_hand_blocks_the_commit(make: Any, state: MemoryState) -> None:
    run = make("r1", mapped=frozenset({"count"}))
    run.begin()
    run.work(index=0, count=1)
    run.committer.states["count_1"] = "success"
    with pytest.raises(IncompleteBatch, match=r"no ack from count\[1\]"):
        run.commit_now()
    assert counts(state) == {}


def test_mapped_instances_that_succeeded_only_in_an_earlier_attempt_block_the_commit(
    make: Any, state: MemoryState
) -> None:
    run = make("r1", mapped=frozenset({"count"}))
    run.begin()
    run.work(index=0)
    run.begin()
    with pytest.raises(IncompleteBatch, match=r"no ack from count\[0\]"):
        run.commit_now()
    assert counts(state) == {}


def test_a_mapped_instance_that_failed_before_it_started_blocks_the_commit(make: Any, state: MemoryState) -> None:
    run = make("r1", mapped=frozenset({"count"}))
    run.begin()
    run.work(index=0)
    run.committer.states["count_1"] = "failed"
    with pytest.raises(IncompleteBatch, match=r"count\[1\]"):
        run.commit_now()
    assert counts(state) == {}


def test_the_rows_of_a_mapped_instance_that_was_removed_after_its_ack_are_not_added(
    make: Any, state: MemoryState
) -> None:
    run = make("r1", mapped=frozenset({"count"}))
    run.begin()
    run.work(index=0, count=1)
    run.work(index=1, count=2)
    run.committer.states["count_1"] = "removed"
    assert run.commit_now() is None
    assert counts(state) == {"count": 1}


def test_a_mapped_instance_that_was_removed_after_its_start_does_not_block_the_commit(
    make: Any, state: MemoryState
) -> None:
    run = make("r1", mapped=frozenset({"count"}))
    run.begin()
    run.work(index=0, count=1)
    run.start(index=1)
    run.committer.states["count_1"] = "removed"
    assert run.commit_now() is None
    assert counts(state) == {"count": 1}


def test_the_rows_of_a_task_that_a_branch_skipped_after_its_ack_are_not_added(make: Any, state: MemoryState) -> None:
    other = MemoryState("other", keys=["word"], values={"count": Count()})
    run = make("r1", [update(state, "a"), update(other, "b")], tasks=("a", "b"))
    run.begin()
    run.work("a")
    run.work("b")
    run.committer.states["a"] = "skipped"
    assert run.commit_now() is None
    assert (counts(state), counts(other)) == ({}, {"b": 10})


def test_the_dag_cannot_drop_a_state_that_an_earlier_try_may_have_written(make: Any, state: MemoryState) -> None:
    other = MemoryState("other", keys=["word"], values={"count": Count()})
    run = make("r1", [update(state), update(other)])
    run.begin()
    run.work()
    commit = run.commit()
    commit.complete()
    commit.prepare()
    commit.ledger.run(commit.acquire_step())
    run.updates = [update(state)]
    with pytest.raises(StateMissing, match="state other"):
        run.commit_now()


def test_a_committer_records_its_run_id_and_its_task_try_for_its_grant(make: Any) -> None:
    own = make("r1").commit()
    grant = Grant("numbers", "life", Token(1, 1, 1, 1, "nonce"), {})
    with patch.object(own.ledger, "announce_owner") as announced:
        own.show(grant)
    shown = {"token": grant.token.to_json(), "run_id": "r1", "task_try": str(own.ti.id)}
    announced.assert_called_once_with("nonce", shown)
    assert own.task_id == "commit"


def test_a_committer_reads_the_path_of_the_dag_file_from_its_task(make: Any) -> None:
    own = make("r1").commit()
    assert own.dag_file == ""
    own.ti.task = SimpleNamespace(dag=SimpleNamespace(fileloc="/dags/numbers.py"))
    assert own.dag_file == "/dags/numbers.py"


def test_a_failed_transaction_is_not_committed(make: Any) -> None:
    run = make("r1")
    run.begin()
    run.start().fail("no disk")
    with pytest.raises(FailedTransaction, match="no disk"):
        run.commit_now()


def test_a_committer_of_an_older_attempt_is_refused(make: Any) -> None:
    run = make("r1")
    run.begin()
    run.work()
    old = run.commit()
    run.begin()
    run.work()
    with pytest.raises(StaleAttempt):
        commit_in_turn(old, run.spec.memory, patience=0)


def test_an_opaque_batch_with_an_outdated_base_is_refused_and_is_committed_after_a_replay(
    make: Any, state: MemoryState, store: CountingStore
) -> None:
    class Shrinking(OpaqueNumbers):
        def initialize_transaction(self, txid: int, position: Any) -> Any:
            batch = super().initialize_transaction(txid, position)
            first: Any = batch.metadata[0] if isinstance(batch.metadata, list) else 0
            return type(batch)([first, first + 4], first + 4)

    first, second = make("r1", source=OpaqueNumbers()), make("r2", source=OpaqueNumbers())
    first.begin()
    second.begin()
    second.work()
    first = make("r1", source=Shrinking())
    assert first.begin().metadata == [0, 4]
    first.work(count=4)
    first.commit_now()
    with pytest.raises(StaleBatch):
        second.commit_now()
    assert second.begin().metadata == [4, 14]
    second.work()
    second.commit_now()
    assert counts(state) == {"count": 14}


def transactional(name: str = "exact") -> MemoryState:
    return MemoryState(name, keys=["word"], values={"count": Count()}, kind="transactional")


def test_a_transactional_state_accepts_only_the_same_output_in_a_replay(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, before = transactional(), None
    run = make("r1", [update(exact)])
    run.begin()
    before = exact.database.snapshot()
    run.work()
    dies(run, monkeypatch, Commit, "mark_step")
    run.work(count=11)
    with pytest.raises(OutputChanged, match='some of it.*restore the state .*use kind="opaque"'):
        run.commit_now()
    assert counts(exact) == {"count": 10}
    exact.database.restore(before)  # the remedy
    assert run.commit_now() is None
    assert counts(exact) == {"count": 11}


@pytest.mark.parametrize(("where", "method"), [("second", "raise_fence"), ("first", "raise_and_write")])
def test_a_transactional_state_without_rows_of_the_transaction_accepts_another_output(
    make: Any, monkeypatch: pytest.MonkeyPatch, where: str, method: str
) -> None:
    first, second = transactional("first"), transactional("second")
    run = make("r1", [update(first), update(second)])
    run.begin()
    run.work()
    dies(run, monkeypatch, {"first": first, "second": second}[where], method)
    run.work(count=11)
    assert run.commit_now() is None
    assert (counts(first), counts(second)) == ({"count": 11}, {"count": 11})


def test_another_output_is_refused_if_the_first_output_is_written_while_a_state_is_queried(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = transactional("first"), transactional("second")
    run = make("r1", [update(second), update(first)])
    run.begin()
    run.work()
    dies(run, monkeypatch, second, "raise_and_write")
    run.work(count=11)
    asked = first.holds

    def asked_meanwhile(txid: int) -> bool:
        monkeypatch.setattr(first, "holds", asked)
        run.work(count=10)
        dies(run, monkeypatch, Commit, "mark_step")
        return asked(txid)

    late = run.commit()
    late.complete()
    late.prepare()
    monkeypatch.setattr(first, "holds", asked_meanwhile)
    with pytest.raises(OutputChanged):
        late.try_to_commit()
    assert (counts(first), counts(second)) == ({"count": 10}, {"count": 10})


def test_an_output_that_one_state_has_written_is_fixed_for_all_states_of_the_transaction(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = transactional("first"), transactional("second")
    run = make("r1", [update(first), update(second)])
    run.begin()
    run.work()
    dies(run, monkeypatch, first, "raise_and_write")
    run.work(count=11)
    dies(run, monkeypatch, second, "write")
    run.work(count=10)
    with pytest.raises(OutputChanged, match="'first'"):
        run.commit_now()
    run.work(count=11)
    assert run.commit_now() is None
    assert (counts(first), counts(second)) == ({"count": 11}, {"count": 11})


def test_an_outdated_committer_with_the_earlier_output_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = transactional()
    run = make("r1", [update(exact)])
    run.begin()
    run.work()
    zombie = run.commit()
    zombie.complete()
    zombie.prepare()
    wakes = exact.raise_and_write

    def another_commits_first(*arguments: Any) -> int:
        monkeypatch.setattr(exact, "raise_and_write", wakes)
        run.work(count=11)
        assert run.commit_now() is None
        return wakes(*arguments)

    monkeypatch.setattr(exact, "raise_and_write", another_commits_first)
    with pytest.raises(Outranked):
        zombie.try_to_commit()
    assert counts(exact) == {"count": 11}


class Failing(MemoryState):
    """A state whose next call of `method` raises `error`."""

    def __init__(self, name: str, method: str, error: TxError) -> None:
        super().__init__(name, keys=["word"], values={"count": Count()})
        self.calls: list[str] = []
        self._next = (method, error)

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if self._next[0] == method:
            error, self._next = self._next[1], ("", self._next[1])
            raise error

    def raise_fence(self, grant: Any) -> None:
        self._call("raise_fence")
        super().raise_fence(grant)

    def write(self, grant: Any, rows: Any, **options: Any) -> int:
        self._call("write")
        return super().write(grant, rows, **options)


def test_a_transaction_whose_state_was_unreachable_is_committed_by_a_later_try(make: Any) -> None:
    state = Failing("words", "raise_fence", AWAY)
    other = MemoryState("other", keys=["word"], values={"count": Count()})
    run = make("r1", [update(other), update(state)])
    run.begin()
    run.work()
    with pytest.raises(StateUnavailable):
        run.commit_now()
    assert counts(other) == {}, "no state is written before the fences of all are raised"
    assert run.commit_now() is None
    assert counts(other) == counts(state) == {"count": 10}


def test_no_row_is_counted_twice_after_a_crash_between_the_writes_to_two_states(make: Any) -> None:
    state = Failing("words", "write", AWAY)
    other = MemoryState("other", keys=["word"], values={"count": Count()})
    run = make("r1", [update(other), update(state)])
    run.begin()
    run.work()
    with pytest.raises(StateUnavailable):
        run.commit_now()
    assert run.commit_now() is None
    assert counts(other) == counts(state) == {"count": 10}


def test_an_outranked_committer_does_not_report_that_the_ledger_was_set_back(make: Any) -> None:
    behind = LedgerBehind(state="words", topology="numbers", found=9, expected=8, txid=1)

    class Overtaken(Failing):
        def raise_and_write(self, grant: Any, rows: Any) -> int:
            again.commit_now()  # another committer of the same transaction comes first
            self._call("raise_and_write")
            return 0

    run = make("r1", [update(Overtaken("words", "raise_and_write", behind))])
    again = make("r1")
    run.begin()
    run.work()
    again.begun, again.committer = run.begun, run.committer
    with pytest.raises(Outranked):
        run.commit_now()


def test_a_commit_reports_that_the_ledger_was_set_back_if_a_fence_has_a_higher_token(make: Any) -> None:
    words = MemoryState("words", keys=["word"], values={"count": Count()})
    run = make("r1", [update(words)])
    run.begin()
    run.work()
    topology = decode(TopologyRecord, "", run.spec.memory.get(run.spec.paths.record).data)
    words.raise_fence(Grant("numbers", topology.incarnation, Token(1, 1, 9, 9, "n"), {}))
    with pytest.raises(LedgerBehind, match="--ledger-lost"):
        run.commit_now()


def test_the_fence_of_another_ledger_is_not_reported_as_a_ledger_that_was_set_back(make: Any) -> None:
    outranked = FenceOutranked(state="words", token="1.1", found="9.9")
    other = MemoryState("other", keys=["word"], values={"count": Count()})
    other.raise_fence(Grant("numbers", "another", Token(1, 1, 9, 9, "n"), {}))
    run = make("r1", [update(other), update(Failing("words", "raise_fence", outranked))])
    run.begin()
    run.work()
    with pytest.raises(FenceOutranked):
        run.commit_now()


def test_a_ledger_that_was_restored_from_a_backup_is_reported(make: Any) -> None:
    behind = LedgerBehind(state="words", topology="numbers", found=9, expected=8, txid=1)

    class Behind(MemoryState):
        def raise_and_write(self, grant: Any, rows: Any) -> int:
            raise behind

    run = make("r1", [update(Behind("words", keys=["word"], values={"count": Count()}))])
    run.begin()
    run.work()
    with pytest.raises(LedgerBehind):
        run.commit_now()


def test_the_fence_stores_the_rows_and_the_end_position_and_the_start_position_of_the_batch(
    make: Any, state: MemoryState
) -> None:
    for run in (make("r1"), make("r2")):
        run.begin()
        run.work()
        run.commit_now()
    fence = state.fence()
    assert fence is not None
    kept = json.loads(fence.batch)
    assert {name: kept[name] for name in ("rows", "position", "prev")} == {
        "rows": [10, 20],
        "position": 20,
        "prev": 10,
    }
    assert (kept["key"], kept["run_id"], kept["skip"]) == ("r2", "r2", None)


def test_a_transaction_with_one_task_sends_at_most_20_requests_to_the_ledger(make: Any, store: CountingStore) -> None:
    for run_id in ("r1", "r2", "r3"):
        store.requests, run = 0, make(run_id)
        run.begin()
        run.work()
        run.commit_now()
        assert store.requests <= PER_TRANSACTION


def test_a_failing_source_gets_no_txid_and_its_error_is_one_line(make: Any, store: CountingStore) -> None:
    class Broken(Numbers):
        def initialize_transaction(self, txid: int, position: Any) -> Any:
            raise OSError("no such folder")

    with pytest.raises(SourceError, match="Broken refused: transaction 1 after position null: OSError: no such"):
        make("r1", source=Broken()).begin()
    assert record(store, 1) is None
    assert make("r1").begin().attempt.txid == 1


def test_metadata_that_is_not_json_is_reported_as_an_error_of_the_source(make: Any) -> None:
    class Odd(Numbers):
        def initialize_transaction(self, txid: int, position: Any) -> Any:
            return {"rows": {1, 2}}

    with pytest.raises(SourceError, match="not JSON serializable"):
        make("r1", source=Odd()).begin()


def test_begin_returns_no_data_if_the_source_is_not_ready(make: Any) -> None:
    class NotReady(Numbers):
        def is_ready(self) -> bool:
            return False

    assert make("r1", source=NotReady()).begin().txid == 1


OR = "or replay it: airflow tx replay numbers 3. To continue without it: airflow tx skip numbers 3 --why TEXT"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            "queued",
            "That run needs a run slot. If it stays queued, one of the waiting runs yields to it. Airflow never "
            "starts a run of a cancelled or paused backfill: airflow tx replay numbers 3",
        ),
        ("failed", f"To continue, clear that run, {OR}"),
        ("success", f"To continue, clear that run, {OR}"),
        (None, f"To continue, start a run with the run id r3, {OR}"),
    ],
)
def test_the_message_of_a_waiting_task_names_the_command_that_fits_the_state_of_the_run(
    state: str | None, text: str
) -> None:
    assert str(advice("numbers", 3, "r3", state)) == text


def test_the_remedy_of_a_refused_commit_is_stored_until_an_attempt_has_the_turn_again(
    make: Any, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("r1")
    run.begin()
    run.work()
    refusal = StateMissing(txid=1, states="totals")
    commit = run.commit()
    with monkeypatch.context() as broken:
        broken.setattr(MemoryState, "raise_and_write", raising(refusal))
        with pytest.raises(AirflowFailException) as raised, final_errors():
            commit_in_turn(commit, store, patience=0)
    failed(run, commit, raised.value)
    assert found(store).remedy == refusal.advice
    with monkeypatch.context() as broken:
        broken.setattr(MemoryState, "raise_and_write", raising(AWAY))
        again = run.commit()
        with pytest.raises(StateUnavailable):
            commit_in_turn(again, store, patience=0)
    assert (found(store).error, found(store).remedy) == (None, None)


def test_a_refusal_that_no_replay_can_fix_is_recorded_as_permanent_with_its_message(
    make: Any, store: CountingStore, state: MemoryState
) -> None:
    run = make("r1")
    run.begin()
    run.work()
    state.database.fence = Fence("another ledger", Token(1, 1, 1, 1, "nonce"), applied=True)
    context = context_of(run)
    with pytest.raises(AirflowFailException) as refused, final_errors():
        with connected(Commit, context, run.updates, run.log) as commit:
            commit_in_turn(commit, store, patience=0)
    context["exception"] = refused.value
    note_commit_failure(context)
    noted = found(store)
    assert (Remedy.behind(noted.error, noted.remedy), noted.for_good) == (str(refused.value), 1)
    assert str(refused.value).startswith("State 'words' refused: its fence belongs to ledger another ledger")


def test_only_the_newest_try_records_a_failed_commit_in_the_ledger(
    make: Any, store: CountingStore, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("r1")
    run.begin()
    run.work()
    older, newer = run.commit(), run.commit()
    for commit in (older, newer):
        with monkeypatch.context() as away:
            away.setattr(MemoryState, "raise_and_write", raising(AWAY))
            with pytest.raises(StateUnavailable):
                commit_in_turn(commit, store, patience=0)
        assert found(store).error is None
    failed(run, older, AWAY)
    assert (found(store).error, found(store).failures) == (None, 0)
    failed(run, newer, AWAY)
    assert found(store).phase is Phase.COMMITTING
    assert found(store).failures == 1
    assert found(store).said.startswith("task commit: StateUnavailable: State 'words'")

    assert run.commit_now() is None
    assert counts(state) == {"count": 10}


def raising(error: Exception) -> Any:
    def fail(*arguments: Any) -> None:
        raise error

    return fail


class Forgetful(Numbers):
    """A source that notes what it may forget."""

    def __init__(self) -> None:
        self.cleaned: list[int] = []

    def cleanup_before(self, txid: int) -> None:
        self.cleaned.append(txid)


def test_a_later_commit_deletes_staged_data_and_source_data_of_runs_that_have_ended(make: Any) -> None:
    source = Forgetful()
    runs = [make(f"r{number}", source=source) for number in range(1, 5)]
    left = []
    for number, run in enumerate(runs, start=1):
        run.begin()
        processing = run.start()
        area, where = processing.staging, processing.staging.try_dir("numbers", processing.attempt, processing.task)
        area.files.write(where.child("rows"), b"")
        run.work()
        # The second run has a task beside its block that takes its time.
        run.committer.runs = {f"r{ended}": "success" for ended in range(1, number) if ended != 2 or number == 4}
        assert run.commit_now() is None
        left.append(sorted(area.files.list("numbers")))
    assert left == [["1"], ["2"], ["2", "3"], ["4"]]
    assert source.cleaned == [1, 2, 2, 4]


def test_a_later_commit_deletes_staged_data_of_runs_that_are_no_longer_in_the_history(
    make: Any, store: CountingStore
) -> None:
    first, second = make("r1"), make("r2")
    for run in (first, second):
        run.begin()
        processing = run.start()
        area, where = processing.staging, processing.staging.try_dir("numbers", processing.attempt, processing.task)
        area.files.write(where.child("rows"), b"")
        run.work()
    first.commit_now()
    store.multi([], [Delete(first.spec.paths.history(1))])
    second.commit_now()
    assert sorted(area.files.list("numbers")) == ["2"]
    assert not [line for line in second.log.lines if "its temporary data could not be deleted" in line]


# --- what the source learns


def test_the_source_is_notified_of_a_commit_at_least_once(make: Any, state: MemoryState) -> None:
    broker = Broker()
    run = make("r1", source=broker)
    run.begin()
    run.work()
    broker.away = True
    with pytest.raises(
        SourceError, match=r"transaction 1 is committed, but committed\(\) of the source failed: .* the broker is away"
    ):
        run.commit_now()
    assert counts(state) == {"count": 10}
    broker.away = False
    for _ in range(2):
        assert run.commit_now() is None
    assert broker.learned == [(1, [0, 10])] * 2
    assert counts(state) == {"count": 10}


def test_a_failed_notification_of_the_source_does_not_block_other_transactions(make: Any) -> None:
    broker = Broker()
    first, second = make("r1", source=broker), make("r2")
    for run in (first, second):
        run.begin()
        run.work()
    broker.away = True
    for _ in range(2):
        with pytest.raises(SourceError):
            first.commit_now()
    assert second.commit_now() is None


def test_the_source_is_notified_of_a_failed_task(make: Any) -> None:
    broker = Broker()
    run = make("r1", source=broker)
    run.begin()
    run.start().fail("task count: ValueError: no")
    assert broker.learned == [(1, [0, 10], "task count: ValueError: no")]
    broker.away = True
    run.begin()
    run.start().fail("task count: ValueError: no")
    assert run.begin().attempt.attempt == 3


class OpaqueBroker(Broker):
    """Gives a replay the rows after those that it has learned to have failed."""

    kind = SourceKind.OPAQUE

    def initialize_transaction(self, txid: int, position: Any) -> Batch:
        first = 10 * len(self.learned)
        return Batch([first, first + 10], first + 10)


@pytest.mark.parametrize("kind", [Broker, OpaqueBroker], ids=["transactional", "opaque"])
def test_the_source_is_notified_of_a_stopped_attempt_before_the_next_attempt_begins(
    make: Any, store: CountingStore, monkeypatch: pytest.MonkeyPatch, kind: type[Broker]
) -> None:
    broker = kind()
    run = make("r1", source=broker)
    run.begin()
    run.start()  # and its worker is lost
    assert broker.learned == []
    stopped = (1, [0, 10], "its run was cleared")
    with monkeypatch.context() as patched:
        patched.setattr(store, "multi", away)
        with pytest.raises(StoreUnavailable):
            run.begin()
    assert broker.learned == [stopped]
    again = run.begin()
    assert broker.learned == [stopped] * 2
    assert again.metadata == ([20, 30] if isinstance(broker, OpaqueBroker) else [0, 10])
    run.work()
    run.commit_now()
    assert broker.learned[2:] == [(1, again.metadata)]


def away(*_: Any) -> None:
    raise StoreUnavailable(hosts="somewhere", connection="c", reason="refused")


def test_the_source_is_notified_of_the_reason_why_the_coordinator_replays_an_attempt(
    make: Any, store: CountingStore
) -> None:
    broker = Broker()
    run = make("r1", source=broker)
    begun = run.begin()
    wanted = recovery.ReplayRequest(begun.attempt, "its run was deleted", counts=True, limit=3)
    run.spec.ledger(store).run(recovery.note_replay, wanted)
    run.begin()
    assert broker.learned == [(1, [0, 10], "its run was deleted")]


def test_a_retried_begin_that_continues_its_attempt_does_not_notify_the_source(make: Any) -> None:
    broker = Broker()
    run = make("r1", source=broker)
    run.begin()
    again: Any = ask(run.spec, FakeTi(run.spec.begin, "r1"), run_of("r1"), retry=True)
    assert (again.attempt.attempt, broker.learned) == (1, [])


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_the_error_names_a_mapped_instance_that_failed_after_its_ack_and_blocks_the_commit(
    make: Any, state: MemoryState, index: int
) -> None:
    run = make("r1", mapped=() if index < 0 else ("count",))
    run.begin()
    run.work(index=index)
    run.committer.states["count" if index < 0 else f"count_{index}"] = "failed"
    with pytest.raises(IncompleteBatch, match="count" if index < 0 else rf"count\[{index}\]"):
        run.commit_now()
    assert counts(state) == {}


def test_a_committer_reads_the_epoch_of_the_acked_output_before_its_grant(make: Any, store: CountingStore) -> None:
    run = make("r1")
    run.begin()
    run.work()
    committer = run.commit()
    assert committer.epoch is None
    committer.complete()
    assert committer.epoch == found(store).epoch


def test_a_committer_notices_that_another_committer_has_committed_its_transaction(
    make: Any, state: MemoryState
) -> None:
    run = make("r1")
    run.begin()
    run.work()
    slow = run.commit()
    assert slow.complete() is Completion.READY
    slow.prepare()
    run.commit_now()
    assert slow.try_to_commit() is True
    assert run.log.lines[-1] == "Transaction 1 of numbers is already committed: nothing to do"
    assert counts(state) == {"count": 10}


@pytest.mark.parametrize("empty", [True, False])
def test_a_task_without_output_is_accepted_only_if_the_batch_has_no_rows(
    make: Any, state: MemoryState, empty: bool
) -> None:
    run = make("r1")
    begun = run.begin()
    run.start().ack([])
    run.committer.states["count"] = "success"
    run.begun = replace(begun, metadata=None) if empty else begun
    if empty:
        assert run.commit_now() is None
    else:
        with pytest.raises(StagingError, match="the task returned nothing"):
            run.commit_now()
    assert counts(state) == {}


def test_the_row_count_of_a_batch_is_the_count_of_the_task_that_has_read_the_most_rows(
    make: Any, store: CountingStore
) -> None:
    run = make("r1", tasks=("count", "other"), inside=("count", "other", "commit"))
    run.begin()
    for task, consumed in (("count", 7), ("other", 3)):
        processing = run.start(task)
        processing.ack(returned([], multiple=False), consumed)
        run.committer.xcoms[task, "return_value", -1] = []
        run.committer.states[task] = "success"
    run.commit_now()
    node = store.get(run.spec.paths.history(1))
    assert node is not None
    history = decode(TransactionRecord, "", node.data)
    assert history.rows == 7
    assert history.receipt is not None
    assert history.receipt.rows == 7


def test_a_committer_after_a_skipped_task_is_skipped_until_its_transaction_is_committed(
    make: Any, state: MemoryState
) -> None:
    run = make("r1", needed=frozenset({"count"}))
    run.begin()
    run.work()
    run.committer.states["count"] = "skipped"
    with (
        pytest.raises(AirflowSkipException, match=r"Transaction 1\.1 is not committed: count was skipped"),
        final_errors(),
    ):
        run.commit_now()
    assert counts(state) == {}
    run.committer.states["count"] = "success"
    assert run.commit_now() is None
    run.committer.states["count"] = "skipped"  # its run was cleared
    assert run.commit_now() is None
    assert counts(state) == {"count": 10}


def test_the_rows_of_a_committed_batch_can_be_read_while_the_ledger_still_has_its_metadata(
    make: Any, store: CountingStore
) -> None:
    run = make("r1")
    begun = run.begin()
    run.work()
    run.commit_now()
    batch = committed_batch(run.spec, 1)
    assert batch == {"topology": "numbers", **begun.to_json(), "replay": True, "committed": True}
    store.multi([], [Delete(run.spec.paths.history(1))])
    forgotten = committed_batch(run.spec, 1)
    assert (forgotten["txid"], forgotten["attempt"]) == (1, 0)
    processing = Processing(run.spec, Begun.from_json(forgotten), TaskTry("notify", -1, "1"), anchored=False)
    with pytest.raises(RowsNotKept, match="The ledger no longer has the rows of committed transaction 1 of numbers"):
        CurrentBatch(processing).read()
    run.begun = Begun.from_json(forgotten)
    assert run.commit_now() is None  # the committer of such a run has nothing to do
