"""Corrections travel along a chain of topologies in every order, and each rule of that is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.model.chain_promises import after, explore, possible_in, spelled, walk
from tests.model.chain_shapes import EMPTY, EVERYTHING, LARGER, ONE, QUICK, REFUSED, RESTORED, SET_BACK, SKIPPED, TWICE
from tests.model.chains import NONE_LEFT, RIGHT, Budget, Rules, Shape, World, steps


@pytest.mark.parametrize("shape", [*QUICK, *(pytest.param(shape, marks=pytest.mark.long) for shape in LARGER)], ids=str)
def test_every_table_of_a_chain_equals_a_recomputation_in_every_history(shape: Shape) -> None:
    assert explore(shape).wrong == ""


WALKS = 300


@pytest.mark.parametrize("stages", [2, 3])
def test_random_walks_over_two_or_three_stages_end_with_exact_tables(stages: int) -> None:
    for seed in range(WALKS):
        shape = Shape(EVERYTHING, stages=stages, window=3, sizes=(1, 0)[: seed % 3])
        assert not (found := walk(shape, RIGHT, seed, 60)).wrong, (seed, found)


# --- a rule that is lacking ---------------------------------------------------------------------------------------

CURSOR = RIGHT.cursor_waits


def _without(rules: Iterable[str], rule: str) -> tuple[str, ...]:
    return tuple(each for each in rules if each != rule)


class Lacking(NamedTuple):
    """What lacks a rule, in which size of world it is found, and the shortest way to a wrong end."""

    rules: Rules
    shape: Shape
    path: str
    wrong: str


LACKING = {
    "C1 rows are not counted": Lacking(
        Rules(counts=()),
        ONE,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1; U: write 2, mark 2; D: follow, "
            "allocate, read 1, read 1, write 1"
        ),
        "write 1 has rows that its ends never had together",
    ),
    "C17 waiting counts as failing": Lacking(
        Rules(waits_for=("roll forward",)),
        ONE,
        ("U: begin 1, write 1, mark 1, restate 1; D: decide up to 1; U: write 2, mark 2; D: follow, allocate, fail 1"),
        "D: 1 stands still",
    ),
    "C2 pinned: every attempt has the ends of the first": Lacking(
        Rules(ends="kept"),
        ONE,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1; U: write 2, mark 2; D: follow, "
            "allocate, ask again 1, ask again 1, ask again 1, ask again 1, ask again 1, ask again 1, "
            "ask again 1, ask again 1"
        ),
        "it never comes to rest",
    ),
    "C2 pinned: a replay has the size of the first attempt": Lacking(
        Rules(sizes="kept"),
        Shape(ONE.budget, sizes=(1, 2), counted=True),
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1; U: write 2, mark 2; D: follow, "
            "allocate, ask again 1, read 1, read 1"
        ),
        "D: 1 stands still",
    ),
    "C2 a replay decides another range": Lacking(
        Rules(range="decided again"),
        Shape(Budget(fresh=2, replays=1)),
        (
            "U: begin 1, write 1, mark 1, begin 2, write 2, mark 2; D: decide up to 1, allocate, read "
            "1, replay 1, read 1, read 1, write 1, mark 1, follow, decide up to 2, allocate, read 2, "
            "read 2, write 2, mark 2"
        ),
        "D: it has 012 and 012 instead of 011 and 011",
    ),
    "C3 the cursor passes a transaction that is open": Lacking(
        Rules(cursor_waits=_without(CURSOR, "open")),
        ONE,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1, allocate, read 1, read 1; U: "
            "write 2, mark 2; D: follow, write 1, mark 1"
        ),
        "D: it has 01 and 01 instead of 001 and 001",
    ),
    "C4 the cursor passes a transaction that is not taken": Lacking(
        Rules(cursor_waits=_without(CURSOR, "untaken")),
        EMPTY,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1; U: write 2, mark 2; D: follow, "
            "allocate, read 1, read 1, write 1, mark 1, decide up to 2, allocate, read 2, read 2"
        ),
        "D: it has 0 and 0 instead of 001 and 001",
    ),
    "C5 the cursor passes what is requested, and nothing is noted": Lacking(
        Rules(cursor_waits=_without(CURSOR, "restated"), behind="nothing"),
        replace(ONE, budget=Budget(fresh=1, restates=1, skips=1)),
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1, allocate, read 1, read 1; U: "
            "write 2, mark 2; D: write 1, mark 1, follow, decide to restate 1, allocate 1, skip 2"
        ),
        "D: it has 01 and 01 instead of 001 and 001",
    ),
    "C6 a restatement names its predecessor alone": Lacking(
        Rules(begins="predecessor"),
        TWICE,
        (
            "U: begin 1, write 1, mark 1, restate 1, write 2, mark 2, restate 1, write 3, mark 3; D: "
            "follow, decide up to 2, allocate"
        ),
        "D: 1 stands still",
    ),
    "C7 a torn reading: rows are counted before alone": Lacking(
        Rules(counts=("before",)),
        ONE,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1, allocate, read 1; U: write 2, "
            "mark 2; D: read 1, write 1"
        ),
        "write 1 has rows that its ends never had together",
    ),
    "C8 a loop: a request notes nothing": Lacking(
        Rules(behind="nothing"),
        REFUSED,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1, allocate, read 1, read 1; U: "
            "write 2, mark 2; D: write 1, mark 1, follow, decide to restate 1, allocate 1, read 2, read"
            " 2, refuse for good 2, follow, decide to restate 1"
        ),
        "it restates again and again",
    ),
    "a request notes no ends": Lacking(
        Rules(behind="that there was one"),
        REFUSED,
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1, allocate, read 1, read 1; U: "
            "write 2, mark 2, restate 1; D: write 1, mark 1, follow after 10 minutes, decide to restate"
            " 1, allocate 1, read 2, read 2; U: write 3, mark 3; D: refuse for good 2, follow, decide "
            "up to 3, allocate, read 3, read 3, write 3, mark 3"
        ),
        "D: 1 lacks other corrections than those that are noted",
    ),
    "C12 U went back, and its births are not compared": Lacking(
        Rules(known_by="txid"),
        SET_BACK,
        (
            "U: begin 1, back up, write 1, mark 1; D: decide up to 1, allocate, read 1; U: set back, "
            "write 1, mark 1; D: read 1, write 1, mark 1, follow"
        ),
        "D: it has 01 and 0000000001 instead of 0000000001 and 0000000001",
    ),
    "U went back to before the grant: its births are compared alone": Lacking(
        Rules(known_by="birth"),
        SET_BACK,
        (
            "U: begin 1, back up, write 1, mark 1; D: decide up to 1, allocate, read 1; U: set back, "
            "write 1, mark 1; D: read 1, write 1, mark 1, follow"
        ),
        "D: it has 01 and 0000000001 instead of 0000000001 and 0000000001",
    ),
    "U went back behind the position": Lacking(
        Rules(births=_without(RIGHT.births, "position")),
        SET_BACK,
        (
            "U: begin 1, back up, write 1, mark 1; D: decide up to 1; U: set back; D: allocate, ask "
            "again 1; U: write 1, mark 1; D: read 1, read 1, write 1, mark 1, follow"
        ),
        "D: it has 0 and 0 instead of 0000000001 and 0000000001",
    ),
    "U went back behind an end": Lacking(
        Rules(births=_without(RIGHT.births, "ends")),
        SET_BACK,
        (
            "U: begin 1, write 1, mark 1, back up, restate 1, write 2, mark 2; D: decide up to 1, "
            "allocate, read 1, read 1; U: set back; D: write 1, mark 1, follow"
        ),
        "D: it has 001 and 001 instead of 01 and 01",
    ),
    "U went back behind the cursor": Lacking(
        Rules(births=_without(RIGHT.births, "cursor")),
        SET_BACK,
        (
            "U: begin 1, write 1, mark 1, back up, begin 2, write 2, mark 2; D: follow; U: set back, "
            "restate 1; D: decide up to 1, allocate, read 1, read 1; U: write 2, mark 2; D: write 1, "
            "mark 1"
        ),
        "D: it has 01 and 01 instead of 00000000001 and 00000000001",
    ),
    "an attempt whose ends have moved waits for them": Lacking(
        Rules(asks_again=False),
        ONE,
        ("U: begin 1, write 1, mark 1, restate 1; D: decide up to 1; U: write 2, mark 2; D: follow, allocate"),
        "D: 1 stands still",
    ),
    "a restatement counts at its own txid": Lacking(
        Rules(at_own_txid="its rows"),
        ONE,
        (
            "U: begin 1, write 1, mark 1, restate 1, write 2, mark 2; D: follow, decide up to 2, "
            "allocate, read 1, read 1, write 1, mark 1, follow"
        ),
        "D: it has 002 and 002 instead of 001 and 001",
    ),
    "the cursor passes a transaction that is wanted back": Lacking(
        Rules(cursor_waits=_without(CURSOR, "wanted back")),
        replace(SKIPPED, sizes=(0,), most=1),
        (
            "U: begin 1, write 1, mark 1, restate 1; D: decide up to 1, allocate, skip 1, re-admit 1, "
            "decide to re-admit 1; U: write 2, mark 2; D: follow, allocate 1, read 2, read 2, write 2, "
            "mark 2, decide up to 2, allocate, read 3, read 3"
        ),
        "D: it has 0 and 0 instead of 001 and 001",
    ),
    "a roll forward fails who reads": Lacking(
        Rules(waits_for=("commit",)),
        RESTORED,
        (
            "U: begin 1, write 1, mark 1, restore the table of before 1, begin to roll forward; D: decide "
            "up to 1, allocate, fail 1; U: roll forward 1; D: follow"
        ),
        "D: 1 stands still",
    ),
    "rows are counted after the reading alone, and a table comes back": Lacking(
        Rules(counts=("after",)),
        RESTORED,
        (
            "U: begin 1, write 1, mark 1, restore the table of before 1; D: decide up to 1, allocate, read "
            "1; U: begin to roll forward, roll forward 1; D: read 1, write 1"
        ),
        "write 1 has rows that its ends never had together",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_the_model_finds_a_wrong_table_for_each_missing_rule_of_chains(lacking: str) -> None:
    rules, shape, path, wrong = LACKING[lacking]
    found = explore(shape, rules)
    assert (spelled(found.path), found.wrong) == (path, wrong)


def test_each_case_that_shows_a_missing_rule_is_also_explored_with_all_rules() -> None:
    assert {lacking.shape for lacking in LACKING.values()} <= {*QUICK, *LARGER}


# --- traces that are about more than a wrong end ------------------------------------------------------------------

TWO = Shape(Budget(fresh=2, restates=2))
COMMIT = "allocate, read 1, read 1, write 1, mark 1"
BOTH_FINAL = "U: begin 1, write 1, mark 1, begin 2, write 2, mark 2; "


def follow_ups(world: World) -> int:
    """Count how often D has restated a transaction, once everything has come to rest."""
    left = world._replace(left=NONE_LEFT)
    while move := next(steps(left, TWO, RIGHT), None):
        _, left = move
    return sum(bool(each.replaces) for each in left.stages[1].transactions)


def test_rows_are_not_read_between_the_write_of_a_restatement_and_the_end_of_its_commit() -> None:
    """C1: the rows of the first are gone while it counts; the attempt waits, and has its ends decided again."""
    window = "U: begin 1, write 1, mark 1, restate 1, write 2; D: decide up to 1, allocate"
    assert possible_in(after(ONE, window), ONE).keys() == {"U: mark 2", "D: follow"}
    assert "D: read 1" in possible_in(after(ONE, window), ONE, Rules(counts=()))
    assert "D: ask again 1" in possible_in(after(ONE, f"{window}; U: mark 2"), ONE)


def test_several_corrections_of_one_range_cause_only_one_follow_up() -> None:
    """C9: it waits while U restates more of its range, until ten minutes are over."""
    corrected = f"{BOTH_FINAL}D: decide up to 2, {COMMIT}; U: restate 1, write 3, restate 2, mark 3"
    assert after(TWO, f"{corrected}; D: follow").stages[1].wanted == ()
    assert follow_ups(after(TWO, f"{corrected}, write 4, mark 4; D: follow")) == 1
    hasty = f"{corrected}; D: follow after 10 minutes, decide to restate 1, allocate 1, read 2, read 2, write 2, mark 2"
    assert follow_ups(after(TWO, hasty)) == 2
    assert after(TWO, f"{corrected}; D: follow", Rules(gathers=False)).stages[1].wanted == (1,)


def test_a_limit_of_the_range_bounds_the_rows_that_a_correction_must_read_again() -> None:
    """C10."""
    shape = Shape(Budget(fresh=3))
    backlog = f"{BOTH_FINAL}U: begin 3, write 3, mark 3"
    assert possible_in(after(shape, backlog), shape).keys() >= {"D: decide up to 2", "D: decide up to 1"}
    assert "D: decide up to 3" not in possible_in(after(shape, backlog), shape)
    unlimited = Rules(bounded=False)
    assert "D: decide up to 3" in possible_in(after(shape, backlog, unlimited), shape, unlimited)


@pytest.mark.parametrize(
    ("when", "after_one", "after_two"),
    [
        ("when long", set(), {"D: decide up to 2"}),
        ("never", set(), set()),
        ("at once", {"D: decide up to 1"}, {"D: decide up to 2", "D: decide up to 1"}),
    ],
)
def test_a_range_without_rows_is_taken_after_it_has_reached_its_limit(
    when: str, after_one: set[str], after_two: set[str]
) -> None:
    """C11: never taken, it is read again for ever; taken at once, each transaction without rows makes one in D."""
    shape, rules = Shape(Budget(fresh=2), sizes=(0, 0)), Rules(empty_ranges=when)  # type: ignore[arg-type]
    one = after(shape, "U: begin 1, write 1, mark 1", rules)
    assert {step for step in possible_in(one, shape, rules) if "decide" in step} == after_one
    two = after(shape, BOTH_FINAL, rules)
    assert {step for step in possible_in(two, shape, rules) if "decide" in step} == after_two


def test_an_upstream_topology_that_was_set_back_is_refused_until_a_person_acts() -> None:
    """C12: ledger and table of U come from one backup, and its txids are given again."""
    taken = f"U: back up, begin 1, write 1, mark 1; D: decide up to 1, {COMMIT}; U: set back"
    again = f"{taken}, begin 1, write 1, mark 1"
    shape = Shape(Budget(fresh=2, set_back=1))
    for path in (taken, again):
        assert not [step for step in possible_in(after(shape, path), shape) if step.startswith("D")]
    by_txid = Rules(known_by="txid")
    assert "D: follow" in possible_in(after(shape, again, by_txid), shape, by_txid)


def test_a_waiting_correction_does_not_delay_another_correction() -> None:
    """C16: a cursor that stops at the first one lets the second wait for a whole backlog."""
    shape = replace(TWO, most=1, window=1)
    both = (
        f"{BOTH_FINAL}D: decide up to 1, {COMMIT}; U: restate 2, write 3, mark 3, restate 1, write 4, mark 4; D: follow"
    )
    up_to_the_first = Rules(compares="up to the first")
    assert after(shape, both).stages[1].wanted == (1,)
    assert after(shape, both, up_to_the_first).stages[1].wanted == ()
