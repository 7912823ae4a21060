"""A test that fails in the rotation keeps a change from landing only if it passes without the change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests import before
from tests.costs import Costs

OLD, NEW, GONE = "tests/a.py::test_old", "tests/a.py::test_new", "tests/a.py::test_gone"
STATUS = {OLD: 1, NEW: 0, GONE: 4}


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    return tmp_path / "second.json"


def test_a_test_that_also_failed_before_the_change_is_printed_and_does_not_fail_the_run(
    costs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert before.judge([OLD], costs, status=STATUS.get) == 0
    assert f"RED BEFORE: {OLD}" in capsys.readouterr().out


@pytest.mark.parametrize("test", [NEW, GONE])
def test_a_failed_test_that_passed_or_did_not_exist_before_the_change_fails_the_run(
    costs: Path, test: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert before.judge([OLD, test], costs, status=STATUS.get) == 1
    assert f"RED BY THIS CHANGE, or not to be judged: {test}" in capsys.readouterr().out


def test_a_failed_test_that_could_not_run_on_the_older_commit_fails_the_run(costs: Path) -> None:
    assert before.judge([OLD], costs, status=lambda test: None) == 1


def test_a_test_that_passed_the_second_time_is_not_run_on_the_older_commit(costs: Path) -> None:
    costs.write_text(json.dumps(asdict(Costs(passed=[NEW]))))
    assert before.judge([OLD, NEW], costs, status=STATUS.get) == 0


def test_a_second_run_that_failed_although_each_test_passed_fails_the_run(costs: Path) -> None:
    costs.write_text(json.dumps(asdict(Costs(passed=[OLD]))))
    assert before.judge([OLD], costs, status=STATUS.get) == 1
