"""The tests of states that one store transaction writes. Subclass `TogetherSuite`.

class TestMyStates(TogetherSuite):
    @pytest.fixture
    def make_state(self, tmp_path):
        def make(kind, name="first", *, keys=("key",), values=None, types=None):
            return MyState(tmp_path, name, keys=keys, values=values or {"n": Sum()}, kind=kind, types=types)
        return make
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, combinations_with_replacement
from typing import Any, ClassVar

import pytest

from airflow_tx.base.errors import (
    ChunkConflict,
    FenceForeign,
    FenceOutranked,
    LedgerBehind,
    StateBehind,
    StateError,
)
from airflow_tx.ledger.receipt import Written
from airflow_tx.state.api import (
    Grant,
    LookUp,
    StateKind,
    StateWrite,
    StoredState,
    write_together,
)
from airflow_tx.state.arrow import RowTally
from airflow_tx.testing.suites.state_receipts import expected_receipt
from airflow_tx.testing.suites.state_tools import (
    Grants,
    MakeState,
    StateTests,
    about_to_restate,
    about_to_skip,
    is_applied,
    rows,
    totals,
)

GivenRows = Sequence[Mapping[str, Any]]
# Fences are raised in alphabetical order, so these names are in a different order.
NAMES = ("second", "third", "first")
FIRST, SECOND, OTHER = {"a": 1, "b": 2}, {"a": 10, "c": 3}, {"a": 7, "d": 5}


@dataclass(frozen=True)
class Group:
    """Several states in one store, which are written in this order.

    :param kinds: the kind of each state.
    :param make_state: the function that opens a state.
    """

    kinds: tuple[str, ...]
    make_state: MakeState

    def opened(self) -> list[StoredState]:
        """Open all states again, as another process would do."""
        found = []
        for kind, name in zip(self.kinds, NAMES, strict=False):
            state = self.make_state(kind, name)
            assert isinstance(state, StoredState)
            found.append(state)
        return found

    def totals(self) -> list[dict[str, Any]]:
        """Return the values of each state. They are read through a new connection."""
        return [totals(state) for state in self.opened()]


def joint_writes(
    grant: Grant,
    states: Sequence[StoredState],
    given: Sequence[Iterable[Mapping[str, Any]]],
    **how: Any,
) -> list[tuple[StoredState, StateWrite]]:
    """Return, for each state, the write that raises its fence and stores its rows."""
    how = {"raising": True, **how}
    return [
        (state, StateWrite(state.name, grant, RowTally.of(each, state.added_up), **how))
        for state, each in zip(states, given, strict=True)
    ]


def together(
    grant: Grant,
    states: Sequence[StoredState],
    given: Sequence[Iterable[Mapping[str, Any]]],
    **how: Any,
) -> list[Written]:
    """Raise the fences of all states and write the states in one store transaction."""
    return write_together(joint_writes(grant, states, given, **how))


def in_portions(
    grant: Grant, states: Sequence[StoredState], portions: Sequence[GivenRows]
) -> list[Written]:
    """Write the same rows to all states in one store transaction.

    A state without columns gets its rows at once, any other state in portions.
    """
    whole = [row for each in portions for row in each]

    def divided(state: StoredState) -> Iterator[tuple[int, RowTally]]:
        for chunk, each in enumerate(portions):
            yield chunk, RowTally.of(each, state.added_up)

    writes = joint_writes(grant, states, [whole] * len(states))
    return write_together(
        [
            (state, replace(write, rows=None, parts=partial(divided, state)))
            if state.columns is not None
            else (state, write)
            for state, write in writes
        ]
    )


def apart(
    grant: Grant,
    states: Sequence[StoredState],
    given: Sequence[Iterable[Mapping[str, Any]]],
) -> None:
    """Raise all fences, and then write the states one after the other, like a commit without `together`."""
    for state in states:
        state.raise_fence(grant)
    for state, each in zip(states, given, strict=True):
        state.write(grant, each)


def _died(grant: Grant, states: Sequence[StoredState], given: Sequence[GivenRows]) -> None:
    """Raise all fences, write the first state, and stop, like a commit without `together` that dies."""
    for state in states:
        state.raise_fence(grant)
    states[0].write(grant, given[0])


# Functions that write the first attempt of a transaction. A later attempt replaces its rows.
_EARLIER: Mapping[str, Callable[..., object]] = {
    "together": together,
    "apart": apart,
    "in part": _died,
}
_LATER: Mapping[str, Callable[..., object]] = {"together": together, "apart": apart}
_PLANS = [(one, other) for one in _EARLIER for other in _LATER if "together" in (one, other)]


def all_given(states: Sequence[StoredState], updates: Mapping[str, int | None]) -> list[GivenRows]:
    """Return the same rows for each state."""
    return [rows(updates) for _ in states]


def _added(*updates: Mapping[str, int]) -> dict[str, int]:
    names = sorted({name for each in updates for name in each})
    return {name: sum(each.get(name, 0) for each in updates) for name in names}


class TogetherSuite(StateTests):
    """Tests of states that one store transaction writes: it stores all rows or none.

    Override the fixture `make_state`, as for `StateSuite`. It must accept the kinds in `kinds`, and create all states
    in one store. The `read()` of each state must return the columns `key` and `n`.

    :cvar kinds: the kinds of states. All combinations of them are tested.
    """

    kinds: ClassVar[tuple[str, ...]] = ("opaque", "transactional")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests with all pairs of kinds, even of equal kinds, and with all triples of different kinds."""
        if "kinds_of_group" in metafunc.fixturenames:
            pairs = combinations_with_replacement(self.kinds, 2)
            found = list(chain(pairs, combinations(self.kinds, 3)))
            metafunc.parametrize("kinds_of_group", found, ids=list(map(" and ".join, found)))

    @pytest.fixture
    def group(self, make_state: MakeState, kinds_of_group: tuple[str, ...]) -> Group:
        return Group(kinds_of_group, make_state)

    def refusals(self, kind: str) -> Mapping[str, GivenRows]:
        """Return rows that a state of this kind refuses, by problem.

        A state without a transaction also refuses the first rows.
        """
        row = {"key": "a", "n": 1}
        return {
            "a value of another type": [row, {"key": "b", "n": "many"}],
            "a key that is NULL": [row, {"key": None, "n": 1}],
            "a column that is missing": [row, {"key": "b"}],
            "a sum that is too large": [row, {"key": "b", "n": 2**63 - 1}],
        }

    def everything(self, states: Sequence[StoredState]) -> object:
        """Return the fence, the receipts and the values of each state."""
        return [(state.fence(), state.receipts(), state.read()) for state in states]

    def _begin(self, group: Group, grants: Grants) -> list[StoredState]:
        """Commit a first transaction to every state."""
        states = group.opened()
        grant = grants(1)
        together(grant, states, all_given(states, FIRST))
        grants.final(grant, *states)
        return states

    # --- all of it ------------------------------------------------------------------------------------------------

    def test_states_of_one_store_have_the_same_key(self, group: Group) -> None:
        keys = {state.store_key for state in [*group.opened(), *group.opened()]}
        assert len(keys) == 1
        assert None not in keys

    def test_after_a_moment_all_states_have_their_rows(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        given = [rows({**SECOND, state.name: 1}) for state in states]
        together(grants(2), states, given)
        assert group.totals() == [_added(FIRST, SECOND, {state.name: 1}) for state in states]

    def test_a_moment_answers_what_each_state_has_written(
        self, group: Group, grants: Grants
    ) -> None:
        states = group.opened()
        given = [
            rows({str(number): 1 for number in range(count + 1)}) for count in range(len(states))
        ]
        answers = together(grants(1), states, given)
        assert [each.keys for each in answers] == [1, 2, 3][: len(states)]
        assert [each.digest for each in answers] == [
            _tally(state, each).digest for state, each in zip(states, given, strict=True)
        ]

    def test_after_a_moment_every_fence_holds_its_grant_and_is_applied(
        self, group: Group, grants: Grants
    ) -> None:
        grant = grants(1)
        together(grant, group.opened(), all_given(group.opened(), FIRST))
        states = group.opened()
        assert [each.token for state in states if (each := state.fence())] == [grant.token] * len(
            states
        )
        assert all(map(is_applied, states))

    def test_every_state_keeps_a_receipt_of_its_own(self, group: Group, grants: Grants) -> None:
        states = group.opened()
        grant = grants(1)
        given = [rows({state.name: 1}) for state in states]
        together(grant, states, given)
        kept = [state.receipts() for state in group.opened()]
        assert kept == [
            None if found is None else [expected_receipt(grant, state, each)]
            for found, state, each in zip(kept, states, given, strict=True)
        ]

    def test_nobody_sees_a_part_of_a_moment(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        before = self.everything(group.opened())
        seen = []

        def looking() -> Iterator[Mapping[str, Any]]:
            yield from rows(SECOND)
            seen.append(self.everything(group.opened()))

        given: list[Iterable[Mapping[str, Any]]] = [*all_given(states[1:], SECOND), looking()]
        together(grants(2), states, given)
        assert seen
        assert seen == [before] * len(seen)

    def test_fences_that_were_raised_before_are_written_under_in_one_moment(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        grant = grants(2)
        for state in states:
            state.raise_fence(grant)
        together(grant, states, all_given(states, SECOND), raising=False)
        assert group.totals() == [_added(FIRST, SECOND)] * len(states)
        assert all(map(is_applied, group.opened()))

    def test_a_state_that_gets_no_rows_is_complete_like_the_others(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        together(grants(2), states, [(), *all_given(states[1:], SECOND)])
        assert group.totals() == [FIRST, *[_added(FIRST, SECOND)] * (len(states) - 1)]
        assert all(map(is_applied, group.opened()))

    # --- or nothing -----------------------------------------------------------------------------------------------

    def test_rows_that_one_state_refuses_leave_all_states_as_they_were(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        before = self.everything(group.opened())
        for number, kind in enumerate(group.kinds):
            for problem, refused in self.refusals(kind).items():
                given = all_given(states, SECOND)
                given[number] = refused
                with pytest.raises(StateError):
                    together(grants(2), states, given)
                assert self.everything(group.opened()) == before, (kind, problem)

    def test_rows_that_one_state_refuses_are_an_error_of_this_state(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        for number, kind in enumerate(group.kinds):
            for problem, refused in self.refusals(kind).items():
                given = all_given(states, SECOND)
                given[number] = refused
                with pytest.raises(StateError) as error:
                    together(grants(2), states, given)
                assert error.value.fields["state"] == states[number].name, (kind, problem)

    def test_states_that_were_refused_their_first_rows_take_others(
        self, group: Group, grants: Grants
    ) -> None:
        states = group.opened()
        for number, kind in enumerate(group.kinds):
            given = all_given(states, FIRST)
            given[number] = next(iter(self.refusals(kind).values()))
            with pytest.raises(StateError):
                together(grants(1), states, given)
            assert group.totals() == [{}] * len(states)
        together(grants(1), states, all_given(states, FIRST))
        assert group.totals() == [FIRST] * len(states)

    def test_rows_that_end_with_an_error_leave_all_states_as_they_were(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        before = self.everything(group.opened())

        def ending() -> Iterator[Mapping[str, Any]]:
            yield from rows(SECOND)
            raise ZeroDivisionError

        for number in range(len(states)):
            given: list[Iterable[Mapping[str, Any]]] = [*all_given(states, SECOND)]
            given[number] = ending()
            with pytest.raises(ZeroDivisionError):
                together(grants(2), states, given)
            assert self.everything(group.opened()) == before

    def test_a_fence_that_a_later_grant_has_raised_refuses_all_states(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        for number, state in enumerate(states):
            old = grants(2, 2 * number + 1)
            state.raise_fence(grants(2, 2 * number + 2))
            self._refused(group, old, number, FenceOutranked)

    def test_a_state_that_lacks_a_transaction_refuses_all_states(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        for number, state in enumerate(states):
            behind = Grants()
            behind.incarnation = grants.incarnation
            behind.last, behind.births = dict(grants.last), dict(grants.births)
            behind.final(behind(2), state)
            self._refused(group, behind(3), number, StateBehind)

    def test_a_state_of_another_ledger_refuses_all_states(
        self, group: Group, grants: Grants
    ) -> None:
        for number, foreign in enumerate(group.opened()):
            foreign.raise_fence(Grants()(1))
            with pytest.raises(FenceForeign) as error:
                together(grants(1), group.opened(), all_given(group.opened(), FIRST))
            assert error.value.fields["state"] == foreign.name
            assert [state.fence() is None for state in group.opened()].count(False) == 1
            foreign.clear() if foreign.can_clear else foreign.release()
            assert group.totals() == [{}] * len(group.kinds), number

    def test_a_state_that_is_further_than_the_ledger_refuses_all_states(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        old = grants(2)
        following = grants(3)
        states[-1].raise_and_write(following, rows(OTHER))
        grants.final(following, states[-1])
        with pytest.raises((LedgerBehind, FenceOutranked)) as error:
            together(old, states, all_given(states, SECOND))
        assert error.value.fields["state"] == states[-1].name
        most = [FIRST] * (len(states) - 1)
        assert group.totals() == [*most, _added(FIRST, OTHER)]

    def _refused(self, group: Group, grant: Grant, number: int, error: type[StateError]) -> None:
        """Check that the state at this index refuses a grant, and that no state changes."""
        states = group.opened()
        before = self.everything(states)
        with pytest.raises(error) as refusal:
            together(grant, states, all_given(states, SECOND))
        assert refusal.value.fields["state"] == states[number].name
        assert self.everything(group.opened()) == before

    # --- another attempt ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("earlier", "later"), _PLANS, ids=[f"{one}, then {other}" for one, other in _PLANS]
    )
    def test_a_replay_replaces_what_an_attempt_has_left_in_all_states(
        self, group: Group, grants: Grants, earlier: str, later: str
    ) -> None:
        states = self._begin(group, grants)
        _EARLIER[earlier](grants(2), states, [rows(_of_attempt(state, 1)) for state in states])
        again = grants(2, 2)
        _LATER[later](again, group.opened(), [rows(_of_attempt(state, 2)) for state in states])
        assert group.totals() == [_added(FIRST, _of_attempt(state, 2)) for state in states]
        grants.final(again, *states)
        together(grants(3), states, all_given(states, SECOND))
        assert group.totals() == [_added(FIRST, _of_attempt(state, 2), SECOND) for state in states]

    def test_a_replay_of_the_same_states_counts_nothing_twice(
        self, group: Group, grants: Grants
    ) -> None:
        states = group.opened()
        for txid in (1, 2):
            for attempt in (1, 2):
                grant = grants(txid, attempt)
                together(grant, states, [rows(_of_attempt(state, 2)) for state in states])
            grants.final(grant, *states)
        twice = [_added(*[_of_attempt(state, 2)] * 2) for state in states]
        assert group.totals() == twice

    def test_a_grant_that_undoes_its_own_rows_writes_others_in_the_same_moment(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        grant = grants(2)
        together(grant, states, [rows(_of_attempt(state, 1)) for state in states])
        writes = joint_writes(
            grant, states, [rows(_of_attempt(state, 2)) for state in states], raising=False
        )
        write_together(
            [
                (
                    state,
                    replace(
                        write, undoing=state.kind is StateKind.OPAQUE, raising=bool(state.runs_once)
                    ),
                )
                for state, write in writes
            ]
        )
        assert group.totals() == [_added(FIRST, _of_attempt(state, 2)) for state in states]
        assert all(map(is_applied, group.opened()))

    def test_a_restatement_replaces_rows_in_all_states(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        if any(state.kind is not StateKind.OPAQUE for state in states):
            pytest.skip("rows of a state of the group cannot be taken back")
        instead = {"a": 10, "b": 0}
        difference = {"a": 9, "b": -2}
        given = [rows(instead if state.takes_back_by_txid else difference) for state in states]
        for attempt in (1, 2):
            together(about_to_restate(grants(2, attempt), 1), states, given)
            assert group.totals() == [instead] * len(states)

    # --- portions and keys ----------------------------------------------------------------------------------------

    def test_the_portions_of_an_update_are_one_update(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        grant = grants(2)
        portions = [rows({"a": 1, "c": 2}), rows({"d": 3}), rows({"b": 4})]
        answers = in_portions(grant, states, portions)
        whole = [row for each in portions for row in each]
        assert group.totals() == [{"a": 2, "b": 6, "c": 2, "d": 3}] * len(states)
        assert [each.keys for each in answers] == [4] * len(states)
        for state in group.opened():
            kept = state.receipts()
            assert kept is None or kept[-1] == expected_receipt(grant, state, whole)

    def test_a_key_in_two_portions_refuses_all_states(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        if all(state.columns is None for state in states):
            pytest.skip("no state of the group takes portions")
        before = self.everything(group.opened())
        with pytest.raises(ChunkConflict):
            in_portions(grants(2), states, [rows({"c": 1, "d": 2}), rows({"e": 1, "c": 2})])
        assert self.everything(group.opened()) == before

    def test_a_replay_may_divide_its_rows_otherwise(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        in_portions(grants(2), states, [rows({"a": 10}), rows({"c": 3})])
        in_portions(grants(2, 2), states, [rows({"c": 3}), rows({"a": 10})])
        assert group.totals() == [_added(FIRST, SECOND)] * len(states)

    def test_a_key_that_one_state_lacks_refuses_all_states(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        keyed = [number for number, state in enumerate(states) if state.columns is not None]
        if not keyed:
            pytest.skip("no state of the group has keys")
        before = self.everything(group.opened())
        for number in keyed:
            writes = joint_writes(grants(2), states, all_given(states, SECOND))
            writes[number] = (
                states[number],
                replace(writes[number][1], require=_requiring("a", "gone")),
            )
            with pytest.raises(_Lacks, match="gone"):
                write_together(writes)
            assert self.everything(group.opened()) == before

    def test_keys_are_looked_up_behind_the_raise(self, group: Group, grants: Grants) -> None:
        states = self._begin(group, grants)
        opaque = [state.kind is StateKind.OPAQUE and state.columns is not None for state in states]
        if not any(opaque):
            pytest.skip("no state of the group takes values back")
        together(grants(2), states, all_given(states, SECOND))
        writes = joint_writes(grants(2, 2), states, all_given(states, SECOND))
        number = opaque.index(True)
        # The previous attempt has created the key "c".
        writes[number] = (states[number], replace(writes[number][1], require=_requiring("a", "c")))
        with pytest.raises(_Lacks, match="c"):
            write_together(writes)

    def test_a_skip_takes_an_attempt_out_of_all_states_that_can(
        self, group: Group, grants: Grants
    ) -> None:
        states = self._begin(group, grants)
        undone = [state for state in states if state.kind is StateKind.OPAQUE]
        if len(undone) < len(states):
            pytest.skip("a state of the group cannot undo an attempt")
        together(grants(2), states, all_given(states, SECOND))
        grant = about_to_skip(grants(2, 2))
        write_together([(state, StateWrite(state.name, grant, raising=True)) for state in states])
        assert group.totals() == [FIRST] * len(states)
        assert all(map(is_applied, group.opened()))


class _Lacks(Exception):
    """The state lacks a required key."""


def _requiring(*keys: str) -> Callable[[LookUp], None]:
    """Return a check that raises an error if the state lacks one of these keys."""

    def check(look_up: LookUp) -> None:
        for key, found in zip(keys, look_up([(key,) for key in keys]), strict=True):
            if found is None:
                raise _Lacks(key)

    return check


def _tally(state: StoredState, given: GivenRows) -> Written:
    tally = RowTally(given, state.added_up)
    return tally.written(len(list(tally)))


def _of_attempt(state: StoredState, number: int) -> dict[str, int]:
    """Return the deltas of an attempt. Attempts have different deltas, unless a state cannot undo an attempt."""
    return SECOND if number == 1 or state.kind is StateKind.TRANSACTIONAL else OTHER
