"""Replays, allocation ahead of a run and the chain of batches, on the real code (TRACES.md: 12; protocol.md §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import RunHeld, SkippedTransaction, StaleAttempt, StaleBatch, StateBehind
from airflow_tx.ledger.answers import AlreadyCommitted, Begun, Blocked, NoData, ReplayNoted, WindowFull
from airflow_tx.ledger.batch import BeginRequest, Outside
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps import recovery
from airflow_tx.state import MemoryState
from tests.model.conftest import counts
from tests.model.driver import Run, Topology, decides


class TestTrace12:
    """A run is gone while its transaction is open."""

    def test_a_deleted_run_that_starts_again_with_its_run_id_continues_its_transaction(
        self, topology: Topology
    ) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        again = Run(topology, "r1")
        assert again.whole(1, {"a": 1}).attempt.attempt == 2
        assert topology.totals() == {"a": 1}

    def test_a_run_that_was_set_to_success_before_its_commit_is_replayed_and_counts_once(
        self, topology: Topology
    ) -> None:
        run, second = Run(topology, "r1"), Run(topology, "r2")
        run.begin(1)
        run.process({"a": 1})
        run.written()
        second.begin(1)
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        run.whole(1, {"a": 1})
        second.process({"a": 1})
        second.commit()
        assert topology.totals() == {"a": 2}

    def test_another_run_with_the_same_key_takes_over_only_if_the_first_run_has_ended(self, topology: Topology) -> None:
        first, other = Run(topology, "r1", key="2024-01-01"), Run(topology, "r2", key="2024-01-01")
        first.begin(1)
        request = BeginRequest(topology.request, other.key, other.run_id, topology.ids.task_try(), False, {})
        with pytest.raises(RunHeld, match="belongs to run r1, which is running"):
            topology.ledger().begin(request, Outside(decide=decides(1), run_state=lambda run_id: "running"))
        record = topology.record(1)
        assert record is not None
        assert (record.run_id, record.attempt) == ("r1", 1)
        assert other.whole(1, {"a": 1}).attempt.attempt == 2

    def test_clearing_tasks_after_the_commit_of_a_coordinated_run_changes_no_total(self, topology: Topology) -> None:
        begun = topology.allocate(1)
        run = Run(topology, begun.run_id)
        run.whole(9, {"a": 1})
        assert run.start().started == AlreadyCommitted(1)
        assert run.begin(9) == AlreadyCommitted(1)
        assert topology.totals() == {"a": 1}


class TestTrace7:
    """A store went back."""

    def test_a_state_that_kept_a_raised_fence_but_lost_the_update_is_refused(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(1)
        first.process({"a": 1})
        committer = first.committer()
        committer.acquire()
        committer.raise_fences()
        states = [state for state in topology.states if isinstance(state, MemoryState)]
        kept = [state.database.snapshot() for state in states]
        committer.write()
        committer.mark()
        for state, snapshot in zip(states, kept, strict=True):
            state.database.restore(snapshot)
        second.begin(1)
        second.process({"a": 1})
        later = second.committer()
        later.acquire()
        with pytest.raises(StateBehind, match="some of its updates are missing"):
            later.raise_fences()


class TestReplaysAreNoted:
    """Of all who find an attempt that ended, one starts its run."""

    def test_a_replay_is_not_noted_twice_for_the_same_attempt(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        assert topology.note_replay(1, 1) == ReplayNoted(False, 1)

    def test_a_transaction_is_blocked_after_too_many_consecutive_failures(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        for number in (1, 2, 3):
            run.start().fail("it broke")
            assert topology.note_replay(1, number) == ReplayNoted(True, number)
            run.begin(1)
        assert topology.note_replay(1, 4) == Blocked(1, "its run failed")
        assert topology.note_replay(1, 4) == Blocked(1, "its run failed")
        blocked = topology.topology.blocked
        assert blocked is not None
        assert (blocked.txid, blocked.attempt) == (1, 4)

    def test_a_replay_without_a_failure_does_not_count_towards_the_limit(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        assert topology.note_replay(1, 1, limit=1) == ReplayNoted(True, 1)
        run.begin(1)
        for number in (2, 3, 4):
            assert topology.note_replay(1, number, counts=False, limit=1) == ReplayNoted(True, 1)
            run.begin(1)
        assert isinstance(topology.note_replay(1, 5, limit=1), Blocked)

    def test_a_replay_by_a_person_resets_the_count_of_failures(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        topology.note_replay(1, 1, limit=1)
        run.begin(1)
        assert isinstance(topology.note_replay(1, 2, limit=1), Blocked)
        topology.ledger().run(recovery.unblock)
        assert topology.topology.blocked is not None
        run.begin(1)
        topology.ledger().run(recovery.unblock)
        topology.ledger().run(recovery.unblock)
        assert topology.topology.blocked is None
        assert topology.note_replay(1, 3, limit=1) == ReplayNoted(True, 1)

    @pytest.mark.parametrize("way", ["commit", "skip"])
    def test_a_blocked_transaction_is_unblocked_when_it_becomes_final(self, topology: Topology, way: str) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        assert topology.note_replay(1, 1, limit=0) == Blocked(1, "its run failed")
        if way == "skip":
            topology.skip(1)
        else:
            run.process({})
            run.commit()
        assert topology.topology.blocked is None

    def test_only_the_first_of_two_blocked_transactions_is_shown(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        Run(topology, "r2").begin(1)
        for txid in (2, 1, 2, 1):
            topology.note_replay(txid, 1, limit=0)
        written = topology.store().get(topology.paths.record).version
        topology.note_replay(2, 1, limit=0)
        assert topology.store().get(topology.paths.record).version == written
        assert topology.topology.is_blocked(1)

    def test_a_replay_is_noted_again_if_the_coordinator_died_before_it_restarted_the_run(
        self, topology: Topology
    ) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        topology.note_replay(1, 1)
        before = topology.clock.advance(60)
        assert topology.note_replay(1, 1, overdue=before) == ReplayNoted(False, 1)
        topology.clock.advance(60)
        overdue = topology.clock.advance(0)
        assert topology.note_replay(1, 1, overdue=overdue) == ReplayNoted(True, 2)
        assert topology.note_replay(1, 1, overdue=overdue) == ReplayNoted(False, 2)

    def test_a_run_that_repeatedly_ends_before_begin_is_blocked_after_several_replays(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        answers = []
        for _ in range(4):
            topology.clock.advance(60)
            answers.append(topology.note_replay(1, 1, overdue=topology.clock.advance(0)))
        assert answers[:3] == [ReplayNoted(True, count) for count in (1, 2, 3)]
        assert answers[3] == Blocked(1, "its run failed")

    def test_a_replay_of_a_final_transaction_or_of_an_older_attempt_is_refused(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        run.begin(1)
        with pytest.raises(StaleAttempt):
            topology.note_replay(1, 1)
        run.process({})
        run.commit()
        assert topology.note_replay(1, 2) == AlreadyCommitted(1)


class TestAllocationAhead:
    """The coordinator allocates, and starts a run by the name that the ledger gave it."""

    def test_the_run_of_an_allocated_transaction_begins_its_first_attempt_with_the_same_rows(
        self, topology: Topology
    ) -> None:
        begun = topology.allocate(2)
        assert (begun.run_id, begun.metadata) == ("tx-1", [0, 2])
        run = Run(topology, "tx-1")
        again = run.begin(99)
        assert (again.attempt, again.metadata, again.position, again.replay) == (begun.attempt, [0, 2], 2, False)
        assert again.rows_digest == begun.rows_digest
        run.process({"a": 2})
        run.commit()
        assert topology.totals() == {"a": 2}

    def test_a_retried_begin_keeps_its_attempt_and_a_cleared_begin_starts_the_next_attempt(
        self, topology: Topology
    ) -> None:
        topology.allocate(2)
        run, own = Run(topology, "tx-1"), topology.ids.task_try()
        assert run.begin(99, task_try=own) == run.begin(99, task_try=own)
        assert run.begin(1).attempt.attempt == 2

    def test_two_simultaneous_coordinators_allocate_each_txid_once(self, topology: Topology) -> None:
        topology.ledger().open(topology.request)
        one, store = topology.ledger(), topology.store
        found: list[Any] = []

        class Late:
            def __getattr__(self, name: str) -> Any:
                return getattr(store(), name)

            def multi(self, requirements: Any, writes: Any) -> None:
                if not found and writes:
                    found.append(topology.allocate(1))
                store().multi(requirements, writes)

        one.store = Late()
        request = BeginRequest(topology.request, None, "", "", False, {})
        answer = one.begin(request, Outside(decide=decides(1), run_state=lambda run_id: None))
        assert isinstance(answer, Begun)
        assert [(begun.attempt.txid, begun.run_id, begun.metadata) for begun in (*found, answer)] == [
            (1, "tx-1", [0, 1]),
            (2, "tx-2", [1, 2]),
        ]

    def test_an_allocated_run_does_not_get_the_run_id_of_a_manual_run(self, topology: Topology) -> None:
        by_hand, other = Run(topology, "tx-3"), Run(topology, "tx-3-2")
        by_hand.begin(1)
        other.begin(1)
        begun = topology.allocate(1)
        assert (begun.attempt.txid, begun.run_id) == (3, "tx-3-3")
        assert Run(topology, "tx-3-3").begin(9).metadata == [2, 3]
        by_hand.process({})
        by_hand.commit()
        assert by_hand.begin(9) == AlreadyCommitted(1)
        assert topology.allocate(1).run_id == "tx-4"

    def test_no_transaction_is_allocated_if_there_are_no_rows_or_the_window_is_full(
        self, store: Callable[[], Any], root: str
    ) -> None:
        topology = Topology(store, root, [counts("s0")], max_pending=2)
        assert topology.allocate(0) == NoData(1)
        topology.allocate(1)
        topology.allocate(1)
        assert topology.allocate(1) == WindowFull(1, 2, 2)
        assert topology.allocated == 2

    def test_an_allocated_transaction_whose_coordinator_died_is_replayed_in_its_first_attempt(
        self, topology: Topology
    ) -> None:
        topology.allocate(1)
        topology.clock.advance(3600)
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        run = Run(topology, "tx-1")
        assert run.begin(9).attempt.attempt == 1
        record = topology.record(1)
        assert record is not None
        assert record.began > record.created
        run.start().fail("it broke")
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        assert run.begin(1).attempt.attempt == 2

    def test_the_run_of_an_allocated_transaction_is_refused_if_the_transaction_was_skipped(
        self, topology: Topology
    ) -> None:
        topology.allocate(1)
        topology.skip(1)
        run = Run(topology, "tx-1")
        with pytest.raises(SkippedTransaction):
            run.begin(1)
        topology.readmit(1)
        assert run.whole(9, {"a": 1}).metadata == [0, 1]
        assert topology.allocate(1).run_id == "tx-3"

    def test_an_allocated_transaction_is_refused_at_its_turn_if_its_predecessor_moved(self, topology: Topology) -> None:
        first = Run(topology, "r1")
        first.begin(2)
        topology.allocate(1)
        first.whole(1)
        second = Run(topology, "tx-2")
        assert second.begin(1).metadata == [2, 3]
        assert topology.broken() == [2]
        second.process({})
        with pytest.raises(StaleBatch):
            second.commit()
        assert second.begin(1).metadata == [1, 2]


class TestChain:
    """Which open transactions a replay makes worthless: those that start elsewhere than it ends now, and no others."""

    def test_replays_of_the_example_in_the_documentation_take_the_documented_rows(self, topology: Topology) -> None:
        Run(topology, "r0").whole(1)
        first, second, third = (Run(topology, name) for name in ("r1", "r2", "r3"))
        rows = [run.begin(50).metadata for run in (first, second, third)]
        assert rows == [[1, 51], [51, 101], [101, 151]]
        first.start().fail("rows from 41 on are damaged")
        assert topology.broken() == []
        assert first.begin(40).metadata == [1, 41]
        assert topology.broken() == [3]
        assert second.begin(50).metadata == [41, 91]
        assert topology.broken() == [4]
        assert third.begin(50).metadata == [91, 141]
        assert topology.broken() == []
        for run in (first, second, third):
            run.process({})
            run.commit()
        assert topology.position(4) == 141

    @pytest.mark.parametrize("moves", [False, True], ids=["where it ended", "elsewhere"])
    def test_only_batches_whose_start_position_moved_are_replayed_after_a_failure(
        self, topology: Topology, moves: bool
    ) -> None:
        """Storm replays all later ones when one fails: 5 of 5. Here none, unless the batch ends elsewhere."""
        runs = [Run(topology, f"r{number}") for number in range(6)]
        for run in runs:
            run.begin(2)
            run.process({"a": 2})
        runs[0].start().fail("on purpose")
        runs[0].begin(1 if moves else 2)
        runs[0].process({"a": 1 if moves else 2})
        replays = 0
        while broken := topology.broken():
            assert len(broken) == 1
            runs[broken[0] - 1].begin(2)
            runs[broken[0] - 1].process({"a": 2})
            replays += 1
        assert replays == (5 if moves else 0)
        for run in runs:
            run.commit()
        assert topology.totals() == {"a": 11 if moves else 12}

    def test_a_batch_that_ends_at_the_old_position_makes_no_later_batch_stale(self, topology: Topology) -> None:
        """The second batch takes the row that the first one gave up, so the third starts where it did."""
        runs = [Run(topology, f"r{number}") for number in range(3)]
        for run in runs:
            run.begin(2)
        runs[0].begin(1)
        assert topology.broken() == [2]
        runs[1].begin(3)
        assert topology.broken() == []
        for run in runs:
            run.process({})
            run.commit()
        assert topology.position(3) == 6

    def test_a_transactional_replay_makes_no_later_batch_stale(self, transactional: Topology) -> None:
        first, second = Run(transactional, "r1"), Run(transactional, "r2")
        first.begin(2)
        second.begin(2)
        first.start().fail("on purpose")
        assert first.begin(1).metadata == [0, 2]
        assert transactional.broken() == []

    def test_a_failed_transaction_makes_no_batch_stale(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(2)
        second.begin(2)
        second.start().fail("on purpose")
        assert topology.phase(2) is Phase.FAILED
        assert topology.broken() == []
