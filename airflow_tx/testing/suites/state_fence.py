"""Tests of the writes that a fence accepts or refuses. They are part of `StateSuite`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_tx.base.errors import FenceForeign, FenceOutranked, LedgerBehind, StateBehind
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.life import CHANGE
from airflow_tx.state.api import Fence, FencedState, Grant
from airflow_tx.testing.suites.state_tools import (
    Grants,
    MakeState,
    StateTests,
    batch_of,
    is_applied,
    rows,
    totals,
)


def _raise(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.raise_fence(grant)


def _write(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.write(grant, updates)


def _write_part(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.write(grant, updates, chunk=3, complete=False)


def _raise_and_write(
    state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]
) -> None:
    state.raise_and_write(grant, updates)


Use = Callable[[FencedState, Grant, Iterable[Mapping[str, Any]]], None]
every_use = pytest.mark.parametrize("use", [_raise, _write, _write_part, _raise_and_write])
every_raise = pytest.mark.parametrize("use", [_raise, _raise_and_write])


def _granted(grants: Grants, txid: int, attempt: int = 1, **how: Any) -> Grant:
    """Return a grant with the facts about its transaction, as a ledger returns it."""
    return replace(grants(txid, attempt), batch=batch_of(f"run {txid}"), **how)


def _commit(grants: Grants, state: FencedState) -> None:
    grant = _granted(grants, 1)
    state.raise_and_write(grant, rows({"a": 1}))
    grants.final(grant, state)


def _change(state: FencedState) -> int:
    fence = state.fence()
    assert fence is not None
    return fence.change


def _began(state: FencedState) -> bool | None:
    fence = state.fence()
    assert fence is not None
    return fence.began


def _needs_names(state: FencedState) -> None:
    if not state.names_changes:
        pytest.skip("the fence of this state names no changes")


class FenceSuite(StateTests):
    """Tests of a state's fence, and of its continuity with the ledger."""

    def test_a_new_state_has_no_fence_and_no_values(self, state: FencedState, kind: str) -> None:
        assert state.fence() is None
        assert state.read() == []
        assert state.kind == kind

    def test_the_fence_holds_the_grant_that_raised_it(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        grant = grants(1)
        make_state(kind).raise_fence(grant)
        assert make_state(kind).fence() == Fence(grant.incarnation, grant.token)

    def test_the_fence_says_when_all_updates_of_its_grant_are_in(
        self, state: FencedState, grants: Grants
    ) -> None:
        grant = grants(1)
        state.raise_fence(grant)
        state.write(grant, rows({"a": 1}), chunk=1, complete=False)
        assert is_applied(state) is False
        state.write(grant, [], chunk=2)
        assert is_applied(state) is True
        state.raise_fence(grants(1, 2))
        assert is_applied(state) is False

    def test_a_write_under_a_fence_that_was_never_raised_is_refused(
        self, state: FencedState, grants: Grants
    ) -> None:
        with pytest.raises(FenceOutranked, match="the fence holds nothing"):
            state.write(grants(1), rows({"a": 1}))
        assert state.read() == []

    def test_a_write_under_a_fence_that_an_earlier_grant_raised_is_refused(
        self, state: FencedState, grants: Grants
    ) -> None:
        first = grants(1)
        second = grants(1, 2)
        state.raise_fence(first)
        with pytest.raises(FenceOutranked):
            state.write(second, rows({"a": 1}))
        assert state.read() == []

    @every_use
    def test_a_late_writer_of_an_older_attempt_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        zombie = make_state(kind)
        state = make_state(kind)
        old = grants(1)
        new = grants(1, 2)
        zombie.raise_fence(old)
        zombie.write(old, rows({"a": 1, "only the old attempt has it": 1}))
        state.raise_and_write(new, rows({"a": 1}))
        before = totals(state)
        for late in (
            rows({"only the old attempt has it": 1}),
            rows({"a": 1}),
            rows({"new": 1}),
            [],
        ):
            with pytest.raises(FenceOutranked):
                use(zombie, old, late)
        assert totals(state) == before
        assert state.fence() == Fence(new.incarnation, new.token, True)

    @every_use
    def test_a_late_writer_of_an_older_grant_of_the_same_attempt_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        old = grants(1)
        new = grants(1)
        state.raise_fence(old)
        state.raise_fence(new)
        with pytest.raises(FenceOutranked):
            use(state, old, rows({"a": 1}))
        assert state.read() == []

    @every_use
    def test_a_late_writer_of_a_committed_transaction_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        first = grants(1)
        state.raise_and_write(first, rows({"a": 1}))
        grants.final(first, state)
        grants.commit(2, state, {"a": 10})
        with pytest.raises((FenceOutranked, LedgerBehind)):
            use(state, first, rows({"a": 1}))
        assert totals(state) == {"a": 11}

    @every_raise
    def test_equal_rank_with_another_nonce_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        grant = grants(1)
        state.raise_and_write(grant, rows({"a": 1}))
        rank = Token(*grant.token.rank, nonce="another life of the ledger", birth=grant.token.birth)
        with pytest.raises(FenceOutranked):
            use(state, Grant("suite", grants.incarnation, rank, {}), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    # --- continuity ----------------------------------------------------------------------------------------------

    @every_raise
    def test_an_absent_fence_is_not_the_first_time_when_the_ledger_committed_to_the_state(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        grants.final(grants(1), state)
        with pytest.raises(StateBehind, match="--state-lost"):
            use(state, grants(2), rows({"a": 1}))
        assert (state.fence(), state.read()) == (None, [])

    @every_raise
    def test_a_store_that_went_back_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        grants.commit(1, state, {"a": 1})
        grants.final(
            grants(2), state
        )  # The store was restored from a backup that lacks this commit.
        with pytest.raises(StateBehind, match="The store was restored from an older backup"):
            use(state, grants(3), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    @every_raise
    def test_a_store_that_kept_the_raise_of_a_committed_transaction_and_lost_its_updates_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        grants.commit(1, state, {"a": 1})
        second = grants(2)
        state.raise_fence(second)
        grants.final(
            second, state
        )  # the store has confirmed the updates, but lost them before they reached the disk or the standby
        with pytest.raises(
            StateBehind, match="2, but some of its updates are missing.*--state-lost"
        ):
            use(state, grants(3), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    @every_raise
    def test_a_store_that_went_back_to_an_earlier_attempt_of_its_last_transaction_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        grants.commit(1, state, {"a": 1})
        state.raise_and_write(grants(2), rows({"a": 2}))
        grants.final(grants(2, attempt=2), state)  # The restored store lacks this commit.
        with pytest.raises(StateBehind, match="says 2.1. The store was restored"):
            use(state, grants(3), rows({"a": 1}))
        assert totals(state) == {"a": 3}

    @every_raise
    def test_a_ledger_that_went_back_is_refused(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        for txid in (1, 2, 3):
            grants.commit(txid, state, {"a": txid})
        grants.last = {state.name: 1}  # ZooKeeper was restored from an older snapshot.
        grants.births.clear()
        with pytest.raises(LedgerBehind, match="If ZooKeeper was restored from an older backup"):
            use(state, grants(2), rows({"a": 1}))
        assert totals(state) == {"a": 6}

    @every_raise
    @pytest.mark.parametrize("later", [0, 1], ids=["of equal rank", "of higher rank"])
    def test_a_ledger_that_went_back_by_one_transaction_is_refused(
        self, state: FencedState, grants: Grants, use: Use, later: int
    ) -> None:
        grants.commit(1, state, {"a": 1})
        grants.commit(2, state, {"a": 2, "b": 5})
        grants.go_back(2)
        with pytest.raises(
            LedgerBehind, match=r"says transaction 2 \(another transaction .*--ledger-lost"
        ):
            use(state, grants(2, 1 + later), rows({"a": 4}))
        assert totals(state) == {"a": 3, "b": 5}

    @every_raise
    def test_another_ledger_is_refused(self, state: FencedState, grants: Grants, use: Use) -> None:
        grants.commit(1, state, {"a": 1})
        with pytest.raises(FenceForeign):
            use(state, Grants()(1), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    def test_after_a_repair_the_new_generation_outranks_the_old_one(
        self, state: FencedState, grants: Grants
    ) -> None:
        for txid in (1, 2, 3):
            grants.commit(txid, state, {"a": txid})
        late = grants(3)
        grants.generation = 2
        grants.last = {}  # a ledger repair has accepted the values of the state
        grants.commit(4, state, {"a": 4})
        for use in (_raise, _write, _raise_and_write):
            with pytest.raises((FenceOutranked, LedgerBehind)):
                use(state, late, rows({"a": 1}))
        assert totals(state) == {"a": 10}

    # --- changes by hand -----------------------------------------------------------------------------------------

    def test_the_fence_names_the_newest_change_that_a_person_has_accepted(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        _needs_names(make_state(kind))
        _commit(grants, make_state(kind))
        assert _change(make_state(kind)) == 0
        make_state(kind).accept_values(3)
        assert _change(make_state(kind)) == 3
        make_state(kind).accept_values(2)
        make_state(kind).accept_values()
        assert _change(make_state(kind)) == 3

    def test_accepting_a_change_leaves_the_grant_of_the_fence_and_the_values(
        self, state: FencedState, grants: Grants
    ) -> None:
        _commit(grants, state)
        before = state.fence()
        state.accept_values(3)
        after = state.fence()
        assert before is not None
        assert after is not None
        assert replace(after, batch="") == replace(before, batch="")
        assert totals(state) == {"a": 1}

    def test_a_state_without_a_fence_has_no_change_to_name(self, state: FencedState) -> None:
        state.accept_values(3)
        assert state.fence() is None

    @every_raise
    def test_a_raise_carries_the_change(self, state: FencedState, grants: Grants, use: Use) -> None:
        _needs_names(state)
        _commit(grants, state)
        state.accept_values(3)
        for attempt in (1, 2):
            use(state, _granted(grants, 2, attempt), rows({"a": 1}))
            assert _change(state) == 3

    @every_raise
    def test_a_store_of_before_a_change_is_refused_though_no_transaction_followed(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        _needs_names(state)
        _commit(grants, state)
        state.accept_values(3)
        late = _granted(grants, 2, accepted={state.name: {CHANGE: 4}})
        with pytest.raises(StateBehind, match="the values lack the change that repair 4 accepted"):
            use(state, late, rows({"a": 1}))
        assert totals(state) == {"a": 1}
        use(state, _granted(grants, 2, accepted={state.name: {CHANGE: 3}}), rows({"a": 1}))

    @every_raise
    def test_after_an_accepted_loss_the_fence_that_was_seen_is_raised_and_no_other(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        _commit(grants, state)
        seen = state.fence()
        assert seen is not None
        grants.generation, grants.last = 2, {}
        for fence in ({**seen.token.to_json(), "txid": 7}, None):
            noted = {state.name: {"generation": 2, "fence": fence}}
            with pytest.raises(StateBehind, match="the fence that a person accepted was"):
                use(state, _granted(grants, 8, accepted=noted), rows({"a": 1}))
        noted = {state.name: {"generation": 2, "fence": seen.token.to_json()}}
        use(state, _granted(grants, 8, accepted=noted), rows({"b": 1}))
        assert totals(state)["a"] == 1

    @every_raise
    def test_the_first_fence_says_that_its_place_was_empty(
        self, state: FencedState, grants: Grants, use: Use
    ) -> None:
        for attempt in (1, 2):
            use(state, _granted(grants, 1, attempt), rows({"a": 1}))
            assert _began(state) in (True, None)  # None means that the state cannot find this out.

    def test_the_fence_of_the_second_transaction_does_not_say_it(
        self, state: FencedState, grants: Grants
    ) -> None:
        _commit(grants, state)
        state.raise_fence(_granted(grants, 2))
        assert _began(state) is None
