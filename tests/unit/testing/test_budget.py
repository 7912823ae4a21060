"""A run that has less time than its tests take: what it starts with, and what it leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.budget import GRACE, Budget, rotated

ROOT = Path(__file__).parents[3]


@given(st.lists(st.integers(), unique=True), st.integers(0, 2**160))
def test_a_commit_decides_where_the_same_circle_of_tests_begins(tests: list[int], commit: int) -> None:
    order = rotated(tests, f"{commit:x}")
    assert sorted(order) == sorted(tests)
    if tests:
        first = tests.index(order[0])
        assert order == tests[first:] + tests[:first]


def test_commits_begin_at_every_test() -> None:
    tests = list(range(10))
    assert {rotated(tests, f"{commit:x}")[0] for commit in range(100)} == set(tests)


def test_a_budget_that_is_over_starts_no_test_and_names_those_it_leaves_out() -> None:
    budget = Budget.of(0)
    assert budget.leaves_out("tests/a.py::test_one", 1)
    assert budget.leaves_out("tests/a.py::test_two", 1)
    assert not budget.begins("tests/b.py::test_ahead", 1)
    assert budget.lines() == ["not run: tests/a.py (2)"]


def test_a_test_that_runs_ahead_of_its_turn_is_reported_also_when_the_budget_is_over() -> None:
    budget = Budget.of(None)
    assert budget.begins("tests/a.py::test_ahead", 1)
    budget.until = 0.0
    assert not budget.leaves_out("tests/a.py::test_ahead", 1)


def test_without_a_budget_every_test_runs() -> None:
    assert not Budget.of(None).leaves_out("tests/a.py::test_one", 1600)


def test_a_test_starts_only_if_its_own_time_limit_ends_soon_after_the_budget() -> None:
    budget = Budget.of(100)
    assert budget.fits(GRACE)
    assert not budget.fits(GRACE + 1000)


def test_pytest_ends_well_and_says_what_it_left_out_when_the_budget_is_over() -> None:
    file = "tests/unit/testing/test_budget.py"
    command = [sys.executable, "-m", "pytest", "--budget=0", "--commit=a0063b4", "-p", "no:cacheprovider", file]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"not run: {file} (7)" in run.stdout
