"""The life of a state, as the repairs of the ledger tell it: tables of records, and what it answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.ledger import life as life_module
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.life import (
    ACCEPT_CHANGE,
    LEDGER_LOST,
    RENAMED,
    RESET,
    ROLL_FORWARD,
    STATE_FORGOTTEN,
    STATE_LOST,
    Life,
    Segment,
    _Walk,
    name_now,
    renamed_since,
    since_reset,
)
from airflow_tx.ledger.receipt import Receipt, Written
from airflow_tx.ledger.records import RepairRecord, TopologyRecord
from tests.finals import plain_receipt
from tests.model.mutants import ONE, Mutant, applied

RECEIPT = plain_receipt()
NAMES = ["db", "words", "all words, by day", "called x now", "state a"]


def topology(**how: Any) -> TopologyRecord:
    return TopologyRecord("t", "L", "opaque", 4, generation=9, **how)


def record(number: int, what: str, told: str = "", *, generation: int | None = None, **change: Any) -> RepairRecord:
    """A repair; the generation of the ledger after it is its number, unless another one is given."""
    after = number if generation is None else generation
    return RepairRecord(number, what, "ada", "then", "why", told, after, f"op{number}", change=change)


def renamed(number: int, old: str, new: str, txid: int) -> RepairRecord:
    return record(number, RENAMED, state=old, to=new, txid=txid)


def forgotten(number: int, state: str, txid: int) -> RepairRecord:
    return record(number, STATE_FORGOTTEN, state=state, txid=txid)


def lost(number: int, txid: int, state: str = "db", **how: Any) -> RepairRecord:
    return record(number, STATE_LOST, state=state, txid=txid, **how)


def changed(number: int, txid: int, by: int = 0, state: str = "db", **how: Any) -> RepairRecord:
    return record(
        number, ACCEPT_CHANGE, state=state, txid=txid, columns={"n": by}, **{"keys": [], "unknown": False, **how}
    )


def rolled(number: int, found: int, state: str = "db", *, unchanged: Sequence[int] = (), **how: Any) -> RepairRecord:
    return record(number, ROLL_FORWARD, states={state: {"found": found, **how}}, nonces=[], unchanged=[*unchanged])


def receipts(*txids: int, state: str = "db", keys: int = 1) -> dict[int, Receipt]:
    """Each transaction has given ten to the power of its number."""
    return {
        txid: replace(RECEIPT, txid=txid, written={state: Written(keys, "0" * 16, {"n": 10**txid})}) for txid in txids
    }


def life(*repairs: RepairRecord, state: str = "db", last: int = 5, **how: Any) -> Life:
    accepted = {state: how.pop("accepted")} if "accepted" in how else {}
    given_to = how.pop("receipts", receipts(*range(1, last + 1), state=how.pop("named", state)))
    rebuilt = how.pop("rebuilt", 0)
    return Life.of(state, topology(accepted=accepted, rebuilt=rebuilt), repairs, given_to, how.pop("own", {}))


def kept(found: Life, last: int = 5, as_of: int | None = None) -> list[bool | None]:
    return [found.kept(txid, as_of) for txid in range(1, last + 1)]


# --- names --------------------------------------------------------------------------------------------------------

FIRST = Segment("db", 1, None)


@pytest.mark.parametrize(
    ("repairs", "state", "segments"),
    [
        ([], "db", [FIRST]),
        ([renamed(1, "old", "db", 3)], "db", [Segment("old", 1, 2), Segment("db", 3, None)]),
        (
            [renamed(1, "a", "b", 3), renamed(2, "b", "db", 5)],
            "db",
            [Segment("a", 1, 2), Segment("b", 3, 4), Segment("db", 5, None)],
        ),
        (
            [renamed(1, "db", "b", 3), renamed(2, "b", "db", 5)],
            "db",
            [Segment("db", 1, 2), Segment("b", 3, 4), Segment("db", 5, None)],
        ),
        # Another state had the name before.
        ([renamed(1, "db", "moved", 3)], "db", [Segment("db", 3, None)]),
        ([forgotten(1, "db", 4)], "db", [Segment("db", 4, None)]),
        ([forgotten(1, "other", 4)], "db", [FIRST]),
        ([renamed(1, "x", "y", 3)], "db", [FIRST]),
        ([forgotten(1, "old", 2), renamed(2, "old", "db", 4)], "db", [Segment("old", 2, 3), Segment("db", 4, None)]),
        # Nothing before a reset explains anything after it.
        ([renamed(1, "old", "db", 3), record(2, RESET)], "db", [FIRST]),
    ],
)
def test_the_life_of_a_state_has_a_segment_for_each_of_its_names(
    repairs: Any, state: str, segments: list[Segment]
) -> None:
    assert list(life(*repairs, state=state).segments) == segments


def test_the_life_of_a_state_returns_the_name_of_the_state_at_a_txid() -> None:
    found = life(renamed(1, "a", "b", 3), renamed(2, "b", "db", 5))
    assert [found.name_at(txid) for txid in range(1, 7)] == ["a", "a", "b", "b", "db", "db"]
    assert life(forgotten(1, "db", 4)).name_at(3) is None


def test_the_life_of_a_state_counts_only_transactions_that_used_its_name_at_their_time() -> None:
    all_names = receipts(1, 2, state="a") | receipts(3, 4, state="db")
    found = life(renamed(1, "a", "db", 3), receipts=all_names)
    assert list(found.given) == [1, 2, 3, 4]
    reused = receipts(1, 2, 3, 4, state="db")
    assert list(life(renamed(1, "db", "moved", 3), receipts=reused).given) == [3, 4]
    assert list(life(renamed(1, "db", "moved", 3), receipts=reused, state="moved").given) == [1, 2]


@pytest.mark.parametrize("state", NAMES)
def test_a_loss_belongs_to_the_state_that_the_repair_names_and_its_wording_does_not_matter(state: str) -> None:
    found = lost(1, 4, state, told="state db was at transaction 3; what it holds now is accepted")
    assert kept(life(found, state=state)) == [None, None, None, True, True]
    assert kept(life(found, state=f"{state} and")) == [True] * 5


@pytest.mark.parametrize(
    ("repairs", "name", "txid", "now"),
    [
        ([renamed(1, "a", "b", 3), renamed(2, "b", "c", 5)], "a", 2, "c"),
        ([renamed(1, "a", "b", 3), renamed(2, "b", "c", 5)], "b", 4, "c"),
        # It got the name in that turn, from then on.
        ([renamed(1, "a", "b", 3)], "a", 3, "a"),
        ([renamed(1, "a", "b", 3), record(2, RESET)], "a", 2, "a"),
        ([renamed(1, "a", "b", 3), forgotten(2, "b", 6)], "a", 2, "b (forgotten before transaction 6)"),
        ([forgotten(1, "a", 6)], "a", 6, "a"),
    ],
)
def test_the_life_of_a_state_returns_the_present_name_for_a_former_name(
    repairs: Any, name: str, txid: int, now: str
) -> None:
    assert str(name_now(repairs, name, txid)) == now
    assert {then: str(found) for then, found in renamed_since(repairs, [name], txid).items()} == {name: now}


def test_a_state_may_have_a_name_that_looks_like_the_description_of_a_forgotten_state() -> None:
    described = name_now([forgotten(1, "b", 6)], "b", 2)
    assert str(described) == "b (forgotten before transaction 6)"
    assert described != "b (forgotten before transaction 6)"
    assert "b (forgotten before transaction 6)" not in {described: None}
    assert described not in {"b (forgotten before transaction 6)": None}


@pytest.mark.parametrize("end", [renamed(3, "db", "moved", 3), forgotten(3, "db", 3), record(3, RESET)])
def test_repairs_of_another_state_with_the_same_name_are_ignored(end: RepairRecord) -> None:
    found = life(changed(1, 1), lost(2, 2, found=0), end)
    assert (found.changes, found.losses) == ((), ())


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=6))
def test_the_present_name_and_the_former_name_agree_after_any_renames(moves: list[tuple[str, str]]) -> None:
    repairs, taken = list[RepairRecord](), {"a", "b"}
    for old, new in moves:
        if old in taken and new not in taken:
            txid = len(repairs) + 2
            repairs.append(renamed(len(repairs) + 1, old, new, txid))
            taken = taken - {old} | {new}
    for now in taken:
        found = life(*repairs, state=now, last=0)
        for txid in range(1, len(repairs) + 3):
            then = found.name_at(txid)
            assert then is not None
            assert name_now(repairs, then, txid) == now


def test_only_repairs_after_the_last_reset_count() -> None:
    repairs = [record(1, RESET), lost(2, 3), record(3, RESET), lost(4, 2)]
    assert [each.number for each in since_reset(repairs)] == [4]
    assert list(since_reset(repairs[:1])) == []
    assert list(since_reset([])) == []


# --- losses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repairs", "expected"),
    [
        ([], [True] * 5),
        ([lost(1, 4, found=2)], [True, True, False, True, True]),
        ([lost(1, 4, found=0)], [False, False, False, True, True]),
        ([lost(1, 4)], [None, None, None, True, True]),
        ([lost(1, 4, state="other")], [True] * 5),
        # What was gone already does not come back by a later loss.
        ([lost(1, 4, found=2), lost(2, 6, found=4)], [True, True, False, True, False]),
        ([lost(1, 3), lost(2, 6, found=4)], [None, None, True, True, False]),
        ([lost(1, 4, found=1), lost(2, 6)], [None, False, False, None, None]),
        # A roll forward that wrote it again heals it.
        ([lost(1, 4, found=2), rolled(2, 2)], [True] * 5),
        ([lost(1, 4), rolled(2, 2)], [True] * 5),
        ([lost(1, 4, found=2), rolled(2, 4)], [True, True, False, True, True]),
        ([lost(1, 4, found=2), rolled(2, 2, heals=False)], [True, True, False, True, True]),
        ([lost(1, 4, found=2), rolled(2, 2, state="other")], [True, True, False, True, True]),
        ([rolled(1, 2), lost(2, 4, found=2)], [True, True, False, True, True]),
        # The lowest one that it was written again from counts.
        ([lost(1, 3, found=1), lost(2, 5, found=3), rolled(3, 1), rolled(4, 4)], [True] * 5),
    ],
)
def test_losses_decide_which_transactions_are_known_to_be_in_a_state(repairs: Any, expected: list[bool | None]) -> None:
    assert kept(life(*repairs)) == expected


def test_a_state_does_not_contain_a_transaction_that_did_not_write_to_it() -> None:
    found = life(receipts=receipts(1, 3))
    assert [found.held(txid) for txid in (1, 2, 3, 4)] == [True, False, True, False]


def test_a_loss_is_ignored_for_a_fence_from_before_the_loss() -> None:
    found = life(lost(7, 4, found=2, generation=7), lost(8, 6, found=4, generation=9))
    assert kept(found, as_of=6) == [True] * 5
    assert kept(found, as_of=7) == [True, True, False, True, True]
    assert kept(found, as_of=8) == [True, True, False, True, True]
    assert kept(found, as_of=9) == kept(found) == [True, True, False, True, False]
    assert found.expected(5, as_of=6) == (1, 2, 3, 4, 5)
    assert found.expected(5) == (1, 2, 4)


def test_a_state_that_was_empty_after_an_unread_accepted_loss_has_no_earlier_transaction() -> None:
    found = life(lost(1, 4), lost(2, 6), accepted={"emptied": 4}, last=6)
    assert kept(found, 6) == [False] * 3 + [None] * 2 + [True]
    found = life(lost(1, 4), accepted={"emptied": 4})
    assert kept(found) == [False, False, False, True, True]


def test_losses_under_an_earlier_name_of_the_state_count() -> None:
    found = life(lost(1, 3, state="old", found=1), renamed(2, "old", "db", 4), lost(3, 3, state="old", found=0))
    assert kept(found) == [True, False, True, True, True]


@given(st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(0, 6)), max_size=4), st.integers(0, 5))
def test_a_roll_forward_never_makes_it_less_certain_which_transactions_a_state_contains(
    losses: list[tuple[int, int | None]], found: int
) -> None:
    repairs = [lost(n, txid, found=has) if has is not None else lost(n, txid) for n, (txid, has) in enumerate(losses)]
    before, after = life(*repairs), life(*repairs, rolled(9, found))
    for txid in range(1, 6):
        assert after.kept(txid) in {before.kept(txid), True, None} - ({None} if before.kept(txid) is True else set())


# --- a rebuilt ledger ---------------------------------------------------------------------------------------------


def rebuilt(own: Mapping[int, Receipt] | None = None, **vouched: int) -> Life:
    repairs = [lost(1, 4, found=2), changed(2, 2), record(3, LEDGER_LOST, txid=4, states=vouched)]
    return life(*repairs, rebuilt=3, receipts=receipts(4, 5), own=own or {})


def test_after_a_rebuild_only_transactions_with_receipts_in_the_state_are_known_to_be_in_it() -> None:
    assert kept(rebuilt()) == [None, None, None, True, True]
    assert kept(rebuilt(receipts(2))) == [None, True, None, True, True]
    assert list(rebuilt(receipts(1, 2, state="its name of then")).given) == [1, 2, 4, 5]


def test_a_rebuild_confirms_the_last_complete_transaction_of_the_state() -> None:
    assert kept(rebuilt(db=3)) == [None, None, True, True, True]
    assert kept(rebuilt(other=3)) == [None, None, None, True, True]


def test_a_rebuild_keeps_accepted_changes_and_forgets_losses() -> None:
    found = rebuilt()
    assert [each.number for each in found.changes] == [2]
    assert found.losses == ()
    assert not found.began_empty
    assert found.unknown(5) == "the ledger was rebuilt after transaction 3"


def test_a_loss_that_is_accepted_after_a_rebuild_counts() -> None:
    found = life(record(1, LEDGER_LOST, states={"db": 2}), lost(2, 5, found=3), rebuilt=2)
    assert kept(found) == [None, True, True, False, True]


def test_only_the_last_rebuild_confirms_its_last_transaction() -> None:
    repairs = [record(1, LEDGER_LOST, states={"db": 2}), record(2, LEDGER_LOST, states={"db": 4})]
    assert kept(life(*repairs, rebuilt=4)) == [None, None, None, True, True]


def test_without_a_rebuild_the_receipts_of_a_state_do_not_prove_its_values() -> None:
    assert kept(life(lost(1, 4), own=receipts(1, 2, 3))) == [None, None, None, True, True]


# --- its beginning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repairs", "accepted", "first", "empty"),
    [
        ([], {}, 1, True),
        ([], {"began": 3}, 3, True),
        ([], {"began": 0}, 1, False),
        # It took the place of another one, and nothing says what was there.
        ([forgotten(1, "db", 4)], {}, 4, False),
        ([forgotten(1, "db", 4)], {"began": 6}, 6, True),
        ([renamed(1, "db", "moved", 4)], {}, 4, False),
        ([renamed(1, "old", "db", 4)], {}, 1, True),
        ([renamed(1, "old", "db", 4)], {"began": 2}, 2, True),
        ([record(1, LEDGER_LOST, states={})], {"began": 3}, 3, False),
    ],
)
def test_the_life_of_a_state_shows_whether_the_state_was_empty_at_its_beginning(
    repairs: Any, accepted: Any, first: int, empty: bool
) -> None:
    found = life(*repairs, accepted=accepted)
    assert (found.first, found.began_empty) == (first, empty)


def test_receipts_from_before_the_state_existed_are_not_needed() -> None:
    found = life(accepted={"began": 4}, receipts=receipts(4, 5))
    assert found.expected(5) == (4, 5)
    assert found.unknown(5) == ""
    older = life(accepted={"began": 0}, receipts=receipts(4, 5))
    assert older.expected(5) is None
    assert "no record shows that it was empty" in older.unknown(5)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (life(), ""),
        (life(receipts=receipts(2, 3, 4, 5)), "the receipts do not go back to transaction 1"),
        (life(lost(1, 4)), "a repair accepted its values, but it is not known which values"),
        (life(lost(1, 4, found=2)), ""),
    ],
)
def test_the_life_of_a_state_gives_the_reason_why_its_expected_values_are_unknown(found: Life, why: str) -> None:
    assert found.unknown(5) == why
    assert (found.expected(5) is None) is bool(why)


# --- sums ---------------------------------------------------------------------------------------------------------


def test_expected_totals_are_the_sums_of_kept_transactions_and_accepted_changes() -> None:
    found = life(lost(1, 4, found=2), changed(2, 5, by=7))
    held = found.expected(5)
    assert held is not None
    assert found.sums(["n"], held, found.changes) == {"n": 110110 + 7}
    assert found.sums(["n", "other"], held) is None


def test_a_transaction_without_keys_does_not_change_the_expected_totals() -> None:
    assert life(receipts=receipts(1) | receipts(2, keys=0)).sums(["n"], (1, 2)) == {"n": 10}


# --- changes ------------------------------------------------------------------------------------------------------

TWO = (changed(1, 1, by=5), changed(2, 2, by=-5))
ALL = 10 + 100


def missing(found: Life, last: int, mark: int, total: int | None, **how: Any) -> tuple[list[int], bool] | None:
    pending = found.changes_after(last, mark, None if total is None else {"n": total}, **how)
    return None if pending is None else ([each.number for each in pending.missing], pending.asked)


@pytest.mark.parametrize(
    ("repairs", "last", "mark", "total", "expected"),
    [
        ([], 2, 0, ALL, ([], False)),
        # The mark names what is in, and every later one is missing or not, as the totals say.
        ([changed(1, 2, by=5)], 2, 1, None, ([], False)),
        ([changed(1, 2, by=5)], 2, 1, ALL + 5, ([], False)),
        ([changed(1, 2, by=5)], 2, 0, ALL + 5, ([], False)),
        ([changed(1, 2, by=5)], 2, 0, ALL, ([1], False)),
        # No number of changes gives this total.
        ([changed(1, 2, by=5)], 2, 0, ALL + 1, None),
        ([changed(1, 2, by=5)], 2, 1, ALL, None),
        # One that was made before the transaction of the fence is in it.
        ([changed(1, 1, by=5)], 2, 0, None, ([], False)),
        ([changed(1, 1, by=5)], 2, 0, ALL, None),
        # Without totals, and where they do not tell, a person is asked.
        ([changed(1, 2, by=5)], 2, 0, None, ([1], True)),
        ([changed(1, 2, by=0)], 2, 0, ALL, ([1], True)),
        ([changed(1, 2, by=5), changed(2, 2, by=-5)], 2, 0, ALL, ([1, 2], True)),
        ([changed(1, 2, by=5), changed(2, 2, by=-5)], 2, 0, ALL + 5, ([2], False)),
        ([changed(1, 2, by=5), changed(2, 2, by=-5)], 2, 1, ALL, ([], False)),
        ([changed(1, 2, by=5), changed(2, 2, by=-5)], 2, 2, ALL, ([], False)),
        ([*TWO], 2, 0, ALL, ([], False)),
        ([*TWO], 2, 0, ALL + 5, ([2], False)),
        ([*TWO], 1, 0, 10, ([1, 2], True)),
        ([*TWO], 1, 0, 10 + 5, ([2], False)),
        ([*TWO], 0, 0, 0, ([1, 2], True)),
    ],
)
def test_a_missing_change_is_reported_or_a_person_is_asked_about_it(
    repairs: Any, last: int, mark: int, total: Any, expected: Any
) -> None:
    assert missing(life(*repairs, last=2), last, mark, total) == expected


def test_a_change_counts_from_the_transaction_after_which_it_was_made() -> None:
    found = life(changed(1, 2, by=5), changed(2, 1, by=7))
    assert [each.number for each in found.changes] == [2, 1]
    assert missing(found, 2, 0, 10 + 100 + 7) == ([1], False)


def test_a_person_is_asked_about_changes_that_the_totals_cannot_prove() -> None:
    found = life(lost(1, 2), changed(2, 5, by=5))
    assert missing(found, 5, 0, 1) == ([2], True)
    assert missing(found, 5, 2, 1) == ([], False)


def test_a_person_is_asked_about_a_change_that_was_made_after_a_loss_that_was_restored() -> None:
    found = life(lost(3, 3, found=1, generation=3), changed(4, 3, by=100), last=3)
    # The change may have made up for transaction 2, which an older backup has.
    assert missing(found, 2, 0, 110, as_of=2) == ([4], True)
    assert missing(found, 3, 0, 1010, as_of=3) == ([4], False)
    assert missing(found, 3, 4, 1110, as_of=3) == ([], False)


def test_a_missing_change_that_was_made_before_a_restored_loss_is_reported() -> None:
    found = life(changed(3, 2, by=5), lost(4, 3, found=2, generation=4, change=3), last=3)
    assert missing(found, 2, 0, 110, as_of=2) == ([3], False)


@pytest.mark.parametrize(("change", "left"), [(0, []), (1, [1]), (2, [1, 2])])
def test_a_loss_removes_earlier_changes_unless_the_accepted_fence_contains_them(change: int, left: list[int]) -> None:
    found = life(*TWO, lost(3, 4, found=2, change=change))
    assert [each.number for each in found.changes] == left
    healed = life(*TWO, lost(3, 4, found=2, change=change), rolled(4, 2))
    assert [each.number for each in healed.changes] == [1, 2]


def test_a_change_after_a_loss_stays_expected() -> None:
    assert [each.number for each in life(lost(1, 4, found=2), changed(2, 4)).changes] == [2]


def test_a_withdrawn_change_does_not_count() -> None:
    found = life(*TWO, rolled(3, 1, unchanged=[2]))
    assert [each.number for each in found.changes] == [1]
    assert [each.number for each in life(*TWO, rolled(3, 1, state="other", unchanged=[2])).changes] == [1, 2]


def test_changes_under_an_earlier_name_of_the_state_count() -> None:
    found = life(changed(1, 1, state="old"), renamed(2, "old", "db", 3), changed(3, 3, state="old"), changed(4, 3))
    assert [each.number for each in found.changes] == [1, 4]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-5, 0, 5, 7])), max_size=4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_reported_missing_changes_are_correct_for_every_number_of_changes_in_the_state(
    made: list[tuple[int, int]], last: int, has: int, mark: int
) -> None:
    """A state that has the first changes in their order: it is told right, or a person is asked."""
    found = life(*(changed(n, txid, by=by) for n, (txid, by) in enumerate(made, 1)), last=4)
    sure = [each for each in found.changes if each.change["txid"] < last or each.number <= mark]
    rest = [each for each in found.changes if each not in sure]
    there = [*sure, *rest[:has]]
    total = sum(10**txid for txid in range(1, last + 1)) + sum(each.change["columns"]["n"] for each in there)
    pending = found.changes_after(last, mark, {"n": total})
    assert pending is not None
    lacks = rest[has:]
    if pending.asked:
        assert set(map(id, lacks)) <= set(map(id, pending.missing))
    else:
        assert [*pending.missing] == lacks


# --- restatements -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "txid", "why"),
    [
        (life(), 2, ""),
        (life(lost(1, 4, found=2)), 2, ""),
        (life(lost(1, 4, found=2)), 3, "what it held was accepted since, so state 'db' may lack transaction 3"),
        (life(lost(1, 4)), 2, "what it held was accepted since, so state 'db' may lack transaction 2"),
        (life(lost(1, 4)), 4, ""),
        (rebuilt(), 2, "the ledger was rebuilt since, so state 'db' may lack transaction 2"),
        (rebuilt(receipts(2)), 2, ""),
        (rebuilt(db=3), 3, ""),
        (
            life(changed(1, 3, unknown=True)),
            3,
            "keys of state 'db' were deleted since transaction 3, but it is not known which ones",
        ),
        (life(changed(1, 3, unknown=True)), 4, ""),
        (life(changed(1, 3)), 2, ""),
    ],
)
def test_a_transaction_that_the_state_may_lack_cannot_be_restated(found: Life, txid: int, why: str) -> None:
    assert found.cannot_restate(txid) == why


def test_a_deleted_key_counts_as_deleted_for_earlier_transactions() -> None:
    found = life(changed(1, 2, keys=["x"]), changed(2, 4, keys=["y", "z"]))
    assert found.gone(0) == {"x", "y", "z"}
    assert found.gone(2) == {"x", "y", "z"}
    assert found.gone(3) == {"y", "z"}
    assert found.gone(0, before=4) == {"x"}
    assert found.gone(5) == frozenset()


# --- what ends wrong if a rule is left out ------------------------------------------------------------------------

HEALED_BELOW = [lost(1, 4, found=2), rolled(2, 4)]
LEFT_OUT: tuple[tuple[str, Any, str, str, Callable[[], None]], ...] = (
    (
        "another state was renamed",
        _Walk._takes_name,
        "return old == self.name",
        "return False",
        lambda: test_repairs_of_another_state_with_the_same_name_are_ignored(renamed(3, "db", "moved", 3)),
    ),
    (
        "another state was forgotten",
        _Walk.begins_after,
        "each.what == STATE_FORGOTTEN",
        "False",
        lambda: test_repairs_of_another_state_with_the_same_name_are_ignored(forgotten(3, "db", 3)),
    ),
    (
        "a segment has its own alone",
        Segment.has,
        "self.first <= txid and",
        "",
        test_the_life_of_a_state_counts_only_transactions_that_used_its_name_at_their_time,
    ),
    (
        "a roll forward from later heals nothing",
        _Walk._takes_loss,
        "or self.healed >= txid",
        "",
        lambda: test_losses_decide_which_transactions_are_known_to_be_in_a_state(
            HEALED_BELOW, [True, True, False, True, True]
        ),
    ),
    (
        "an older fence is from before a loss",
        Life.kept,
        "loss.generation > as_of",
        "False",
        test_a_loss_is_ignored_for_a_fence_from_before_the_loss,
    ),
    (
        "a rebuilt ledger knows nothing of before",
        Life.kept,
        "txid <= self.rebuilt",
        "False",
        test_after_a_rebuild_only_transactions_with_receipts_in_the_state_are_known_to_be_in_it,
    ),
    (
        "nor of losses",
        _Walk.begins_after,
        "each.what == STATE_LOST and self.vouched is None",
        "each.what == STATE_LOST",
        test_a_rebuild_keeps_accepted_changes_and_forgets_losses,
    ),
    (
        "what it vouches for",
        Life.kept,
        "txid != self.vouched and",
        "",
        test_a_rebuild_confirms_the_last_complete_transaction_of_the_state,
    ),
    (
        "changes in their order",
        life_module._still_there,
        "sorted(kept, key=",
        "list(kept) or sorted([], key=",
        test_a_change_counts_from_the_transaction_after_which_it_was_made,
    ),
)


@pytest.mark.parametrize("rule", LEFT_OUT, ids=lambda rule: rule[0].replace(" ", "-"))
def test_each_rule_of_the_life_of_a_state_fails_a_test_if_it_is_left_out(rule: Any) -> None:
    told, function, old, new, noticed_by = rule
    with applied(Mutant(told, ((function, old, new),), ONE)):
        with pytest.raises(AssertionError):
            noticed_by()
