"""The rules of the fence as a table: what is stored, what is asked, what comes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import FenceForeign, FenceOutranked, LedgerBehind, PortionsLost, StateBehind, StateError
from airflow_tx.ledger.attempt import Token
from airflow_tx.state import Fence, Grant
from airflow_tx.state.fence import applied, check_portions, check_write, raised, uncovered
from airflow_tx.testing.suites.state_tools import batch_of


def _row(generation: int, txid: int, attempt: int = 1, epoch: int = 1, nonce: str = "n", birth: str = "") -> Fence:
    return Fence("here", Token(generation, txid, attempt, epoch, nonce, birth), True, "old", "s")


def _grant(
    generation: int,
    txid: int,
    attempt: int = 1,
    epoch: int = 1,
    nonce: str = "n",
    *,
    last: int | None = None,
    birth: str = "",
    known: str | None = None,
) -> Grant:
    token = Token(generation, txid, attempt, epoch, nonce, birth)
    births = {} if known is None else {"s": known}
    return Grant("flights", "here", token, {} if last is None else {"s": last}, batch_of("new"), births)


def _over(grant: Grant, stored: Fence) -> Grant:
    return replace(grant, over={"s": stored.token})


@pytest.mark.parametrize(
    ("stored", "grant"),
    [
        (None, _grant(1, 1)),
        (None, _grant(1, 7)),  # a state that is new to a topology with a history
        (_row(1, 1), _grant(1, 1, 2, nonce="m")),
        (_row(1, 1), _grant(1, 1, 1, 2, nonce="m")),
        (_row(1, 1), _grant(1, 2, nonce="m", last=1)),
        (_row(1, 3), _grant(1, 9, nonce="m", last=3)),  # transactions in between were without this state
        (_row(1, 2, 5, 9), _grant(1, 2, 6, 1, nonce="m", last=1)),
        (_row(1, 5), _grant(2, 3, nonce="m")),  # a repair has accepted what the state holds
        (_row(1, 2, birth="b"), _grant(1, 3, last=2, birth="c", known="b")),
        (_row(1, 2, birth="b"), _grant(1, 2, 2, last=1, birth="b", known="a")),
        (_row(1, 2, birth="b"), _grant(2, 2, last=1, birth="c", known="b")),  # a rebuilt ledger begins it anew
        (_row(1, 2), _grant(1, 3, last=2, birth="c")),
        (_row(1, 2), _grant(2, 2, last=1, birth="c", known="")),
        (
            _row(1, 2, birth="b"),
            _grant(2, 2, birth="c"),
        ),  # a repair has accepted what the state holds, whose ever it is
        (_row(1, 2, 0, 0), _grant(2, 2)),  # the same of a look
        (_row(1, 2, 0, 0), _over(_grant(1, 2, last=1), _row(1, 2, 0, 0))),  # a repair that knows the look
    ],
)
def test_the_next_grant_raises_the_fence(stored: Fence | None, grant: Grant) -> None:
    batch = batch_of("new", was_empty=True if stored is None else None)
    assert raised(stored, grant, state="s") == Fence("here", grant.token, False, batch.text)


def test_a_repeated_grant_does_not_change_the_fence() -> None:
    stored = applied(_row(1, 2))
    assert raised(stored, _grant(1, 2, last=1), state="s") == stored


@pytest.mark.parametrize(
    ("stored", "grant", "error"),
    [
        (_row(1, 1, 2), _grant(1, 1, 1), FenceOutranked),
        (_row(1, 1, 1, 2), _grant(1, 1, 1, 1), FenceOutranked),
        (_row(1, 1), _grant(1, 1, nonce="another life"), FenceOutranked),
        (_row(2, 1), _grant(1, 1), FenceOutranked),
        (_row(2, 1), _grant(1, 9, last=1), FenceOutranked),
        (None, _grant(1, 2, last=1), StateBehind),
        (_row(1, 1), _grant(1, 3, last=2), StateBehind),
        (_row(1, 3), _grant(1, 2, last=1), LedgerBehind),
        (_row(1, 1), _grant(1, 2), LedgerBehind),
        (_row(1, 2), _grant(1, 1, last=2), LedgerBehind),
        (Fence("elsewhere", Token(1, 1, 1, 1, "n")), _grant(9, 9, last=1), FenceForeign),
        (_row(1, 2, birth="b"), _grant(1, 2, last=1, birth="c"), LedgerBehind),
        (_row(1, 2, 3, 9, birth="b"), _grant(1, 2, 4, 1, last=1, birth="c", known="a"), LedgerBehind),
        (_row(1, 2, 4, 9, birth="b"), _grant(1, 2, 3, last=1, birth="c", known="a"), LedgerBehind),
        (_row(1, 2, birth="b"), _grant(2, 2, last=1, birth="c", known="a"), LedgerBehind),
        (_row(1, 2), _grant(1, 2, last=1, birth="c"), LedgerBehind),
        (_row(1, 2, birth="b"), _grant(1, 2, last=1), LedgerBehind),
        (_row(1, 2, birth="b"), _grant(1, 3, last=2, birth="c", known="a"), StateBehind),
        (_row(2, 2, birth="b"), _grant(1, 2, last=1, birth="c"), FenceOutranked),
        (
            _row(1, 5),
            _grant(2, 9, last=7),
            StateBehind,
        ),  # the repair has accepted another state's values, not this one's
        (_row(1, 2, 0, 0), _grant(1, 2, last=1), StateBehind),  # a look says nothing about the values
        (_row(1, 2, 0, 0), _grant(2, 2, last=1), StateBehind),
        (_row(1, 2, 0, 0), _grant(1, 3, last=2), StateBehind),
        (_row(1, 2, 0, 0, birth="b"), _grant(1, 2, last=1, birth="c"), StateBehind),
        (_row(2, 2, 0, 0), _grant(1, 2, last=1), FenceOutranked),
        (_row(1, 2, 0, 0), _over(_grant(1, 2), _row(1, 2, 0, 0, nonce="m")), FenceOutranked),
    ],
)
def test_a_grant_that_is_not_the_next_one_is_refused(
    stored: Fence | None, grant: Grant, error: type[StateError]
) -> None:
    with pytest.raises(error, match="'s'"):
        raised(stored, grant, state="s")


def test_a_state_with_missing_values_behind_its_fence_has_gone_back_unless_this_was_accepted() -> None:
    stored = replace(_row(1, 2), wrote=True)
    for last, grant in (("2", _grant(1, 3, last=2)), ("nothing", _grant(1, 2, 2))):
        with pytest.raises(StateBehind, match="2, but the written values are missing") as refused:
            raised(stored, grant, state="s")
        assert str(refused.value.expected) == last
        assert raised(stored, grant, state="s", there=True).wrote
    assert not raised(stored, _grant(2, 3), state="s").wrote


def test_a_state_with_an_incomplete_update_of_a_committed_transaction_has_gone_back() -> None:
    stored = replace(_row(1, 2), applied=False)
    with pytest.raises(StateBehind, match="2, but some of its updates are missing") as refused:
        raised(stored, _grant(1, 3, last=2), state="s")
    assert refused.value.expected == 2
    assert raised(stored, _grant(1, 2, 2, last=1), state="s").token.attempt == 2  # a replay writes them
    assert raised(stored, _grant(2, 3), state="s").token.txid == 3  # a repair has accepted what there is


@pytest.mark.parametrize(
    "stored", [applied(_row(1, 2)), replace(_row(1, 3, 2, 7, birth="b"), applied=False, wrote=True)]
)
def test_a_roll_forward_stores_the_earlier_fence_in_its_own_fence_and_restores_it(stored: Fence) -> None:
    look = raised(stored, _over(_grant(2, 3, 0, 0), stored), state="s", there=True)
    later = _over(_grant(3, 3, 0, 0, nonce="m"), look)
    again = raised(look, later, state="s", there=True)
    for found, grant in ((look, _grant(2, 3, 0, 0)), (again, later)):
        assert not found.applied
        back = uncovered(found, grant, state="s")
        assert vars(back) == vars(stored)
        assert found.covered == stored
    for late in (look, stored, None):
        with pytest.raises(FenceOutranked):
            uncovered(late, later, state="s")
    assert stored.covered is None


@pytest.mark.parametrize(("written", "found"), [(0, 0), (0, 2), (2, 2)])
def test_a_grant_is_completed_if_every_confirmed_portion_was_written(written: int, found: int) -> None:
    check_portions(found, replace(_grant(1, 1), portions=written), state="s", where="here")


def test_a_grant_is_not_completed_if_a_confirmed_portion_is_missing() -> None:
    with pytest.raises(PortionsLost, match="lost 1 of 3 confirmed portions of transaction 1"):
        check_portions(2, replace(_grant(1, 1), portions=3), state="s", where="here")


def test_a_repeated_grant_records_whether_its_values_were_written() -> None:
    assert raised(_row(1, 2), _grant(1, 2, last=1), state="s", there=True).wrote


@pytest.mark.parametrize(("last", "expected"), [(1, 1), (None, "nothing")])
def test_the_error_for_a_txid_that_was_given_twice_shows_the_txid_that_the_ledger_expects(
    last: int | None, expected: object
) -> None:
    with pytest.raises(LedgerBehind, match="another transaction with the same number") as refused:
        raised(_row(1, 2, birth="b"), _grant(1, 2, last=last, birth="c"), state="s")
    assert refused.value.expected == expected


@pytest.mark.parametrize(
    "stored", [None, _row(1, 1, 2), _row(1, 2), _row(1, 1, nonce="m"), Fence("elsewhere", _row(1, 1).token)]
)
def test_a_write_needs_exactly_its_own_grant_in_the_fence(stored: Fence | None) -> None:
    check_write(_row(1, 1), _grant(1, 1), state="s")
    with pytest.raises(FenceOutranked):
        check_write(stored, _grant(1, 1), state="s")


ranks = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@given(st.lists(st.tuples(ranks, st.sampled_from("nm"), st.none() | st.integers(1, 3)), max_size=12))
def test_the_token_of_a_fence_is_never_lowered(calls: list[tuple[tuple[int, int, int, int], str, int | None]]) -> None:
    stored: Fence | None = None
    for rank, nonce, last in calls:
        try:
            after = raised(stored, _grant(*rank, nonce, last=last), state="s")
        except StateError:
            continue
        assert stored is None or after.token.rank > stored.token.rank or after == stored
        stored = after


def test_two_states_of_one_dag_with_the_same_table_are_refused() -> None:
    first = raised(None, _grant(1, 1), state="s")
    assert raised(first, _grant(1, 1), state="s") == first
    with pytest.raises(StateError, match="two updates of this DAG write to one table: 's' and 'main.s'"):
        raised(applied(first), _grant(1, 1), state="main.s")
    assert raised(first, _grant(1, 1, 2), state="renamed").state == "renamed"
