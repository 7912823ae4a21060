"""A run that has less time than its tests take: what it starts with, and what it leaves out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budget import GRACE, SHORTEST, Budget, met, rotated

ROOT = Path(__file__).parents[3]


@given(st.lists(st.integers(), unique=True), st.integers(0, 2**160))
def test_the_commit_hash_decides_where_the_rotation_of_tests_starts(tests: list[int], commit: int) -> None:
    order = rotated(tests, f"{commit:x}")
    assert sorted(order) == sorted(tests)
    if tests:
        first = tests.index(order[0])
        assert order == tests[first:] + tests[:first]


def test_rotations_of_many_commits_start_at_every_test() -> None:
    tests = list(range(10))
    assert {rotated(tests, f"{commit:x}")[0] for commit in range(100)} == set(tests)


def test_an_exhausted_budget_starts_no_test_and_lists_the_omitted_tests() -> None:
    budget = Budget.of(0)
    assert budget.leaves_out("tests/a.py::test_one", 1)
    assert budget.leaves_out("tests/a.py::test_two", 1)
    assert not budget.begins("tests/b.py::test_ahead", 1)
    assert budget.lines() == ["not run: tests/a.py (2)"]


def test_a_test_that_started_early_is_reported_although_the_budget_is_exhausted() -> None:
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


def test_a_failed_test_is_repeated_no_matter_how_long_its_time_limit_is() -> None:
    budget = Budget.of(100, again=True)
    assert not budget.leaves_out("tests/a.py::test_one", GRACE + 1000)
    assert not budget.fails


def test_a_repeated_test_has_its_own_time_limit_or_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    assert Budget.of(1000, again=True).limit(600) == 600
    assert Budget.of(1000, again=True).limit(1800) == 1000
    assert Budget.of(0, again=True).limit(600) == SHORTEST


def test_the_run_fails_with_the_name_of_a_failed_test_that_cannot_be_repeated() -> None:
    budget = Budget.of(0, again=True)
    assert budget.leaves_out("tests/a.py::test_one", 1)
    assert budget.fails
    assert budget.lines() == ["failed, and no time is left to run it once more: tests/a.py::test_one"]


FILE = "tests/unit/testing/test_budget.py"


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--budget=0", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_pytest_passes_and_lists_the_omitted_tests_if_the_budget_is_exhausted() -> None:
    run = run_pytest("--commit=a0063b4", FILE)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"not run: {FILE} (" in run.stdout


def test_pytest_fails_if_no_time_is_left_to_repeat_a_failed_test() -> None:
    test = f"{FILE}::test_rotations_of_many_commits_start_at_every_test"
    run = run_pytest("--again", test)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert f"failed, and no time is left to run it once more: {test}" in run.stdout


# The second test has a time limit that no budget of some minutes allows.
FIRST = """
import pytest

def test_one():
    pass

@pytest.mark.timeout(10000)
def test_two():
    pass
"""


def test_a_test_in_the_next_file_runs_after_a_test_that_was_omitted(tmp_path: Path) -> None:
    hooks = "pytest_addoption, pytest_configure, pytest_runtest_protocol, pytest_terminal_summary"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {hooks}\n")
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text("def test_three():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--budget=1000", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
    assert "not run: test_first.py (1)" in run.stdout


CIRCLE = """
import pytest

def test_one():
    pass

def test_fails():
    assert not FAILS

@pytest.mark.lead
def test_leads():
    pass

@pytest.mark.lead
@pytest.mark.long
def test_long():
    pass
"""


def rotation(folder: Path, *arguments: str, fails: bool = False) -> list[str]:
    """Return the tests of a folder that run, in their order."""
    hooks = "pytest_addoption, pytest_configure, pytest_collection_modifyitems"
    (folder / "conftest.py").write_text(f"from tests.conftest import {hooks}\n")
    (folder / "test_circle.py").write_text(f"FAILS = {fails}\n{CIRCLE}")
    markers = [f"--override-ini=markers={mark}: of a test" for mark in ("lead", "long")]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--rootdir={folder}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*command, *markers, str(folder)], cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode in (0, 1, 5), run.stdout + run.stderr
    return re.findall(r"::(test_\w+) (?:PASSED|FAILED)", run.stdout)


def test_a_rotation_starts_with_the_leading_tests_and_continues_at_the_position_of_its_commit(tmp_path: Path) -> None:
    assert rotation(tmp_path, "--commit=2") == ["test_leads", "test_long", "test_one", "test_fails"]


def test_a_leading_test_counts_as_long_and_does_not_run_in_a_quick_run(tmp_path: Path) -> None:
    assert rotation(tmp_path, "-m", "not long") == ["test_one", "test_fails"]


def test_a_continued_run_omits_only_tests_that_have_passed(tmp_path: Path) -> None:
    done = f"--done={tmp_path / 'done.txt'}"
    assert rotation(tmp_path, done, fails=True) == ["test_one", "test_fails", "test_leads", "test_long"]
    assert rotation(tmp_path, done) == ["test_fails"]
    assert rotation(tmp_path, done) == []


@pytest.mark.lead
@dataclass(frozen=True)
class Found:
    name: str

    @property
    def path(self) -> Path:
        return ROOT / "tests/unit/testing" / f"{self.name}.py"


def test_a_change_selects_the_tests_that_import_the_changed_file_and_sorts_the_nearest_first() -> None:
    items = cast("list[pytest.Item]", [Found("test_parts"), Found("test_budget")])
    chosen = met(items, "HEAD", changed=["tests/unit/testing/test_budget.py"])
    assert [each.name for each in chosen] == ["test_budget"]
    chosen = met(items, "HEAD", changed=["tests/unit/testing/test_budget.py", "tests/before.py"])
    assert [each.name for each in chosen] == ["test_budget", "test_parts"]
