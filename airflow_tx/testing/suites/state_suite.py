"""What every `FencedState` must do, as tests: subclass `StateSuite` and say how to make one.

class TestMyState(StateSuite):
    @pytest.fixture
    def make_state(self, tmp_path):
        def make(kind, name="first", *, keys=("key",), values=None, types=None):
            return MyState(tmp_path / name, keys=keys, values=values or {"n": Sum()}, kind=kind, types=types)
        return make
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from airflow_tx.errors import (
    ChunkConflict,
    FenceForeign,
    FenceOutranked,
    LedgerBehind,
    StateBehind,
    StateError,
)
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.aggregators import Aggregator, Avg, Sum
from airflow_tx.state.api import Fence, FencedState, Grant, QueryableState
from airflow_tx.testing.suites.state_values import (
    EXAMPLES,
    Grants,
    MakeState,
    ValueSuite,
    both_kinds,
    key_types,
)

__all__ = ["FencedState", "Grants", "MakeState", "StateSuite", "queried", "rows", "totals"]

Totals = dict[str, Any]


def rows(updates: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """key -> delta, as the rows of an update."""
    return [{"key": key, "n": delta} for key, delta in updates.items()]


def totals(state: FencedState) -> Totals:
    """key -> value, as it is stored."""
    return {row["key"]: row["n"] for row in state.read()}


def _raise(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.raise_fence(grant)


def _write(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.write(grant, updates)


def _write_part(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.write(grant, updates, chunk=3, complete=False)


def _raise_and_write(state: FencedState, grant: Grant, updates: Iterable[Mapping[str, Any]]) -> None:
    state.raise_and_write(grant, updates)


Use = Callable[[FencedState, Grant, Iterable[Mapping[str, Any]]], None]
every_use = pytest.mark.parametrize("use", [_raise, _write, _write_part, _raise_and_write])
every_raise = pytest.mark.parametrize("use", [_raise, _raise_and_write])


class StateSuite(ValueSuite):
    """The behaviour of a fenced state. Override the fixture `make_state`; `cannot` says what a store does not take."""

    # --- the fence -----------------------------------------------------------------------------------------------

    @both_kinds
    def test_a_new_state_has_no_fence_and_no_values(self, make_state: MakeState, kind: str) -> None:
        state = make_state(kind)
        assert state.fence() is None
        assert state.read() == []
        assert state.kind == kind

    @both_kinds
    def test_the_fence_holds_the_grant_that_raised_it(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        grant = grants(1)
        make_state(kind).raise_fence(grant)
        assert make_state(kind).fence() == Fence(grant.incarnation, grant.token, False, grant.batch)

    @both_kinds
    def test_the_fence_says_when_all_updates_of_its_grant_are_in(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state, grant = make_state(kind), grants(1)
        state.raise_fence(grant)
        state.write(grant, rows({"a": 1}), chunk=1, complete=False)
        assert _applied(state) is False
        state.write(grant, [], chunk=2)
        assert _applied(state) is True
        state.raise_fence(grants(1, 2))
        assert _applied(state) is False

    @both_kinds
    def test_a_write_under_a_fence_that_was_never_raised_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state = make_state(kind)
        with pytest.raises(FenceOutranked, match="the fence holds nothing"):
            state.write(grants(1), rows({"a": 1}))
        assert state.read() == []

    @both_kinds
    def test_a_write_under_a_fence_that_an_earlier_grant_raised_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state, first, second = make_state(kind), grants(1), grants(1, 2)
        state.raise_fence(first)
        with pytest.raises(FenceOutranked):
            state.write(second, rows({"a": 1}))
        assert state.read() == []

    @both_kinds
    @every_use
    def test_a_late_writer_of_an_older_attempt_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        zombie, state = make_state(kind), make_state(kind)
        old, new = grants(1), grants(1, 2)
        zombie.raise_fence(old)
        zombie.write(old, rows({"a": 1, "only the old attempt has it": 1}))
        state.raise_and_write(new, rows({"a": 1}))
        before = totals(state)
        for late in (rows({"only the old attempt has it": 1}), rows({"a": 1}), rows({"new": 1}), []):
            with pytest.raises(FenceOutranked):
                use(zombie, old, late)
        assert totals(state) == before
        assert state.fence() == Fence(new.incarnation, new.token, True, new.batch)

    @both_kinds
    @every_use
    def test_a_late_writer_of_an_older_grant_of_the_same_attempt_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        state, old, new = make_state(kind), grants(1), grants(1)
        state.raise_fence(old)
        state.raise_fence(new)
        with pytest.raises(FenceOutranked):
            use(state, old, rows({"a": 1}))
        assert state.read() == []

    @both_kinds
    @every_use
    def test_a_late_writer_of_a_committed_transaction_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        state, first = make_state(kind), grants(1)
        state.raise_and_write(first, rows({"a": 1}))
        grants.final(first, state)
        grants.commit(2, state, {"a": 10})
        with pytest.raises((FenceOutranked, LedgerBehind)):
            use(state, first, rows({"a": 1}))
        assert totals(state) == {"a": 11}

    @both_kinds
    @every_raise
    def test_equal_rank_with_another_nonce_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        state, grant = make_state(kind), grants(1)
        state.raise_and_write(grant, rows({"a": 1}))
        rank = Token(*grant.token.rank, nonce="another life of the ledger", birth=grant.token.birth)
        with pytest.raises(FenceOutranked):
            use(state, Grant("suite", grants.incarnation, rank, {}), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    # --- roll-back and replay ------------------------------------------------------------------------------------

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

    def test_a_replay_with_fewer_keys_counts_nothing_twice(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("opaque")
        state.raise_and_write(grants(1), rows({"a": 1, "b": 1}))
        second = grants(1, 2)
        state.raise_and_write(second, rows({"a": 1}))
        grants.final(second, state)
        grants.commit(2, state, {"b": 1})
        assert totals(state) == {"a": 1, "b": 1}

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

    def test_a_transactional_replay_skips_what_is_in_already(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("transactional")
        grants.commit(1, state, {"man": 3})
        grants.commit(2, state, {"apple": 10})
        first = grants(3)
        state.raise_fence(first)
        state.write(first, rows({"dog": 4}), chunk=1, complete=False)
        state.raise_and_write(grants(3, 2), rows({"man": 2, "dog": 4}))
        assert totals(state) == {"man": 5, "dog": 4, "apple": 10}

    @both_kinds
    def test_a_state_knows_whether_it_holds_something_of_the_open_transaction(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state = make_state(kind)
        if type(state).holds is FencedState.holds:
            pytest.skip("it cannot tell: then it may hold something of any transaction")
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

    @both_kinds
    def test_repeating_raise_and_write_changes_nothing(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state = make_state(kind)
        grants.commit(1, state, {"a": 1})
        grant = grants(2)
        for _ in range(2):
            state.raise_fence(grant)
            assert state.write(grant, rows({"a": 2, "b": 3})) == 2
            assert state.write(grant, rows({"a": 2, "b": 3})) == 2
            assert state.raise_and_write(grant, rows({"a": 2, "b": 3})) == 2
            assert totals(state) == {"a": 3, "b": 3}
            assert _applied(state) is True

    @both_kinds
    def test_a_null_delta_changes_nothing(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state = make_state(kind)
        grants.commit(1, state, {"a": 1, "b": None})
        grants.commit(2, state, {"a": None, "b": 2, "c": None})
        assert totals(state) == {"a": 1, "b": 2, "c": None}

    # --- continuity ----------------------------------------------------------------------------------------------

    @both_kinds
    @every_raise
    def test_an_absent_fence_is_not_the_first_time_when_the_ledger_committed_to_the_state(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        state = make_state(kind)
        grants.final(grants(1), state)
        with pytest.raises(StateBehind, match="--state-lost"):
            use(state, grants(2), rows({"a": 1}))
        assert (state.fence(), state.read()) == (None, [])

    @both_kinds
    @every_raise
    def test_a_store_that_went_back_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        state = make_state(kind)
        grants.commit(1, state, {"a": 1})
        grants.final(grants(2), state)  # committed, and lost when the store was restored from a backup
        with pytest.raises(StateBehind, match="The store went back"):
            use(state, grants(3), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    @both_kinds
    @every_raise
    def test_a_ledger_that_went_back_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use
    ) -> None:
        state = make_state(kind)
        for txid in (1, 2, 3):
            grants.commit(txid, state, {"a": txid})
        grants.last = {state.name: 1}  # ZooKeeper was restored from an older snapshot
        with pytest.raises(LedgerBehind, match="The ledger went back"):
            use(state, grants(2), rows({"a": 1}))
        assert totals(state) == {"a": 6}

    @both_kinds
    @every_raise
    @pytest.mark.parametrize("later", [0, 1], ids=["of equal rank", "of higher rank"])
    def test_a_ledger_that_went_back_by_one_transaction_is_refused(
        self, make_state: MakeState, grants: Grants, kind: str, use: Use, later: int
    ) -> None:
        state = make_state(kind)
        grants.commit(1, state, {"a": 1})
        grants.commit(2, state, {"a": 2, "b": 5})
        grants.go_back(2)
        with pytest.raises(LedgerBehind, match=r"says transaction 2 \(another one .*--ledger-lost"):
            use(state, grants(2, 1 + later), rows({"a": 4}))
        assert totals(state) == {"a": 3, "b": 5}

    @both_kinds
    @every_raise
    def test_another_ledger_is_refused(self, make_state: MakeState, grants: Grants, kind: str, use: Use) -> None:
        state = make_state(kind)
        grants.commit(1, state, {"a": 1})
        with pytest.raises(FenceForeign):
            use(state, Grants()(1), rows({"a": 1}))
        assert totals(state) == {"a": 1}

    @both_kinds
    def test_after_a_repair_the_new_generation_outranks_the_old_one(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state = make_state(kind)
        for txid in (1, 2, 3):
            grants.commit(txid, state, {"a": txid})
        late = grants(3)
        grants.generation, grants.last = 2, {}  # the ledger accepted what the state holds
        grants.commit(4, state, {"a": 4})
        for use in (_raise, _write, _raise_and_write):
            with pytest.raises((FenceOutranked, LedgerBehind)):
                use(state, late, rows({"a": 1}))
        assert totals(state) == {"a": 10}

    # --- several states, several writers -------------------------------------------------------------------------

    def test_two_states_are_fenced_and_rolled_back_each_for_itself(self, make_state: MakeState, grants: Grants) -> None:
        first, second = make_state("opaque", "first"), make_state("opaque", "second")
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

    @both_kinds
    def test_a_chunk_that_is_sent_twice_is_harmless(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state, grant = make_state(kind), grants(1)
        state.raise_fence(grant)
        for chunk, key in ((1, "a"), (2, "b"), (1, "a"), (2, "b")):
            state.write(grant, rows({key: chunk}), chunk=chunk, complete=False)
        assert totals(state) == {"a": 1, "b": 2}

    @both_kinds
    def test_a_key_from_two_chunks_is_refused(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state, grant = make_state(kind), grants(1)
        state.raise_fence(grant)
        state.write(grant, rows({"a": 1}), chunk=1, complete=False)
        with pytest.raises(ChunkConflict, match="'a'.* came from chunk 1 and from chunk 2"):
            state.write(grant, rows({"b": 1, "a": 1}), chunk=2, complete=False)
        assert totals(state) == {"a": 1}

    @both_kinds
    def test_a_replay_may_be_cut_into_other_chunks(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state, old, new = make_state(kind), grants(1), grants(1, 2)
        state.raise_fence(old)
        state.write(old, rows({"a": 1}), chunk=1, complete=False)
        state.raise_fence(new)
        state.write(new, rows({"a": 1, "b": 1}), chunk=2, complete=False)
        with pytest.raises(ChunkConflict):
            state.write(new, rows({"a": 1}), chunk=1, complete=False)
        assert totals(state) == {"a": 1, "b": 1}

    # --- updates -------------------------------------------------------------------------------------------------

    @both_kinds
    def test_an_empty_update_raises_the_fence_all_the_same(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state, grant = make_state(kind), grants(1)
        assert state.raise_and_write(grant, []) == 0
        assert state.fence() == Fence(grant.incarnation, grant.token, True, grant.batch)
        grants.final(grant, state)
        grants.commit(2, state, {"a": 1})
        assert totals(state) == {"a": 1}

    @both_kinds
    def test_a_large_update_is_all_there(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state, count = make_state(kind), 25_000
        for txid in (1, 2):
            grant = grants(txid)
            assert state.raise_and_write(grant, ({"key": f"key {i}", "n": i} for i in range(count))) == count
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
            ({"key": "key 3", "n": 1}, "its key comes twice"),
        ],
    )
    def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(
        self, make_state: MakeState, grants: Grants, wrong: dict[str, Any], message: str
    ) -> None:
        state, count = make_state("opaque"), 12_000
        grants.commit(1, state, {"key 1": 1})
        before, grant = state.fence(), grants(2)
        update = [*({"key": f"key {i}", "n": i} for i in range(count)), wrong]
        with pytest.raises(StateError, match=f"row {count}.*{message}"):
            state.raise_and_write(grant, update)
        assert (totals(state), state.fence()) == ({"key 1": 1}, before)
        state.raise_fence(grant)
        with pytest.raises(StateError, match=f"row {count}.*{message}"):
            state.write(grant, update)
        assert totals(state) == {"key 1": 1}

    def test_keys_come_back_as_they_were(self, make_state: MakeState, grants: Grants) -> None:
        keys = [
            "",
            " ",
            "a",
            "A",
            "ä",
            "a\u0308",
            '"',
            "\\",
            "{a,b}",
            "NULL",
            "null",
            "'; --",
            "\t\n\r",
            "%s",
            ":x",
            "日本",
        ]
        state = make_state("opaque")
        for txid in (1, 2):
            grants.commit(txid, state, dict.fromkeys(keys, 1))
        assert totals(state) == dict.fromkeys(keys, 2)

    def test_the_largest_numbers_are_exact(self, make_state: MakeState, grants: Grants) -> None:
        state, largest = make_state("opaque"), 2**63 - 1
        grants.commit(1, state, {"up": largest - 1, "down": -(2**63)})
        grants.commit(2, state, {"up": 1})
        assert totals(state) == {"up": largest, "down": -(2**63)}

    # --- look-ups ------------------------------------------------------------------------------------------------

    @both_kinds
    def test_many_keys_are_asked_for_in_one_call_and_answered_in_their_order(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        state, count = queried(make_state(kind)), 12_000
        assert state.multi_get([("key 1",), ("key 2",)]) == [None, None]
        grants.commit_rows(1, make_state(kind), [{"key": f"key {i}", "n": i} for i in range(count)])
        wanted = [i for i in range(count + 5, -1, -1) for _ in range(2)]
        found = queried(make_state(kind)).multi_get([(f"key {i}",) for i in wanted])
        assert found == [{"n": i} if i < count else None for i in wanted]
        assert state.multi_get(["key 7", (None,), "", ["key 8"]]) == [{"n": 7}, None, None, {"n": 8}]
        assert state.multi_get([]) == []

    def test_what_a_key_has_is_what_is_read(self, make_state: MakeState, grants: Grants) -> None:
        values: dict[str, Aggregator] = {"n": Sum(), "mean": Avg()}
        state = make_state("opaque", keys=("word", "number"), values=values)
        rows = [{"word": word, "number": i, "n": i, "mean": float(i)} for i, word in enumerate(("a", "b", "b"), 1)]
        for txid in (1, 2):
            grants.commit_rows(txid, state, rows)
        read = {(row.pop("word"), row.pop("number")): row for row in map(dict, queried(state).read())}
        assert len(read) == 3
        keys = [("b", 3), ("a", 2), ("b", 2), ("a", 1)]
        assert queried(state).multi_get(keys) == [read.get(key) for key in keys]
        assert read["b", 3].items() >= {"n": 6, "mean": 3.0}.items()

    @key_types
    def test_a_key_of_every_type_can_be_asked_for(self, make_state: MakeState, grants: Grants, key_type: str) -> None:
        if key_type in self.cannot:
            pytest.skip(f"the store does not take {key_type}")
        absent, *keys = EXAMPLES[key_type]
        grants.commit_rows(1, make_state("opaque", types={"key": key_type}), [{"key": key, "n": 1} for key in keys])
        state = queried(make_state("opaque"))
        assert state.key_types() == {"key": key_type}
        assert state.multi_get([(key,) for key in (*keys, absent)]) == [*[{"n": 1} for _ in keys], None]

    def test_a_long_key_can_be_asked_for(self, make_state: MakeState, grants: Grants) -> None:
        state, key = make_state("opaque"), "ä" * 512
        grants.commit(1, state, {key: 1})
        assert queried(state).multi_get([key, key[:-1], key + "x"]) == [{"n": 1}, None, None]

    def test_equal_numbers_are_one_key_to_whoever_asks(self, make_state: MakeState, grants: Grants) -> None:
        for key_type, one, other in (("numeric", Decimal("1.50"), Decimal("1.5")), ("double", 0.0, -0.0)):
            state = make_state("opaque", key_type, types={"key": key_type})
            grants.commit_rows(1, state, [{"key": one, "n": 1}])
            assert queried(state).multi_get([(one,), (other,)]) == [{"n": 1}, {"n": 1}]

    def test_a_state_without_keys_is_asked_with_an_empty_key(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("opaque", keys=())
        assert queried(state).multi_get([()]) == [None]
        grants.commit_rows(1, state, [{"n": 4}])
        assert queried(state).multi_get([(), ()]) == [{"n": 4}, {"n": 4}]

    def test_what_was_rolled_back_is_not_found(self, make_state: MakeState, grants: Grants) -> None:
        state = make_state("opaque")
        grants.commit(1, state, {"a": 5})
        state.raise_and_write(grants(2), rows({"a": 10, "new": 1}))
        assert queried(state).multi_get(["a", "new"]) == [{"n": 15}, {"n": 1}]
        state.raise_fence(grants(2, 2))
        assert queried(state).multi_get(["a", "new"]) == [{"n": 5}, None]

    def test_a_key_that_is_none_of_this_state_is_named(self, make_state: MakeState, grants: Grants) -> None:
        state = queried(make_state("opaque", keys=("word", "number")))
        for _ in range(2):
            with pytest.raises(StateError, match=r"key 1 .*it has 2 key columns \(word, number\)"):
                state.multi_get([("a", 1), ("a",)])
            grants.commit_rows(1, make_state("opaque", keys=("word", "number")), [{"word": "a", "number": 1, "n": 1}])
        with pytest.raises(StateError, match=r"key 2 .*number = 'one' is not an integer. The column is a bigint"):
            state.multi_get([("a", 1), ("a", None), ("a", "one")])

    @both_kinds
    def test_a_part_of_the_values_can_be_read(self, make_state: MakeState, grants: Grants, kind: str) -> None:
        state = make_state(kind)
        assert queried(state).read(limit=3) == []
        grants.commit(1, state, {f"key {i}": i for i in range(100)})
        every = state.read()
        some = queried(state).read(limit=3)
        assert len(some) == 3
        assert all(row in every for row in some)
        assert (queried(state).read(limit=0), queried(state).read(limit=1000)) == ([], every)


def queried(state: FencedState) -> QueryableState:
    """The state, if it can be asked for many keys at once; else the test is skipped."""
    if not isinstance(state, QueryableState):
        pytest.skip("the state has no multi_get")
    return state


def _applied(state: FencedState) -> bool:
    row = state.fence()
    assert row is not None
    return row.applied
