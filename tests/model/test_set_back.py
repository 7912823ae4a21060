"""The ledger is set back to between the begin and the grant of its last transaction, whose birth stays the same.

What a state holds decides, not what the record of the transaction remembers (TRACES.md: 29).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import ChangeRefused, FenceOutranked, OutputChanged, SkipRefused
from airflow_tx.ledger.steps import end
from airflow_tx.ledger.steps.replay import note_changed
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.transaction.commit.handoff import undoable
from tests.model.conftest import counts
from tests.model.driver import Committer, Run, Topology


def set_back(topology: Topology, *, all_of_it: bool = True) -> tuple[Run, Committer]:
    """Write transaction 1, or half of it, and let the ledger forget the grant under which it was written."""
    run = Run(topology, "r1")
    run.processed(2, {"a": 1, "b": 1})
    forget = topology.forgets(1)
    committer = run.committer()
    committer.acquire()
    committer.raise_fences()
    committer.write(state=None if all_of_it else 0)
    forget()
    record = topology.record(1)
    assert record is not None
    assert (record.granted, record.fenced, record.outputs) == (False, [], {})
    return run, committer


def replayed(run: Run, output: dict[str, int]) -> None:
    """Commit the next attempt of a run; the first grants may be of the rank that a fence holds already."""
    run.processed(2, output)
    for _ in range(3):
        try:
            run.commit()
        except FenceOutranked:
            continue
        return
    pytest.fail("it is outranked for ever")


class TestSkip:
    """A person skips the transaction that a transactional state holds."""

    def test_a_skip_is_refused_if_a_state_holds_the_transaction_of_a_lost_grant(self, transactional: Topology) -> None:
        run, _ = set_back(transactional)
        transactional.note_skip(1)
        with pytest.raises(SkipRefused, match="state s0 already, which cannot undo"):
            transactional.take_skip(1)
        assert transactional.topology.skips == []
        replayed(run, {"a": 1, "b": 1})
        assert transactional.totals() == {"a": 1, "b": 1}

    def test_a_skip_is_refused_if_one_of_two_states_holds_a_part_of_the_transaction(
        self, store: Callable[[], Any], root: str
    ) -> None:
        states = [counts("s0", kind="transactional"), counts("s1", kind="transactional")]
        two = Topology(store, root, states, source="transactional")
        run, _ = set_back(two, all_of_it=False)
        two.note_skip(1)
        with pytest.raises(SkipRefused, match="state s0 already, which cannot undo"):
            two.take_skip(1)
        replayed(run, {"a": 1, "b": 1})
        assert two.totals() == {"a": 1, "b": 1}

    def test_a_skip_is_refused_if_a_lost_grant_writes_after_the_check_of_the_skip(
        self, transactional: Topology
    ) -> None:
        run = Run(transactional, "r1")
        run.processed(2, {"a": 1, "b": 1})
        forget = transactional.forgets(1)
        committer = run.committer()
        committer.acquire()
        committer.raise_fences()
        forget()
        transactional.note_skip(1)
        assert undoable(transactional.ledger(), {"s0": transactional.states[0]}, 1) == {"s0": True}
        first, second = transactional.skipper(1).acquire(), transactional.skipper(1).acquire()
        committer.write()
        with pytest.raises(FenceOutranked):  # of one rank, and two lives
            first.raise_fences()
        with pytest.raises(SkipRefused, match="state s0 already, which cannot undo"):
            second.raise_fences()
        transactional.ledger().run(end.withdraw_skip, 1)
        with pytest.raises(OutputChanged):
            replayed(run, {"a": 1, "c": 1})
        assert transactional.totals() == {"a": 1, "b": 1}

    def test_an_opaque_state_undoes_the_write_of_a_lost_grant_before_a_skip(self, topology: Topology) -> None:
        set_back(topology)
        topology.note_skip(1)
        with pytest.raises(FenceOutranked):
            topology.take_skip(1)
        topology.take_skip(1)
        assert topology.totals() == {}


class TestAnotherOutput:
    """A replay gives another output than the one that a transactional state holds."""

    def test_every_try_with_another_output_is_refused_after_the_grant_was_lost(self, transactional: Topology) -> None:
        run, _ = set_back(transactional)
        for _ in range(3):
            with pytest.raises(OutputChanged, match='use kind="opaque"'):
                replayed(run, {"a": 1, "c": 1})
        assert transactional.totals() == {"a": 1, "b": 1}
        replayed(run, {"a": 1, "b": 1})
        assert transactional.totals() == {"a": 1, "b": 1}

    def test_another_output_is_refused_if_the_state_holds_part_of_the_first_output(
        self, transactional: Topology
    ) -> None:
        run = Run(transactional, "r1")
        run.processed(2, {"a": 1, "b": 1})
        forget = transactional.forgets(1)
        committer = run.committer()
        grant = committer.acquire()
        assert grant is not None
        transactional.states[0].raise_fence(grant)
        transactional.states[0].write(grant, [{"key": "a", "n": 1}], complete=False)
        forget()
        with pytest.raises(OutputChanged):
            replayed(run, {"a": 2, "b": 1})
        replayed(run, {"a": 1, "b": 1})
        assert transactional.totals() == {"a": 1, "b": 1}

    def test_a_state_without_the_transaction_accepts_another_output_and_records_the_output(
        self, transactional: Topology
    ) -> None:
        run = Run(transactional, "r1")
        run.processed(2, {"a": 1})
        forget = transactional.forgets(1)
        first = run.committer()
        first.acquire()
        first.raise_fences()
        forget()
        run.processed(2, {"b": 1})
        forget = transactional.forgets(1)
        run.written()
        forget()
        with pytest.raises(OutputChanged):
            replayed(run, {"a": 1})
        replayed(run, {"b": 1})
        assert transactional.totals() == {"b": 1}

    def test_rows_that_the_state_holds_are_not_decided_again_after_the_grant_was_lost(
        self, transactional: Topology
    ) -> None:
        set_back(transactional)
        found = undoable(transactional.ledger(), {"s0": transactional.states[0]}, 1)
        with pytest.raises(ChangeRefused, match="state s0 already, which cannot undo"):
            transactional.ledger().run(note_changed, 1, found, audit=Audit("ada", "a corrected file"))
