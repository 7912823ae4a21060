"""What a commit writes into one database becomes visible together; each rule of that is needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.moment import (
    DEAD_END,
    INEXACT,
    LACKING,
    ONLY_WITH_ROWS,
    RIGHT,
    TORN,
    WROTE,
    Case,
    Found,
    Rules,
    every_case,
    explore,
)

CASES = tuple(every_case())
ONE_BY_ONE, MOMENT, RAISE_ALL = "one by one", "moment", "raise all, then write all"
AFTER = "moment after the other database"
QUICK = 7
"""Of the cases, each so-many-th is explored at once, the others take long."""
SOME_OR_ALL = [pytest.param(CASES[::QUICK], id="some"), pytest.param(CASES, id="all", marks=pytest.mark.long)]


def promises_broken(cases: Sequence[Case], older: str, newer: str, rules: Rules = RIGHT) -> set[str]:
    """Name the promises that are broken in some case."""
    return {promise for case in cases for promise in explore(case, older, newer, rules).broken}


def some_case_breaks(promises: set[str], older: str, newer: str, rules: Rules = RIGHT) -> bool:
    """Look through the cases until each promise was broken."""
    left = set(promises)
    for case in CASES:
        left -= set(explore(case, older, newer, rules).broken)
        if not left:
            return True
    return False


def torn_cases(found: dict[Case, Found]) -> list[Case]:
    return [case for case, each in found.items() if each.torn]


# --- the plan that was chosen -------------------------------------------------------------------------------------


def test_a_reader_never_sees_partial_values_of_a_moment_and_the_totals_are_exact() -> None:
    assert promises_broken(CASES, MOMENT, MOMENT) == set()


@pytest.mark.parametrize("cases", SOME_OR_ALL)
def test_a_reader_may_see_partial_values_of_states_written_one_by_one_but_totals_are_exact(
    cases: Sequence[Case],
) -> None:
    for case in cases:
        assert set(explore(case, ONE_BY_ONE, ONE_BY_ONE).broken) == {TORN}


def test_partial_values_stay_visible_if_the_second_state_written_one_by_one_is_refused() -> None:
    case = Case(("value", "value", "value"), refused=(1, "write", "B"))
    found = explore(case, ONE_BY_ONE, ONE_BY_ONE)
    assert found.broken[TORN] == (1, 1, 1, 1), "A, B and C are raised, then A is written"
    # Attempt 1 has ended: nothing moves until somebody replays it.
    assert any(world.granted == 1 and world.places == (-1, 0, 0) for world in found.torn)
    assert not explore(case, MOMENT, MOMENT).torn


# --- attempts of different plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cases", SOME_OR_ALL)
def test_partial_values_of_an_older_attempt_are_visible_until_the_newer_attempt_commits(
    cases: Sequence[Case],
) -> None:
    found = {case: explore(case, ONE_BY_ONE, MOMENT) for case in cases}
    assert torn_cases(found)
    for each in found.values():
        assert set(each.broken) <= {TORN}
        assert all(world.places[1] <= 1 for world in each.torn), "its raise of C, then the moment"


@pytest.mark.parametrize("cases", SOME_OR_ALL)
def test_partial_values_of_a_moment_appear_only_if_the_newer_attempt_writes_states_one_by_one(
    cases: Sequence[Case],
) -> None:
    found = {case: explore(case, MOMENT, ONE_BY_ONE) for case in cases}
    assert len(torn_cases(found)) == len(cases)
    for each in found.values():
        assert set(each.broken) == {TORN}
        assert all(world.granted == 2 or world.marked for world in each.torn)


# --- raises before the moment -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "newer"), [(RAISE_ALL, RAISE_ALL), (MOMENT, AFTER)], ids=["of both", "of the newer attempt"]
)
@pytest.mark.parametrize("cases", SOME_OR_ALL)
def test_separate_raises_show_partial_values_only_for_states_of_different_kinds(
    cases: Sequence[Case], older: str, newer: str
) -> None:
    """Such a raise rolls a SqlState back, while a SqlTable keeps its rows until the write."""
    found = {case: explore(case, older, newer) for case in cases}
    assert torn_cases(found)
    assert all(case.kinds[0] != case.kinds[1] for case in torn_cases(found))
    assert all(set(each.broken) <= {TORN} for each in found.values())


def test_a_table_that_removes_rows_at_the_raise_shows_partial_values_during_a_restatement() -> None:
    rules = Rules(table_taken_out_at="raise")
    torn = [case for case in CASES if explore(case, RAISE_ALL, RAISE_ALL, rules).torn]
    assert any(case.restates and "transactional" not in case.kinds for case in torn)


# --- a rule that a plan lacks -------------------------------------------------------------------------------------

BREAKS = {
    "no raise in the other database first": {WROTE},
    "one fence for the group": {TORN, INEXACT, DEAD_END},
    "DDL commits in the middle": {TORN},
    "a member begins again alone": {TORN},
    "marked after the moment": {INEXACT},
    "the moment trusts an earlier raise": {TORN, INEXACT, DEAD_END},
    "a member is raised alone": {TORN},
    ONLY_WITH_ROWS: {TORN, INEXACT},
}
AFTER_ANOTHER = [
    (ONE_BY_ONE, "one fence for the group", {TORN, INEXACT, DEAD_END}),
    (ONE_BY_ONE, ONLY_WITH_ROWS, {TORN, INEXACT}),
    (MOMENT, ONLY_WITH_ROWS, {TORN, INEXACT}),
    (AFTER, "no raise in the other database first", {DEAD_END}),
]
"""Rules that a newer attempt lacks, after one that follows another plan."""
NO_ROLL_BACK = Rules(rolls_back="AC")


def test_a_plan_without_the_rule_is_tested_for_every_rule_of_a_moment() -> None:
    assert set(BREAKS) == {*LACKING, ONLY_WITH_ROWS}


@pytest.mark.parametrize("lacking", BREAKS)
def test_each_missing_rule_of_a_moment_breaks_its_listed_promises(lacking: str) -> None:
    assert some_case_breaks(BREAKS[lacking], lacking, lacking)


@pytest.mark.parametrize(("older", "newer", "promises"), AFTER_ANOTHER)
def test_each_missing_rule_breaks_its_listed_promises_after_an_attempt_with_another_plan(
    older: str, newer: str, promises: set[str]
) -> None:
    assert some_case_breaks(promises, older, newer)


def test_a_state_that_does_not_roll_back_breaks_the_promises_of_a_moment() -> None:
    assert some_case_breaks({TORN, INEXACT}, MOMENT, MOMENT, NO_ROLL_BACK)


@pytest.mark.long
@pytest.mark.parametrize(
    ("older", "newer", "promises"), [*((name, name, found) for name, found in BREAKS.items()), *AFTER_ANOTHER]
)
def test_a_missing_rule_of_a_moment_breaks_exactly_its_listed_promises(
    older: str, newer: str, promises: set[str]
) -> None:
    assert promises_broken(CASES, older, newer) == promises


@pytest.mark.long
def test_a_wrong_shared_fence_is_found_mostly_after_an_attempt_that_writes_states_one_by_one() -> None:
    """Moments against moments hide it: a test of a mutant lets attempts of different plans meet."""
    inexact = {
        older: sum(INEXACT in explore(case, older, "one fence for the group").broken for case in CASES)
        for older in (ONE_BY_ONE, MOMENT)
    }
    assert inexact == {ONE_BY_ONE: 116, MOMENT: 22}
