"""What every backing map must do, as tests: subclass `MapSuite` and say how to open yours.

class TestMyMap(MapSuite):
    @pytest.fixture
    def make_backing(self, tmp_path):
        return lambda kind: MyMap(tmp_path / kind)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tx.errors import StateError, TxidBehind
from airflow_tx.state.aggregators import Sum
from airflow_tx.state.keys import Key
from airflow_tx.state.trident.cached import CachedMap
from airflow_tx.state.trident.maps import BackingMap, NonTransactionalMap, OpaqueMap, TransactionalMap
from airflow_tx.state.trident.snapshot import SnapshottableMap
from airflow_tx.state.trident.updaters import CombinerValueUpdater, Replace, ValueUpdater
from airflow_tx.state.trident.values import OpaqueValue, TransactionalValue

MAPS: dict[str, Any] = {
    "non-transactional": NonTransactionalMap,
    "transactional": TransactionalMap,
    "opaque": OpaqueMap,
}
AnyMap: TypeAlias = "NonTransactionalMap[Any] | TransactionalMap[Any] | OpaqueMap[Any]"
Deltas: TypeAlias = "list[tuple[str, int]]"
exact_kinds = pytest.mark.parametrize("kind", ["transactional", "opaque"], indirect=True)
opaque_only = pytest.mark.parametrize("kind", ["opaque"], indirect=True)
transactional_only = pytest.mark.parametrize("kind", ["transactional"], indirect=True)


class Lost(Exception):
    """The store does not answer."""


class Counting:
    """A backing map that counts round trips, and that fails when it is told to."""

    def __init__(self, backing: BackingMap[Any]) -> None:
        self._backing = backing
        self.trips: list[str] = []
        self.fail: str | None = None

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        """As the backing map."""
        self.trips.append("get")
        return self._backing.multi_get(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """As the backing map; refused: nothing happens; unanswered: it happens, and fails."""
        assert len(set(keys)) == len(keys)
        self.trips.append("put")
        fail, self.fail = self.fail, None
        if fail != "refused":
            self._backing.multi_put(keys, values)
        if fail is not None:
            raise Lost(fail)


class MakeBacking(Protocol):
    """Opens the store under test; within a test, the same store again, as another process would."""

    def __call__(self, kind: str) -> BackingMap[Any]:
        """Open it for values of one kind: "opaque", "transactional" or "non-transactional"."""


class Opened:
    """Opens maps over the store under test."""

    def __init__(self, make_backing: MakeBacking, kind: str, cached: bool) -> None:
        self.kind, self.cached, self._make = kind, cached, make_backing
        self.last: Counting

    def __call__(self) -> AnyMap:
        """A map as another process would open it."""
        self.last = Counting(self._make(self.kind))
        backing: BackingMap[Any] = CachedMap(self.last, 3) if self.cached else self.last
        opened: AnyMap = MAPS[self.kind](backing)
        return opened

    def put(self, values: dict[Key, Any]) -> None:
        """Store values as they are, behind all maps."""
        self._make(self.kind).multi_put(list(values), list(values.values()))

    def stored(self, key: Key) -> Any:
        """What the store holds for a key."""
        return self._make(self.kind).multi_get([key])[0]


def plus(delta: int) -> ValueUpdater[Any]:
    """Adds to what is stored."""
    return CombinerValueUpdater(Sum(), delta)


def apply(state: AnyMap, deltas: Deltas, prefix: str = "") -> list[Any]:
    """One update; the new values."""
    return state.multi_update([(prefix, word) for word, _ in deltas], [plus(delta) for _, delta in deltas])


def commit(state: AnyMap, txid: int, *updates: Deltas) -> None:
    """One whole batch."""
    state.begin_commit(txid)
    for deltas in updates:
        apply(state, deltas)
    state.commit(txid)


def value(state: AnyMap, word: str, prefix: str = "") -> Any:
    """The value of a key."""
    return state.multi_get([(prefix, word)])[0]


@dataclass(frozen=True)
class Attempt:
    """One attempt at a batch: by which of the maps, its updates, and how many of them it gets to.

    :param ends: "refused" or "unanswered" is how its last update ends; "quiet": after it.
    """

    writer: int
    updates: tuple[Deltas, ...]
    ends: str = "quiet"


_numbers = st.integers(-9, 9)
_ends = st.sampled_from(["refused", "unanswered", "quiet"])


@st.composite
def opaque_batches(draw: st.DrawFn) -> list[Attempt]:
    """Attempts of one batch with other deltas each; the last one touches all keys that any of them does."""
    keys = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4))
    some = st.lists(st.tuples(st.sampled_from(keys), _numbers), max_size=4)
    early = st.builds(Attempt, st.integers(0, 2), st.lists(some, max_size=3).map(tuple), _ends)
    final = [[(key, draw(_numbers)) for key in keys], *draw(st.lists(some, max_size=2))]
    return [*draw(st.lists(early, max_size=3)), Attempt(draw(st.integers(0, 2)), tuple(final))]


@st.composite
def transactional_batches(draw: st.DrawFn) -> list[Attempt]:
    """Attempts of one batch with the same updates, of which the earlier attempts get to some."""
    some = st.lists(st.tuples(st.sampled_from("abcde"), _numbers), max_size=4)
    final = draw(st.lists(some, min_size=1, max_size=4).map(tuple))
    early = [
        Attempt(draw(st.integers(0, 2)), final[: draw(st.integers(0, len(final)))], draw(_ends))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return [*early, Attempt(draw(st.integers(0, 2)), final)]


_programs = {
    "opaque": st.lists(opaque_batches(), min_size=1, max_size=4),
    "transactional": st.lists(transactional_batches(), min_size=1, max_size=4),
}
_prefixes = itertools.count()


class MapSuite:
    """The behaviour of the maps over a backing map. Override the fixture `make_backing`.

    :cvar values: what the store has to give back as it was; some stores take less than JSON.
    :cvar examples: how many random programs are tried.
    """

    values: ClassVar[Sequence[Any]] = [0, 1, -1, 2**63 - 1, 0.1, True, "", "ä\n\"'", [1, [2]], {"a": None}]
    examples: ClassVar[int] = 100

    @pytest.fixture
    def make_backing(self) -> MakeBacking:
        """Opens the store under test."""
        raise NotImplementedError("override the fixture `make_backing`")

    @pytest.fixture(params=list(MAPS))
    def kind(self, request: pytest.FixtureRequest) -> str:
        """What a stored value remembers."""
        return str(request.param)

    @pytest.fixture(params=[False, True], ids=["plain", "cached"])
    def opened(self, make_backing: MakeBacking, kind: str, request: pytest.FixtureRequest) -> Opened:
        """Opens maps of each kind, with and without a cache."""
        return Opened(make_backing, kind, request.param)

    # --- get, update, put ----------------------------------------------------------------------------------------

    def test_a_key_that_was_never_stored_has_no_value(self, opened: Opened) -> None:
        assert opened().multi_get([("", "a"), ("", "b")]) == [None, None]

    def test_values_come_in_the_order_of_the_keys(self, opened: Opened) -> None:
        state = opened()
        state.begin_commit(1)
        assert apply(state, [("b", 2), ("a", 1), ("c", 3)]) == [2, 1, 3]
        state.commit(1)
        found = opened().multi_get([("", "c"), ("", "none"), ("", "a"), ("", "b"), ("", "a")])
        assert found == [3, None, 1, 2, 1]

    def test_a_later_batch_adds_to_what_is_stored(self, opened: Opened) -> None:
        state = opened()
        for txid in (1, 2, 5):
            commit(state, txid, [("a", txid), ("b", 1)])
        assert (value(opened(), "a"), value(opened(), "b")) == (8, 3)

    def test_the_second_update_of_a_key_in_a_batch_sees_the_first(self, opened: Opened) -> None:
        state = opened()
        commit(state, 1, [("a", 1)])
        state.begin_commit(2)
        assert apply(state, [("a", 10), ("b", 1), ("a", 100)]) == [11, 1, 111]
        assert value(state, "a") == 111
        assert apply(state, [("a", 1000)]) == [1111]
        state.commit(2)
        assert value(opened(), "a") == 1111

    def test_a_put_replaces_the_value(self, opened: Opened) -> None:
        state = opened()
        commit(state, 1, [("a", 1)])
        state.begin_commit(2)
        state.multi_put([("", "a"), ("", "b")], [7, 8])
        state.commit(2)
        assert opened().multi_get([("", "a"), ("", "b")]) == [7, 8]

    def test_an_update_takes_one_get_and_one_put(self, opened: Opened) -> None:
        state = opened()
        state.begin_commit(1)
        apply(state, [(word, 1) for word in "abcda"])
        assert opened.last.trips == ["get", "put"]
        apply(state, [("e", 1), ("f", 1)])
        assert opened.last.trips == ["get", "put"] * 2
        opened.last.trips.clear()
        state.multi_get([("", word) for word in "xyz"])
        assert opened.last.trips == ["get"]
        assert (state.multi_update([], []), state.multi_get([]), opened.last.trips) == ([], [], ["get"])

    def test_values_come_back_as_they_were(self, opened: Opened) -> None:
        state, keys = opened(), [("", number) for number in range(len(self.values))]
        state.begin_commit(1)
        state.multi_put(keys, self.values)
        state.commit(1)
        found = opened().multi_get(keys)
        assert (found, [type(each) for each in found]) == (list(self.values), [type(each) for each in self.values])

    def test_keys_of_several_columns_are_told_apart(self, opened: Opened) -> None:
        keys: list[Key] = [("a", "b,c"), ("a,b", "c"), ("a", "b", "c"), ("a",), ("",), (1,), ("1",), ("ä \n\t\"'/%s:",)]
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

    def test_none_removes_a_key_and_it_can_come_back(self, opened: Opened) -> None:
        state = opened()
        commit(state, 1, [("a", 1), ("b", 1)])
        state.begin_commit(2)
        assert state.multi_update([("", "a")], [Replace(None)]) == [None]
        assert value(state, "a") is None
        state.commit(2)
        assert (value(opened(), "a"), value(opened(), "b")) == (None, 1)
        commit(state, 3, [("a", 5)])
        assert value(opened(), "a") == 5

    @opaque_only
    def test_a_replay_without_the_removal_brings_the_key_back(self, opened: Opened) -> None:
        state = opened()
        commit(state, 1, [("a", 1)])
        state.begin_commit(2)
        state.multi_put([("", "a")], [None])
        commit(state, 2, [("a", 10)])
        assert value(opened(), "a") == 11

    # --- replays -------------------------------------------------------------------------------------------------

    @exact_kinds
    @pytest.mark.parametrize("again", ["the same map", "another map"])
    def test_a_replay_with_the_same_rows_counts_nothing_twice(self, opened: Opened, again: str) -> None:
        state = opened()
        commit(state, 1, [("a", 1)])
        for _ in range(3):
            commit(state if again == "the same map" else opened(), 2, [("a", 10), ("b", 5), ("a", 100)], [("b", 1)])
        assert (value(opened(), "a"), value(opened(), "b")) == (111, 6)

    @pytest.mark.parametrize("kind", ["non-transactional"], indirect=True)
    def test_a_replay_counts_twice_without_transactions(self, opened: Opened) -> None:
        for _ in range(2):
            commit(opened(), 1, [("a", 1)])
        assert value(opened(), "a") == 2

    @exact_kinds
    def test_a_replay_of_a_batch_that_ended_between_two_updates_of_a_key_is_exact(self, opened: Opened) -> None:
        state = opened()
        state.begin_commit(1)
        apply(state, [("a", 1)])
        commit(opened(), 1, [("a", 1)], [("a", 10)])
        assert value(opened(), "a") == 11

    @opaque_only
    def test_a_replay_with_other_rows_starts_from_the_values_before(self, opened: Opened) -> None:
        state = opened()
        commit(state, 320, [("a", 5)])
        commit(state, 321, [("a", 8)])
        assert value(opened(), "a") == 13
        commit(state, 321, [("a", 4)])
        assert value(opened(), "a") == 9
        assert opened.stored(("", "a")) == OpaqueValue(321, 9, 5)

    @opaque_only
    def test_a_key_that_only_a_failed_attempt_touched_keeps_what_it_wrote_as_in_trident(self, opened: Opened) -> None:
        state = opened()
        state.begin_commit(1)
        apply(state, [("a", 1), ("b", 1)])
        commit(state, 1, [("a", 1)])
        assert value(opened(), "b") == 1

    @exact_kinds
    def test_a_transaction_behind_the_stored_one_is_refused_and_nothing_is_put(self, opened: Opened) -> None:
        commit(opened(), 5, [("a", 1)])
        late = opened()
        late.begin_commit(4)
        for use in (lambda: apply(late, [("b", 1), ("a", 1)]), lambda: late.multi_get([("", "a")])):
            with pytest.raises((TxidBehind, StateError), match="transaction 4"):
                use()
        assert opened.last.trips.count("put") == 0
        assert (value(opened(), "a"), value(opened(), "b")) == (1, None)

    @exact_kinds
    @pytest.mark.parametrize("end", ["refused", "unanswered"])
    def test_after_a_put_without_answer_only_a_replay_of_the_batch_is_taken(self, opened: Opened, end: str) -> None:
        state = opened()
        commit(state, 1, [("a", 1)])
        state.begin_commit(2)
        apply(state, [("a", 10)])
        opened.last.fail = end
        with pytest.raises(Lost):
            apply(state, [("a", 100), ("b", 1)])
        with pytest.raises(StateError, match=r"update of transaction 2 failed.*begin_commit\(2\)"):
            apply(state, [("a", 100), ("b", 1)])
        with pytest.raises(StateError, match="transaction 2"):
            state.commit(2)
        commit(state, 2, [("a", 10)], [("a", 100), ("b", 1)])
        assert (value(opened(), "a"), value(opened(), "b")) == (111, 1)

    def test_a_commit_of_another_transaction_is_refused(self, opened: Opened) -> None:
        state = opened()
        state.begin_commit(1)
        with pytest.raises(StateError, match="commit of transaction 2, but 1 was begun"):
            state.commit(2)

    def test_what_another_writer_stored_between_two_batches_is_seen(self, opened: Opened) -> None:
        state = opened()
        commit(state, 1, [("a", 1)])
        commit(opened(), 2, [("a", 10)])
        commit(state, 3, [("a", 100)])
        assert (value(state, "a"), value(opened(), "a")) == (111, 111)

    @exact_kinds
    def test_an_update_outside_of_transactions_is_neither_undone_nor_repeated_by_a_replay(self, opened: Opened) -> None:
        state = opened()
        state.begin_commit(None)
        apply(state, [("new", 7)])
        state.commit(None)
        for _ in range(2):
            commit(state, 1, [("a", 1), ("new", 1)])
        state.begin_commit(None)
        apply(state, [("a", 100)])
        state.commit(None)
        commit(state, 1, [("a", 1), ("new", 1)])
        commit(state, 2, [("a", 10)])
        assert (value(opened(), "a"), value(opened(), "new")) == (111, 8)

    @pytest.mark.parametrize("kind", list(_programs), indirect=True)
    def test_any_program_equals_the_last_attempt_of_each_batch_applied_once(self, opened: Opened) -> None:
        @settings(
            max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
        )
        @given(_programs[opened.kind])
        def check(program: list[list[Attempt]]) -> None:
            _check_program(opened, program)

        check()

    # --- examples of the seeds -----------------------------------------------------------------------------------

    @transactional_only
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

    @opaque_only
    @pytest.mark.parametrize(("txid", "after"), [(3, OpaqueValue(3, 6, 4)), (2, OpaqueValue(2, 3, 1))])
    def test_the_seeds_example_of_an_opaque_state(self, opened: Opened, txid: int, after: OpaqueValue[int]) -> None:
        opened.put({("count",): OpaqueValue(txid=2, value=4, prev=1)})
        state = opened()
        state.begin_commit(txid)
        assert state.multi_update([("count",)], [plus(2)]) == [after.value]
        state.commit(txid)
        assert opened.stored(("count",)) == after

    @exact_kinds
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


def _check_program(opened: Opened, program: list[list[Attempt]]) -> None:
    # Keys of its own for every program: a store each would take a server too long.
    prefix, expected = f"program {next(_prefixes)}", dict[str, int]()
    writers: list[AnyMap] = []
    stores: list[Counting] = []
    for _ in range(3):
        writers.append(opened())
        stores.append(opened.last)
    for txid, attempts in enumerate(program, 1):
        for attempt in attempts:
            _perform(writers[attempt.writer], stores[attempt.writer], txid, attempt, prefix)
        final = attempts[-1]
        writers[final.writer].commit(txid)
        for word, delta in itertools.chain(*final.updates):
            expected[word] = expected.get(word, 0) + delta
    # The others may still be in a batch that ended for them in the middle.
    for state in (writers[program[-1][-1].writer], opened()):
        assert {word: value(state, word, prefix) for word in expected} == expected


def _perform(state: AnyMap, store: Counting, txid: int, attempt: Attempt, prefix: str) -> None:
    state.begin_commit(txid)
    for number, deltas in enumerate(attempt.updates, 1):
        store.fail = attempt.ends if number == len(attempt.updates) and attempt.ends != "quiet" else None
        try:
            apply(state, deltas, prefix)
        except Lost:
            return
    store.fail = None
