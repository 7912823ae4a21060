"""States that are written in one moment by committers that are killed, or race."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.moment_fights import fight
from tests.integration.moments import Moments

ROOT = Path(__file__).parents[2]
HOWS = ("new", "replay", "wider", "apart")


def _kills(*given: object) -> int:
    script = [sys.executable, "-m", "tests.integration.moment_kills", *map(str, given)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.lead
@pytest.mark.parametrize("how", HOWS)
def test_a_moment_killed_at_a_sample_of_its_statements_is_in_all_states_or_in_none(
    url: str, table: str, how: str
) -> None:
    assert _kills(url, table, how, "statement", 7) >= 5


@pytest.mark.long
@pytest.mark.parametrize("how", HOWS)
def test_a_moment_killed_at_any_of_its_statements_is_in_all_states_or_in_none(url: str, table: str, how: str) -> None:
    assert _kills(url, table, how, "statement", 1) >= 30


@pytest.mark.long
@pytest.mark.parametrize("how", ["new", "wider"])
def test_a_moment_killed_at_a_line_of_code_is_in_all_states_or_in_none(url: str, table: str, how: str) -> None:
    assert _kills(url, table, how, "line", 17) > 50


@pytest.mark.long
@pytest.mark.parametrize("mode", ["together", "mixed"])
def test_two_simultaneous_attempts_do_not_deadlock_and_do_not_mix_their_values(url: str, table: str, mode: str) -> None:
    def goes_on(found: Counter[str]) -> bool:
        return found["rounds"] < 150 and not found["deadlocks"]

    found = fight(Moments(url, table), goes_on, mode=mode)
    assert (found["rounds"], found["deadlocks"]) == (150, 0)
    assert found["outranked"] > 0
    if mode == "together":
        assert found["torn"] == 0
