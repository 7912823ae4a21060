"""The tests of a backing map. Subclass `MapSuite`, and override the fixture that opens your map.

class TestMyMap(MapSuite):
    @pytest.fixture
    def make_backing(self, tmp_path):
        return lambda kind: MyMap(tmp_path / kind)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings

from airflow_tx.base.errors import StateError, TxidBehind
from airflow_tx.state.keys import Key
from airflow_tx.state.maps import OpaqueValue, Replace, SnapshottableMap, TransactionalValue
from airflow_tx.testing.suites import map_tools
from airflow_tx.testing.suites.map_programs import Attempt, check_program, programs
from airflow_tx.testing.suites.map_tools import (
    MAPS,
    AnyMap,
    Lost,
    MakeBacking,
    Opened,
    apply,
    batch,
    plus,
    value,
)


class MapSuite:
    """Tests for maps over a backing map. Override the fixture `make_backing`.

    :cvar values: values that the store must return unchanged. Some stores accept fewer types than JSON.
    :cvar examples: the number of random programs to run.
    """

    values: ClassVar[Sequence[Any]] = [
        0,
        1,
        -1,
        2**63 - 1,
        0.1,
        True,
        "",
        "ä\n\"'",
        [1, [2]],
        {"a": None},
    ]
    examples: ClassVar[int] = 100

    @pytest.fixture
    def make_backing(self) -> MakeBacking:
        raise NotImplementedError("override the fixture `make_backing`")

    @pytest.fixture(params=list(MAPS))
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture(params=[False, True], ids=["plain", "cached"])
    def opened(
        self, make_backing: MakeBacking, kind: str, request: pytest.FixtureRequest
    ) -> Opened:
        """Return a function that opens maps of this kind, with or without a cache."""
        return Opened(make_backing, kind, request.param)

    @pytest.fixture
    def state(self, opened: Opened) -> AnyMap:
        return opened()

    # --- get, update, put ----------------------------------------------------------------------------------------

    def test_a_key_that_was_never_stored_has_no_value(self, opened: Opened) -> None:
        assert opened().multi_get([("", "a"), ("", "b")]) == [None, None]

    def test_values_come_in_the_order_of_the_keys(self, opened: Opened, state: AnyMap) -> None:
        state.begin_commit(1)
        assert apply(state, [("b", 2), ("a", 1), ("c", 3)]) == [2, 1, 3]
        state.commit(1)
        found = opened().multi_get([("", "c"), ("", "none"), ("", "a"), ("", "b"), ("", "a")])
        assert found == [3, None, 1, 2, 1]

    def test_a_later_batch_adds_to_what_is_stored(self, opened: Opened, state: AnyMap) -> None:
        for txid in (1, 2, 5):
            batch(state, txid, [("a", txid), ("b", 1)])
        assert (value(opened(), "a"), value(opened(), "b")) == (8, 3)

    def test_the_second_update_of_a_key_in_a_batch_sees_the_first(
        self, opened: Opened, state: AnyMap
    ) -> None:
        batch(state, 1, [("a", 1)])
        state.begin_commit(2)
        assert apply(state, [("a", 10), ("b", 1), ("a", 100)]) == [11, 1, 111]
        assert value(state, "a") == 111
        assert apply(state, [("a", 1000)]) == [1111]
        state.commit(2)
        assert value(opened(), "a") == 1111

    def test_a_put_replaces_the_value(self, opened: Opened, state: AnyMap) -> None:
        batch(state, 1, [("a", 1)])
        state.begin_commit(2)
        state.multi_put([("", "a"), ("", "b")], [7, 8])
        state.commit(2)
        assert opened().multi_get([("", "a"), ("", "b")]) == [7, 8]

    def test_an_update_takes_one_get_and_one_put(self, opened: Opened, state: AnyMap) -> None:
        state.begin_commit(1)
        apply(state, [(word, 1) for word in "abcda"])
        assert opened.last.trips == ["get", "put"]
        apply(state, [("e", 1), ("f", 1)])
        assert opened.last.trips == ["get", "put"] * 2
        opened.last.trips.clear()
        state.multi_get([("", word) for word in "xyz"])
        assert opened.last.trips == ["get"]
        assert (state.multi_update([], []), state.multi_get([]), opened.last.trips) == (
            [],
            [],
            ["get"],
        )

    def test_values_come_back_as_they_were(self, opened: Opened) -> None:
        state = opened()
        keys = [("", number) for number in range(len(self.values))]
        state.begin_commit(1)
        state.multi_put(keys, self.values)
        state.commit(1)
        found = opened().multi_get(keys)
        assert (found, [type(each) for each in found]) == (
            list(self.values),
            [type(each) for each in self.values],
        )

    def test_keys_of_several_columns_are_told_apart(self, opened: Opened) -> None:
        keys: list[Key] = [
            ("a", "b,c"),
            ("a,b", "c"),
            ("a", "b", "c"),
            ("a",),
            ("",),
            (1,),
            ("1",),
            ("ä \n\t\"'/%s:",),
        ]
        state = opened()
        state.begin_commit(1)
        state.multi_put(keys, list(range(len(keys))))
        state.commit(1)
        assert opened().multi_get(keys) == list(range(len(keys)))

    def test_an_updater_may_change_the_value_that_it_gets(self, opened: Opened) -> None:
        class Append:
            def __init__(self, item: int) -> None:
                self.item = item

            def update(self, stored: Any) -> Any:
                stored = [] if stored is None else stored
                stored.append(self.item)
                return stored

        state = opened()
        for txid, item in ((1, 1), (2, 2), (2, 3)):
            state.begin_commit(txid)
            state.multi_update([("", "list")], [Append(item)])
            state.commit(txid)
        expected = {"opaque": [1, 3], "transactional": [1, 2], "non-transactional": [1, 2, 3]}
        assert value(opened(), "list") == expected[opened.kind]

    # --- removal -------------------------------------------------------------------------------------------------

    def test_none_removes_a_key_and_it_can_come_back(self, opened: Opened, state: AnyMap) -> None:
        batch(state, 1, [("a", 1), ("b", 1)])
        state.begin_commit(2)
        assert state.multi_update([("", "a")], [Replace(None)]) == [None]
        assert value(state, "a") is None
        state.commit(2)
        assert (value(opened(), "a"), value(opened(), "b")) == (None, 1)
        batch(state, 3, [("a", 5)])
        assert value(opened(), "a") == 5

    @map_tools.opaque_only
    def test_a_replay_without_the_removal_brings_the_key_back(
        self, opened: Opened, state: AnyMap
    ) -> None:
        batch(state, 1, [("a", 1)])
        state.begin_commit(2)
        state.multi_put([("", "a")], [None])
        batch(state, 2, [("a", 10)])
        assert value(opened(), "a") == 11

    # --- replays -------------------------------------------------------------------------------------------------

    @map_tools.exact_kinds
    @pytest.mark.parametrize("again", ["the same map", "another map"])
    def test_a_replay_with_the_same_rows_counts_nothing_twice(
        self, opened: Opened, state: AnyMap, again: str
    ) -> None:
        batch(state, 1, [("a", 1)])
        for _ in range(3):
            batch(
                state if again == "the same map" else opened(),
                2,
                [("a", 10), ("b", 5), ("a", 100)],
                [("b", 1)],
            )
        assert (value(opened(), "a"), value(opened(), "b")) == (111, 6)

    @pytest.mark.parametrize("kind", ["non-transactional"], indirect=True)
    def test_a_replay_counts_twice_without_transactions(self, opened: Opened) -> None:
        for _ in range(2):
            batch(opened(), 1, [("a", 1)])
        assert value(opened(), "a") == 2

    @map_tools.exact_kinds
    def test_a_replay_of_a_batch_that_ended_between_two_updates_of_a_key_is_exact(
        self, opened: Opened, state: AnyMap
    ) -> None:
        state.begin_commit(1)
        apply(state, [("a", 1)])
        batch(opened(), 1, [("a", 1)], [("a", 10)])
        assert value(opened(), "a") == 11

    @map_tools.opaque_only
    def test_a_replay_with_other_rows_starts_from_the_values_before(
        self, opened: Opened, state: AnyMap
    ) -> None:
        batch(state, 320, [("a", 5)])
        batch(state, 321, [("a", 8)])
        assert value(opened(), "a") == 13
        batch(state, 321, [("a", 4)])
        assert value(opened(), "a") == 9
        assert opened.stored(("", "a")) == OpaqueValue(321, 9, 5)

    @map_tools.opaque_only
    def test_a_key_that_only_a_failed_attempt_touched_keeps_what_it_wrote_as_in_trident(
        self, opened: Opened, state: AnyMap
    ) -> None:
        state.begin_commit(1)
        apply(state, [("a", 1), ("b", 1)])
        batch(state, 1, [("a", 1)])
        assert value(opened(), "b") == 1

    @map_tools.exact_kinds
    def test_a_transaction_behind_the_stored_one_is_refused_and_nothing_is_put(
        self, opened: Opened
    ) -> None:
        batch(opened(), 5, [("a", 1)])
        late = opened()
        late.begin_commit(4)
        for use in (lambda: apply(late, [("b", 1), ("a", 1)]), lambda: late.multi_get([("", "a")])):
            with pytest.raises((TxidBehind, StateError), match="transaction 4"):
                use()
        assert opened.last.trips.count("put") == 0
        assert (value(opened(), "a"), value(opened(), "b")) == (1, None)

    @map_tools.exact_kinds
    @pytest.mark.parametrize("end", ["refused", "unanswered"])
    def test_after_a_put_without_answer_only_a_replay_of_the_batch_is_taken(
        self, opened: Opened, state: AnyMap, end: str
    ) -> None:
        batch(state, 1, [("a", 1)])
        state.begin_commit(2)
        apply(state, [("a", 10)])
        opened.last.fail = end
        with pytest.raises(Lost):
            apply(state, [("a", 100), ("b", 1)])
        with pytest.raises(StateError, match=r"update of transaction 2 failed.*begin_commit\(2\)"):
            apply(state, [("a", 100), ("b", 1)])
        with pytest.raises(StateError, match="transaction 2"):
            state.commit(2)
        batch(state, 2, [("a", 10)], [("a", 100), ("b", 1)])
        assert (value(opened(), "a"), value(opened(), "b")) == (111, 1)

    def test_a_commit_of_another_transaction_is_refused(
        self, opened: Opened, state: AnyMap
    ) -> None:
        state.begin_commit(1)
        with pytest.raises(StateError, match="commit of transaction 2, but 1 was begun"):
            state.commit(2)

    def test_what_another_writer_stored_between_two_batches_is_seen(
        self, opened: Opened, state: AnyMap
    ) -> None:
        batch(state, 1, [("a", 1)])
        batch(opened(), 2, [("a", 10)])
        batch(state, 3, [("a", 100)])
        assert (value(state, "a"), value(opened(), "a")) == (111, 111)

    @map_tools.exact_kinds
    def test_an_update_outside_of_transactions_is_neither_undone_nor_repeated_by_a_replay(
        self, opened: Opened, state: AnyMap
    ) -> None:
        state.begin_commit(None)
        apply(state, [("new", 7)])
        state.commit(None)
        for _ in range(2):
            batch(state, 1, [("a", 1), ("new", 1)])
        state.begin_commit(None)
        apply(state, [("a", 100)])
        state.commit(None)
        batch(state, 1, [("a", 1), ("new", 1)])
        batch(state, 2, [("a", 10)])
        assert (value(opened(), "a"), value(opened(), "new")) == (111, 8)

    @pytest.mark.parametrize("kind", list(programs), indirect=True)
    def test_any_program_equals_the_last_attempt_of_each_batch_applied_once(
        self, opened: Opened
    ) -> None:
        @settings(
            max_examples=self.examples,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(programs[opened.kind])
        def check(program: list[list[Attempt]]) -> None:
            check_program(opened, program)

        check()

    # --- examples of the seeds -----------------------------------------------------------------------------------

    @map_tools.transactional_only
    def test_the_seeds_example_of_a_transactional_state(self, opened: Opened) -> None:
        stored = {("man",): (1, 3), ("dog",): (3, 4), ("apple",): (2, 10)}
        opened.put({key: TransactionalValue(*each) for key, each in stored.items()})
        state = opened()
        state.begin_commit(3)
        state.multi_update([("man",), ("man",), ("dog",)], [plus(1)] * 3)
        state.commit(3)
        assert opened.stored(("man",)) == TransactionalValue(3, 5)
        assert opened.stored(("dog",)) == TransactionalValue(3, 4)
        assert opened.stored(("apple",)) == TransactionalValue(2, 10)

    @map_tools.opaque_only
    @pytest.mark.parametrize(
        ("txid", "after"), [(3, OpaqueValue(3, 6, 4)), (2, OpaqueValue(2, 3, 1))]
    )
    def test_the_seeds_example_of_an_opaque_state(
        self, opened: Opened, txid: int, after: OpaqueValue[int]
    ) -> None:
        opened.put({("count",): OpaqueValue(txid=2, value=4, prev=1)})
        state = opened()
        state.begin_commit(txid)
        assert state.multi_update([("count",)], [plus(2)]) == [after.value]
        state.commit(txid)
        assert opened.stored(("count",)) == after

    @map_tools.exact_kinds
    def test_a_global_count_is_one_value_under_a_fixed_key(self, opened: Opened) -> None:
        for txid, partial in ((1, 5), (2, 3), (2, 3)):
            state = SnapshottableMap(opened())
            state.begin_commit(txid)
            state.update(plus(partial))
            state.commit(txid)
        assert SnapshottableMap(opened()).get() == 8
        state.begin_commit(3)
        state.set(1)
        state.commit(3)
        assert SnapshottableMap(opened()).get() == 1
