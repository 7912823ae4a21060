"""Tests of the values after updates, replays and chunks, as part of `StateSuite`."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import (
    ChunkConflict,
    FenceOutranked,
    OutputChanged,
    SkipRefused,
    StateError,
)
from airflow_tx.state.api import Fence, FencedState, Grant
from airflow_tx.testing.suites.state_tools import (
    Grants,
    MakeState,
    StateTests,
    about_to_skip,
    about_to_write,
    is_applied,
    rows,
    totals,
)


class UpdateSuite(StateTests):
    """Tests of rollbacks, of replays, of several writers, and of updates of every size."""

    def test_raising_the_fence_undoes_what_an_outranked_attempt_wrote(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        grants.commit(1, state, {"a": 5, "b": 7})
        state.raise_and_write(grants(2), rows({"a": 10, "new": 1}))
        state.raise_fence(grants(2, 2))
        assert totals(state) == {"a": 5, "b": 7}
        state.raise_fence(grants(2, 3))
        assert totals(state) == {"a": 5, "b": 7}

    def test_a_replay_with_fewer_keys_counts_nothing_twice(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        state.raise_and_write(grants(1), rows({"a": 1, "b": 1}))
        second = grants(1, 2)
        state.raise_and_write(second, rows({"a": 1}))
        grants.final(second, state)
        grants.commit(2, state, {"b": 1})
        assert totals(state) == {"a": 1, "b": 1}

    def test_an_undo_takes_back_what_its_own_grant_has_written_and_nothing_else(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        grants.commit(1, state, {"a": 1, "b": 1})
        grant = grants(2)
        state.raise_fence(grant)
        state.undo(grant)
        assert totals(state) == {"a": 1, "b": 1}
        for _ in range(2):
            state.write(grant, rows({"a": 2, "b": 2, "c": 2}))
            state.undo(grant)
            assert totals(state) == {"a": 1, "b": 1}
            assert not is_applied(state)
        # After the undo, the same key may be in another chunk.
        state.write(grant, rows({"a": 4}), chunk=3, complete=False)
        state.undo(grant)
        assert totals(state) == {"a": 1, "b": 1}
        state.write(grant, rows({"a": 5}), chunk=1)
        assert totals(state) == {"a": 6, "b": 1}
        assert is_applied(state)
        grants.final(grant, state)
        grants.commit(3, state, {"a": 1, "b": 1, "c": 1})
        assert totals(state) == {"a": 7, "b": 2, "c": 1}

    def test_an_outranked_committer_undoes_nothing(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        old = grants(1)
        state.raise_fence(old)
        state.raise_and_write(grants(1, 2), rows({"a": 1}))
        with pytest.raises(FenceOutranked):
            state.undo(old)
        assert totals(state) == {"a": 1}

    def test_an_opaque_replay_with_other_rows_starts_from_the_values_before(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        grants.commit(320, state, {"a": 5})
        state.raise_and_write(grants(321), rows({"a": 8}))
        assert totals(state) == {"a": 13}
        state.raise_and_write(grants(321, 2), rows({"a": 4}))
        assert totals(state) == {"a": 9}

    def test_a_key_whose_values_were_all_null_is_still_there_after_a_roll_back(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        grants.commit(1, state, {"a": None})
        state.raise_and_write(grants(2), rows({"a": 3, "b": None}))
        state.raise_fence(grants(2, 2))
        assert totals(state) == {"a": None}

    def test_a_transactional_replay_skips_what_is_in_already(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("transactional")
        grants.commit(1, state, {"man": 3})
        grants.commit(2, state, {"apple": 10})
        first = grants(3)
        state.raise_fence(first)
        state.write(first, rows({"dog": 4}), chunk=1, complete=False)
        state.raise_and_write(grants(3, 2), rows({"man": 2, "dog": 4}))
        assert totals(state) == {"man": 5, "dog": 4, "apple": 10}

    def test_a_state_knows_whether_it_holds_something_of_the_open_transaction(
        self, state: FencedState, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        if type(state).holds is FencedState.holds:
            pytest.skip("the state cannot tell which transactions its values contain")
        assert not state.holds(1)
        for txid in (1, 2):
            first = grants(txid)
            state.raise_fence(first)
            assert not state.holds(txid)
            state.write(first, [], chunk=1, complete=False)
            assert not state.holds(txid)
            state.write(first, rows({f"only of {txid}": 1}), chunk=2, complete=False)
            assert make_state(kind).holds(txid)
            again = grants(txid, 2)
            state.raise_and_write(again, rows({f"only of {txid}": 1}))
            assert state.holds(txid)
            grants.final(again, state)

    def test_what_a_transactional_state_holds_is_neither_skipped_nor_mixed_with_another_output(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("transactional")
        if type(state).holds is FencedState.holds:
            pytest.skip("the state cannot tell what its values contain")

        def grant(attempt: int, output: str) -> Grant:
            return about_to_write(grants(1, attempt), state, output)

        state.raise_fence(grant(1, "never written"))
        first = grant(2, "one")
        state.raise_fence(first)
        state.write(first, rows({"a": 1}), complete=False)
        for attempt in (3, 4):
            with pytest.raises(OutputChanged, match="has output other, an earlier attempt had one"):
                state.raise_fence(grant(attempt, "other"))
            with pytest.raises(OutputChanged):
                state.raise_and_write(grant(attempt, "other"), rows({"a": 2, "b": 2}))
            with pytest.raises(SkipRefused, match="already, which cannot undo it"):
                state.raise_fence(about_to_skip(grants(1, attempt)))
        found = state.fence()
        assert found is not None
        assert (found.token, totals(state)) == (first.token, {"a": 1})
        state.raise_and_write(grant(5, "one"), rows({"a": 1, "b": 2}))
        assert totals(state) == {"a": 1, "b": 2}

    def test_repeating_raise_and_write_changes_nothing(
        self, state: FencedState, grants: Grants
    ) -> None:
        grants.commit(1, state, {"a": 1})
        grant = grants(2)
        for _ in range(2):
            state.raise_fence(grant)
            assert state.write(grant, rows({"a": 2, "b": 3})) == 2
            assert state.write(grant, rows({"a": 2, "b": 3})) == 2
            assert state.raise_and_write(grant, rows({"a": 2, "b": 3})) == 2
            assert totals(state) == {"a": 3, "b": 3}
            assert is_applied(state) is True

    def test_a_null_delta_changes_nothing(self, state: FencedState, grants: Grants) -> None:
        grants.commit(1, state, {"a": 1, "b": None})
        grants.commit(2, state, {"a": None, "b": 2, "c": None})
        assert totals(state) == {"a": 1, "b": 2, "c": None}

    # --- several states, several writers -------------------------------------------------------------------------

    def test_two_states_are_fenced_and_rolled_back_each_for_itself(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        first = make_state("opaque", "first")
        second = make_state("opaque", "second")
        assert first.name != second.name
        old = grants(1)
        for state in (first, second):
            state.raise_fence(old)
            state.write(old, rows({"a": 1}))
        new = grants(1, 2)
        first.raise_fence(new)
        assert (totals(first), totals(second)) == ({}, {"a": 1})
        second.raise_fence(new)
        first.write(new, rows({"a": 1}))
        with pytest.raises(FenceOutranked):
            second.write(old, rows({"a": 1}))
        second.write(new, [])
        assert (totals(first), totals(second)) == ({"a": 1}, {})
        grants.final(new, first, second)
        following = grants(2)
        for state in (first, second):
            state.raise_fence(following)
            state.write(following, rows({"a": 10}))
        assert (totals(first), totals(second)) == ({"a": 11}, {"a": 10})

    def test_a_chunk_that_is_sent_twice_is_harmless(
        self, state: FencedState, grants: Grants
    ) -> None:
        grant = grants(1)
        state.raise_fence(grant)
        for chunk, key in ((1, "a"), (2, "b"), (1, "a"), (2, "b")):
            state.write(grant, rows({key: chunk}), chunk=chunk, complete=False)
        assert totals(state) == {"a": 1, "b": 2}

    def test_a_key_from_two_chunks_is_refused(self, state: FencedState, grants: Grants) -> None:
        grant = grants(1)
        state.raise_fence(grant)
        state.write(grant, rows({"a": 1}), chunk=1, complete=False)
        with pytest.raises(ChunkConflict, match="'a'.* came from chunk 1 and from chunk 2"):
            state.write(grant, rows({"b": 1, "a": 1}), chunk=2, complete=False)
        assert totals(state) == {"a": 1}

    def test_a_replay_may_be_cut_into_other_chunks(
        self, state: FencedState, grants: Grants
    ) -> None:
        old = grants(1)
        new = grants(1, 2)
        state.raise_fence(old)
        state.write(old, rows({"a": 1}), chunk=1, complete=False)
        state.raise_fence(new)
        state.write(new, rows({"a": 1, "b": 1}), chunk=2, complete=False)
        with pytest.raises(ChunkConflict):
            state.write(new, rows({"a": 1}), chunk=1, complete=False)
        assert totals(state) == {"a": 1, "b": 1}

    # --- updates -------------------------------------------------------------------------------------------------

    def test_an_empty_update_raises_the_fence_all_the_same(
        self, state: FencedState, grants: Grants
    ) -> None:
        grant = grants(1)
        assert state.raise_and_write(grant, []) == 0
        assert state.fence() == Fence(grant.incarnation, grant.token, True)
        grants.final(grant, state)
        grants.commit(2, state, {"a": 1})
        assert totals(state) == {"a": 1}

    def test_a_large_update_is_all_there(self, state: FencedState, grants: Grants) -> None:
        count = 25_000
        for txid in (1, 2):
            grant = grants(txid)
            assert (
                state.raise_and_write(grant, ({"key": f"key {i}", "n": i} for i in range(count)))
                == count
            )
            grants.final(grant, state)
        assert totals(state) == {f"key {i}": 2 * i for i in range(count)}

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"key": None, "n": 1}, "key 'key' is NULL"),
            ({"key": "a"}, r"missing \['n'\]"),
            ({"key": "a", "n": 1, "m": 2}, r"not expected \['m'\]"),
            ({"key": "a", "n": "one"}, "n = 'one' is not an integer"),
            ({"key": "a", "n": 1.5}, "n = 1.5 is not an integer"),
            ({"key": "a", "n": 2**63}, "does not fit into 64 bits"),
            ({"key": "key 3", "n": 1}, "its key occurs twice"),
        ],
    )
    def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(
        self, make_state: MakeState, grants: Grants, wrong: dict[str, Any], message: str
    ) -> None:
        state = make_state("opaque")
        count = 12_000
        grants.commit(1, state, {"key 1": 1})
        before = state.fence()
        grant = grants(2)
        update = [*({"key": f"key {i}", "n": i} for i in range(count)), wrong]
        with pytest.raises(StateError, match=f"row {count}.*{message}"):
            state.raise_and_write(grant, update)
        assert (totals(state), state.fence()) == ({"key 1": 1}, before)
        state.raise_fence(grant)
        with pytest.raises(StateError, match=f"row {count}.*{message}"):
            state.write(grant, update)
        assert totals(state) == {"key 1": 1}

    def test_keys_come_back_as_they_were(self, make_state: MakeState, grants: Grants) -> None:
        keys = ["", " ", "a", "A", "ä", "a\u0308", '"', "\\", "{a,b}"]
        keys += ["NULL", "null", "'; --", "\t\n\r", "%s", ":x", "日本"]
        state = make_state("opaque")
        for txid in (1, 2):
            grants.commit(txid, state, dict.fromkeys(keys, 1))
        assert totals(state) == dict.fromkeys(keys, 2)

    def test_the_largest_numbers_are_exact(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("opaque")
        largest = 2**63 - 1
        grants.commit(1, state, {"up": largest - 1, "down": -(2**63)})
        grants.commit(2, state, {"up": 1})
        assert totals(state) == {"up": largest, "down": -(2**63)}
