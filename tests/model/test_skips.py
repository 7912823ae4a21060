"""Skip, withdrawal and re-admission, on the real code (TRACES.md: 2, 3, 5, 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import (
    AlreadyFinal,
    FailedTransaction,
    FenceOutranked,
    NotSkipped,
    Outranked,
    SkippedTransaction,
    SkipRefused,
    StaleBatch,
    StateMissing,
    UnknownTransaction,
)
from airflow_tx.ledger.answers import AlreadyCommitted, AlreadySkipped, Committed, Done, NotYet, ToBeSkipped
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps import end
from tests.model.conftest import counts
from tests.model.driver import Run, Skipper, Topology


class TestTrace2:
    """A granted transaction that wrote is skipped."""

    def test_a_skip_rolls_back_a_granted_transaction_and_the_next_one_commits(self, topology: Topology) -> None:
        Run(topology, "r1").whole(1, {"a": 1})
        second, third = Run(topology, "r2"), Run(topology, "r3")
        second.processed(2, {"a": 1, "b": 1})
        second.written()
        second.start().fail("disk full")
        topology.skip(2)
        assert topology.totals() == {"a": 1}
        assert topology.position(2) == 3
        third.whole(1, {"b": 1})
        assert topology.totals() == {"a": 1, "b": 1}

    def test_the_committer_of_a_skipped_transaction_cannot_write_and_cannot_commit(self, two_states: Topology) -> None:
        first, second = Run(two_states, "r1"), Run(two_states, "r2")
        first.processed(2, {"a": 1, "b": 1})
        living = first.written()
        two_states.skip(1)
        for state in (0, 1):
            with pytest.raises(FenceOutranked):
                living.write(state)
        with pytest.raises(Outranked):
            living.mark()
        second.whole(1, {"b": 5})
        assert two_states.totals() == {"b": 5}

    def test_a_skip_rolls_back_a_cleared_transaction_and_refuses_its_new_committer(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.processed(2, {"a": 1, "b": 1})
        run.written()
        run.begin(2)
        topology.note_skip(1)
        run.process({"a": 2})
        committer = run.committer()
        committer.processed()
        assert committer.ask() == ToBeSkipped(1)
        assert topology.take_skip(1) == Committed(1, by_this_call=True)
        assert topology.totals() == {}
        with pytest.raises(SkippedTransaction):
            committer.ask()

    def test_a_skip_of_a_granted_transaction_is_refused_if_the_state_is_transactional(
        self, transactional: Topology
    ) -> None:
        run = Run(transactional, "r1")
        run.processed(1, {"a": 1})
        run.written()
        transactional.note_skip(1)
        with pytest.raises(SkipRefused, match="state s0 already, which cannot undo"):
            transactional.take_skip(1)
        assert transactional.phase(1) is Phase.COMMITTING
        transactional.ledger().run(end.withdraw_skip, 1)
        run.whole(1, {"a": 1})
        assert transactional.totals() == {"a": 1}

    def test_a_transaction_without_a_grant_can_be_skipped_in_a_transactional_state(
        self, transactional: Topology
    ) -> None:
        first, second = Run(transactional, "r1"), Run(transactional, "r2")
        first.processed(1, {"a": 1})
        transactional.skip(1)
        second.whole(1, {"a": 5})
        assert transactional.totals() == {"a": 5}

    def test_a_state_that_may_hold_the_transaction_cannot_be_removed_before_the_skip(
        self, store: Callable[[], Any], root: str
    ) -> None:
        two = Topology(store, root, [counts("s0"), counts("s1")])
        run = Run(two, "r1")
        run.processed(2, {"a": 1, "b": 1})
        run.written()
        two.note_skip(1)
        two.states = two.states[:1]
        with pytest.raises(StateMissing, match="s1"):
            two.take_skip(1)


class TestTrace3:
    """A skipped batch comes back later."""

    def test_a_readmission_takes_its_rows_once_and_moves_no_other_position(self, topology: Topology) -> None:
        first = Run(topology, "r1")
        first.begin(1)
        topology.skip(1)
        assert Run(topology, "r2").whole(1, {"a": 1}).metadata == [1, 2]
        topology.readmit(1)
        again = first.whole(99, {"a": 10})
        assert (again.attempt.txid, again.metadata, again.position, again.replay) == (3, [0, 1], 2, False)
        assert Run(topology, "r4").whole(1, {"a": 100}).metadata == [2, 3]
        assert topology.totals() == {"a": 111}

    def test_no_row_is_lost_if_a_readmission_fails_and_its_predecessor_moves(self, topology: Topology) -> None:
        first, second, fourth = Run(topology, "r1"), Run(topology, "r2"), Run(topology, "r4")
        first.begin(1)
        topology.skip(1)
        second.begin(3)
        topology.readmit(1)
        first.begin(99)
        assert fourth.begin(1).metadata == [4, 5]
        first.start().fail("again")
        assert second.begin(2).metadata == [1, 3]
        second.process({"a": 2})
        second.commit()
        assert topology.broken() == [3]
        replayed = first.begin(99)
        assert (replayed.attempt.attempt, replayed.metadata, replayed.position) == (2, [0, 1], 3)
        assert topology.broken() == [4]
        first.process({"b": 1})
        first.commit()
        fourth.process({})
        with pytest.raises(StaleBatch):
            fourth.commit()
        assert fourth.begin(1).metadata == [3, 4]

    def test_a_readmission_of_a_transactional_batch_has_the_same_rows(self, transactional: Topology) -> None:
        first = Run(transactional, "r1")
        first.begin(2)
        transactional.skip(1)
        Run(transactional, "r2").whole(1, {"a": 1})
        transactional.readmit(1)
        assert first.begin(9).metadata == [0, 2]
        assert first.begin(9).metadata == [0, 2]
        first.process({"a": 2})
        first.commit()
        assert Run(transactional, "r3").begin(1).metadata == [3, 4]

    def test_a_second_readmission_changes_nothing_before_its_begin_and_is_refused_afterwards(
        self, topology: Topology
    ) -> None:
        first = Run(topology, "r1")
        first.begin(1)
        topology.skip(1)
        assert topology.readmit(1) == Done()
        assert topology.readmit(1) == Done()
        first.begin(1)
        with pytest.raises(NotSkipped, match="re-admitted as 2"):
            topology.readmit(1)
        first.process({"a": 1})
        first.commit()
        assert first.begin(1) == AlreadyCommitted(2)
        told = topology.history(1)
        assert told is not None
        assert (told.final.outcome, told.final.readmitted_as) == (Outcome.READMITTED, 2)
        assert topology.totals() == {"a": 1}

    def test_a_readmitted_transaction_can_be_skipped_and_readmitted_again(self, topology: Topology) -> None:
        first = Run(topology, "r1")
        first.begin(2)
        topology.skip(1)
        topology.readmit(1)
        first.begin(2)
        topology.skip(2)
        with pytest.raises(NotSkipped):
            topology.readmit(1)
        topology.readmit(2)
        assert first.whole(9, {"a": 2}).metadata == [0, 2]
        assert Run(topology, "r2").begin(1).metadata == [2, 3]

    def test_an_empty_batch_can_be_skipped_and_readmitted(self, topology: Topology) -> None:
        first = Run(topology, "r1")
        first.begin(1)
        first.begin(0)
        topology.skip(1)
        topology.readmit(1)
        assert first.whole(9).metadata is None
        assert Run(topology, "r2").begin(1).metadata == [0, 1]

    def test_the_run_of_a_skipped_transaction_is_refused_with_the_command_that_readmits_it(
        self, topology: Topology
    ) -> None:
        first = Run(topology, "r1")
        first.begin(1)
        topology.skip(1)
        with pytest.raises(SkippedTransaction, match="airflow tx readmit trace 1"):
            first.begin(1)
        with pytest.raises(SkippedTransaction):
            first.start()

    def test_a_readmission_waits_while_the_window_is_full_and_keeps_its_rows(
        self, store: Callable[[], Any], root: str
    ) -> None:
        topology = Topology(store, root, [counts("s0")], max_pending=2)
        first, second, third = Run(topology, "r1"), Run(topology, "r2"), Run(topology, "r3")
        first.begin(1)
        topology.skip(1)
        second.begin(1)
        third.begin(1)
        topology.readmit(1)
        assert type(first.begin(1)).__name__ == "WindowFull"
        second.process({})
        second.commit()
        assert first.begin(1).metadata == [0, 1]


class TestTrace5And6:
    """A skip before its turn, and of a batch whose predecessor moved."""

    def test_a_stale_batch_is_replayed_before_it_is_skipped(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(2)
        second.begin(1)
        first.whole(1, {"a": 1})
        topology.note_skip(2)
        with pytest.raises(StaleBatch):
            topology.take_skip(2)
        assert second.begin(2).metadata == [1, 3]
        assert topology.take_skip(2) == Committed(2, by_this_call=True)
        topology.readmit(2)
        assert second.whole(9, {"a": 2}).metadata == [1, 3]

    def test_the_committer_that_hands_over_the_turn_learns_that_the_next_transaction_is_skipped(
        self, topology: Topology
    ) -> None:
        first, second, third = Run(topology, "r1"), Run(topology, "r2"), Run(topology, "r3")
        first.begin(1)
        second.begin(1)
        third.begin(1)
        topology.note_skip(2)
        assert topology.take_skip(2) == NotYet(1)
        first.process({"a": 1})
        committer = first.written()
        assert committer.mark() == Committed(1, by_this_call=True, skip=True)
        assert topology.take_skip(2) == Committed(2, by_this_call=True)
        third.process({"a": 1})
        third.commit()
        assert topology.totals() == {"a": 2}

    def test_a_skip_makes_no_later_open_batch_stale(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(2)
        second.begin(1)
        topology.skip(1)
        assert topology.broken() == []
        second.process({"a": 1})
        second.commit()


class TestWhileItIsSkipped:
    """Whoever skips dies, is outranked, or comes too late."""

    @pytest.mark.parametrize("steps", [["acquire"], ["acquire", "raise_fences"], ["acquire", "raise_fences", "write"]])
    def test_another_process_completes_an_interrupted_skip(self, two_states: Topology, steps: list[str]) -> None:
        _, dead = _skip_that_dies(two_states, steps)
        assert two_states.phase(1) is Phase.COMMITTING
        assert two_states.take_skip(1) == Committed(1, by_this_call=True)
        assert two_states.totals() == {}
        assert dead.mark() == Committed(1, by_this_call=False)

    @pytest.mark.parametrize("steps", [["acquire"], ["acquire", "raise_fences", "write"]])
    def test_a_transaction_counts_once_if_its_interrupted_skip_is_withdrawn_and_it_is_replayed(
        self, two_states: Topology, steps: list[str]
    ) -> None:
        run, dead = _skip_that_dies(two_states, steps)
        assert two_states.ledger().run(end.withdraw_skip, 1) == Done()
        assert two_states.ledger().run(end.withdraw_skip, 1) == Done()
        with pytest.raises(FailedTransaction):
            run.commit()
        run.whole(2, {"a": 1, "b": 1})
        with pytest.raises(Outranked):
            dead.mark()
        assert two_states.totals() == {"a": 1, "b": 1}

    def test_no_row_is_lost_if_a_skip_is_withdrawn_while_a_committer_writes(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.processed(1, {"a": 1})
        committer = run.written()
        topology.note_skip(1)
        topology.ledger().run(end.withdraw_skip, 1)
        with pytest.raises(Outranked):
            committer.mark()
        run.process({"a": 1})
        run.commit()
        assert topology.totals() == {"a": 1}

    def test_a_skip_that_is_noted_after_the_write_does_not_prevent_the_end_of_the_commit(
        self, topology: Topology
    ) -> None:
        run = Run(topology, "r1")
        run.processed(1, {"a": 1})
        committer = run.written()
        topology.note_skip(1)
        assert committer.mark() == Committed(1, by_this_call=True)
        with pytest.raises(AlreadyFinal, match="is committed"):
            topology.take_skip(1)
        assert topology.totals() == {"a": 1}
        assert topology.topology.skips == []

    def test_a_skip_that_is_granted_after_a_write_undoes_the_write(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.processed(1, {"a": 1})
        committer = run.written()
        topology.note_skip(1)
        skipper = topology.skipper(1).acquire()
        with pytest.raises(Outranked):
            committer.mark()
        skipper.raise_fences().write()
        assert skipper.mark() == Committed(1, by_this_call=True)
        assert topology.totals() == {}

    def test_a_skip_starts_again_if_a_task_restarts_during_the_skip(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.processed(1, {"a": 1})
        topology.note_skip(1)
        skipper = topology.skipper(1).acquire().raise_fences()
        run.process({"a": 2})
        skipper.write()
        with pytest.raises(Outranked):
            skipper.mark()
        assert topology.take_skip(1) == Committed(1, by_this_call=True)
        assert topology.totals() == {}

    def test_a_replay_of_a_transaction_with_a_noted_skip_is_skipped_at_its_turn(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        topology.note_skip(1)
        assert run.begin(2).skip is not None
        run.process({"a": 2})
        committer = run.committer()
        committer.processed()
        assert committer.ask() == ToBeSkipped(1)

    def test_two_simultaneous_skips_skip_the_transaction_once(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        topology.note_skip(1)
        one, other = topology.skipper(1).acquire(), topology.skipper(1).acquire()
        one.raise_fences()
        other.raise_fences().write()
        with pytest.raises(FenceOutranked):
            one.write()
        with pytest.raises(Outranked):
            one.mark()
        assert other.mark() == Committed(1, by_this_call=True)
        assert one.mark() == Committed(1, by_this_call=False)
        assert topology.current == 2


class TestAnswers:
    """What cannot be skipped, and what needs no skip."""

    def test_a_skip_of_a_final_a_skipped_or_an_unknown_transaction_has_different_answers(
        self, topology: Topology
    ) -> None:
        Run(topology, "r1").whole(1, {"a": 1})
        Run(topology, "r2").begin(1)
        topology.skip(2)
        with pytest.raises(AlreadyFinal, match="Transaction 1 is committed"):
            topology.note_skip(1)
        assert topology.note_skip(2) == AlreadySkipped(2)
        assert topology.skipper(2).ask() == AlreadySkipped(2)
        with pytest.raises(AlreadyFinal, match="airflow tx readmit"):
            topology.ledger().run(end.withdraw_skip, 2)
        for txid in (-1, 0, 3):
            with pytest.raises(UnknownTransaction):
                topology.note_skip(txid)
        for txid in (0, 1, 3):
            with pytest.raises(NotSkipped):
                topology.readmit(txid)

    def test_a_transaction_is_not_skipped_if_no_person_has_asked_for_the_skip(self, topology: Topology) -> None:
        Run(topology, "r1").begin(1)
        with pytest.raises(SkipRefused, match="no one asked"):
            topology.skipper(1).ask()

    def test_a_transaction_that_begins_during_a_withdrawal_is_not_reported_as_skipped(self, topology: Topology) -> None:
        """Its record was looked for before it was made, and the counter read after."""
        Run(topology, "r1").begin(1)
        ledger, second = topology.ledger(), Run(topology, "r2")
        looks: list[str] = []

        class Late:
            def __getattr__(self, name: str) -> Any:
                return getattr(topology.store(), name)

            def get(self, path: str) -> Any:
                found = topology.store().get(path)
                looks.append(path)
                # The first answer is not trusted; it happens while that is confirmed.
                if looks.count(topology.paths.transaction(2)) == 2 and second.begun is None:
                    second.begin(1)
                return found

        ledger.store = Late()
        with pytest.raises(UnknownTransaction):
            ledger.run(end.withdraw_skip, 2)
        assert topology.allocated == 2


def _skip_that_dies(topology: Topology, steps: list[str]) -> tuple[Run, Skipper]:
    """What is to be skipped may be in the states already; whoever skips it has done these steps of it."""
    run = Run(topology, "r1")
    run.processed(2, {"a": 1, "b": 1})
    run.written()
    topology.note_skip(1)
    dead = topology.skipper(1)
    for step in steps:
        getattr(dead, step)()
    return run, dead
