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

    def test_a_deleted_run_is_started_again_under_its_name_and_goes_on(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        again = Run(topology, "r1")
        assert again.whole(1, {"a": 1}).attempt.attempt == 2
        assert topology.totals() == {"a": 1}

    def test_a_run_marked_success_before_its_commit_is_replayed_and_counts_once(self, topology: Topology) -> None:
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

    def test_another_run_of_the_same_key_takes_over_only_from_one_that_is_over(self, topology: Topology) -> None:
        first, other = Run(topology, "r1", key="2024-01-01"), Run(topology, "r2", key="2024-01-01")
        first.begin(1)
        request = BeginRequest(topology.request, other.key, other.run_id, topology.ids.task_try(), False, {})
        with pytest.raises(RunHeld, match="belongs to run r1, which is running"):
            topology.ledger().begin(request, Outside(decide=decides(1), run_state=lambda run_id: "running"))
        record = topology.record(1)
        assert record is not None
        assert (record.run_id, record.attempt) == ("r1", 1)
        assert other.whole(1, {"a": 1}).attempt.attempt == 2

    def test_tasks_cleared_after_the_commit_of_an_allocated_run_change_nothing(self, topology: Topology) -> None:
        begun = topology.allocate(1)
        run = Run(topology, begun.run_id)
        run.whole(9, {"a": 1})
        assert run.start().started == AlreadyCommitted(1)
        assert run.begin(9) == AlreadyCommitted(1)
        assert topology.totals() == {"a": 1}


class TestTrace7:
    """A store went back."""

    def test_a_state_that_kept_the_raise_of_a_committed_transaction_and_lost_its_updates_is_refused(
        self, topology: Topology
    ) -> None:
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
        with pytest.raises(StateBehind, match="without all of its updates"):
            later.raise_fences()


class TestReplaysAreNoted:
    """Of all who find an attempt that ended, one starts its run."""

    def test_the_second_who_finds_it_lets_it_be(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        assert topology.note_replay(1, 1) == ReplayNoted(True, 1)
        assert topology.note_replay(1, 1) == ReplayNoted(False, 1)

    def test_failures_in_a_row_are_counted_and_then_a_person_has_to_look(self, topology: Topology) -> None:
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

    def test_what_is_no_failure_is_not_counted(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        assert topology.note_replay(1, 1, limit=1) == ReplayNoted(True, 1)
        run.begin(1)
        for number in (2, 3, 4):
            assert topology.note_replay(1, number, counts=False, limit=1) == ReplayNoted(True, 1)
            run.begin(1)
        assert isinstance(topology.note_replay(1, 5, limit=1), Blocked)

    def test_after_a_replay_by_a_person_counting_begins_again(self, topology: Topology) -> None:
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
    def test_a_blocked_one_that_becomes_final_blocks_no_longer(self, topology: Topology, way: str) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        assert topology.note_replay(1, 1, limit=0) == Blocked(1, "its run failed")
        if way == "skip":
            topology.skip(1)
        else:
            run.process({})
            run.commit()
        assert topology.topology.blocked is None

    def test_of_two_that_are_blocked_the_first_is_shown(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        Run(topology, "r2").begin(1)
        for txid in (2, 1, 2, 1):
            topology.note_replay(txid, 1, limit=0)
        written = topology.store().get(topology.paths.record).version
        topology.note_replay(2, 1, limit=0)
        assert topology.store().get(topology.paths.record).version == written
        assert topology.topology.is_blocked(1)

    def test_one_that_noted_it_and_died_does_not_hold_it_up_for_ever(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        topology.note_replay(1, 1)
        before = topology.clock.advance(60)
        assert topology.note_replay(1, 1, overdue=before) == ReplayNoted(False, 1)
        topology.clock.advance(60)
        overdue = topology.clock.advance(0)
        assert topology.note_replay(1, 1, overdue=overdue) == ReplayNoted(True, 2)
        assert topology.note_replay(1, 1, overdue=overdue) == ReplayNoted(False, 2)

    def test_a_run_that_always_ends_before_its_begin_is_blocked_in_the_end(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        answers = []
        for _ in range(4):
            topology.clock.advance(60)
            answers.append(topology.note_replay(1, 1, overdue=topology.clock.advance(0)))
        assert answers[:3] == [ReplayNoted(True, count) for count in (1, 2, 3)]
        assert answers[3] == Blocked(1, "its run failed")

    def test_what_is_over_or_was_begun_again_is_not_replayed(self, topology: Topology) -> None:
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

    def test_the_run_goes_on_with_its_first_attempt_and_the_same_rows(self, topology: Topology) -> None:
        begun = topology.allocate(2)
        assert (begun.run_id, begun.metadata) == ("tx-1", [0, 2])
        run = Run(topology, "tx-1")
        again = run.begin(99)
        assert (again.attempt, again.metadata, again.position, again.replay) == (begun.attempt, [0, 2], 2, False)
        assert again.rows_digest == begun.rows_digest
        run.process({"a": 2})
        run.commit()
        assert topology.totals() == {"a": 2}

    def test_its_begin_said_twice_is_one_and_a_cleared_one_is_the_next_attempt(self, topology: Topology) -> None:
        topology.allocate(2)
        run, own = Run(topology, "tx-1"), topology.ids.task_try()
        assert run.begin(99, task_try=own) == run.begin(99, task_try=own)
        assert run.begin(1).attempt.attempt == 2

    def test_two_coordinators_at_once_get_each_number_once(self, topology: Topology) -> None:
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

    def test_a_name_that_a_run_started_by_hand_has_is_left_to_it(self, topology: Topology) -> None:
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

    def test_without_rows_or_room_nothing_is_allocated(self, store: Callable[[], Any], root: str) -> None:
        topology = Topology(store, root, [counts("s0")], max_pending=2)
        assert topology.allocate(0) == NoData(1)
        topology.allocate(1)
        topology.allocate(1)
        assert topology.allocate(1) == WindowFull(1, 2, 2)
        assert topology.allocated == 2

    def test_one_whose_coordinator_died_before_it_started_the_run_is_replayed_and_counts_from_its_begin(
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

    def test_one_that_is_skipped_before_its_run_begins_is_not_begun(self, topology: Topology) -> None:
        topology.allocate(1)
        topology.skip(1)
        run = Run(topology, "tx-1")
        with pytest.raises(SkippedTransaction):
            run.begin(1)
        topology.readmit(1)
        assert run.whole(9, {"a": 1}).metadata == [0, 1]
        assert topology.allocate(1).run_id == "tx-3"

    def test_one_whose_predecessor_moved_before_its_run_begins_is_refused_at_its_turn(self, topology: Topology) -> None:
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

    def test_the_example_row_for_row(self, topology: Topology) -> None:
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
    def test_replays_saved_against_storms_rule(self, topology: Topology, moves: bool) -> None:
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

    def test_a_chain_is_broken_only_up_to_where_it_meets_again(self, topology: Topology) -> None:
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

    def test_a_transactional_replay_breaks_nothing(self, transactional: Topology) -> None:
        first, second = Run(transactional, "r1"), Run(transactional, "r2")
        first.begin(2)
        second.begin(2)
        first.start().fail("on purpose")
        assert first.begin(1).metadata == [0, 2]
        assert transactional.broken() == []

    def test_a_phase_is_no_matter_of_the_chain(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(2)
        second.begin(2)
        second.start().fail("on purpose")
        assert topology.phase(2) is Phase.FAILED
        assert topology.broken() == []
