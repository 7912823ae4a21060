"""A table of a lake, or of a database, whose committers are killed, or work at the same time."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.tables import ENOUGH, table_at

ROOT = Path(__file__).parents[2]


SHARES = 2
"""Processes that share the lines of a commit, so that a test of every line takes some minutes."""


@pytest.fixture(params=["lake", "sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where tables are: a name behind it makes a URI."""
    if request.param == "lake":
        return f"{tmp_path}/"
    url = f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else request.getfixturevalue(request.param).url()
    return f"{url}#"


def _kills(place: str, step: int, *how: str, shares: int = 1) -> int:
    """Kill a commit at every `step`-th line, and return how many commits were killed."""
    running = list[subprocess.Popen[str]]()
    for first in range(1, shares + 1):
        own = place
        if not place.endswith("#"):
            own = f"{place}{first}"
            Path(own).mkdir()
        script = ["-m", "tests.integration.table_kills", own, str(step * shares), str(first * step), *how]
        running.append(subprocess.Popen([sys.executable, *script], cwd=ROOT, stdout=subprocess.PIPE, text=True))
    told = [each.communicate()[0] for each in running]
    assert [each.returncode for each in running] == [0] * shares, told
    return sum(map(int, told))


@pytest.mark.lead
@pytest.mark.worth("a table, killed in its commit")
def test_the_next_grant_completes_a_commit_that_was_killed_at_a_sample_of_its_lines(place: str) -> None:
    assert _kills(place, 61 if place.endswith("#") else 23) > 10


@pytest.mark.long
def test_the_next_grant_completes_a_commit_that_was_killed_at_any_of_its_lines(place: str) -> None:
    assert _kills(place, 1, shares=SHARES) > 900


@pytest.mark.long
@pytest.mark.parametrize("how", ["restate", "take_out"])
def test_the_next_grant_finishes_a_killed_restatement(place: str, how: str) -> None:
    assert _kills(place, 7, how, shares=SHARES) > 100


@pytest.mark.lead
def test_the_last_raise_of_two_racing_committers_wins_and_readers_see_only_complete_commits(
    place: str, tmp_path: Path
) -> None:
    grants = Grants()
    attempts = [grants(1, attempt) for attempt in range(1, 41)]
    (tmp_path / "grants").write_bytes(pickle.dumps(attempts))
    uri = f"{place}orders_{uuid.uuid4().hex[:8]}"
    table = table_at(uri)
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.table_race", uri, str(tmp_path / "grants"), str(number)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    seen = set[tuple[int, ...]]()
    while any(each.poll() is None for each in both):
        seen.add(tuple(row["n"] for row in table.state.read()))
    told = [each.communicate()[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert table.held() == [(1, 40)] * 3
    assert [rows for rows in seen if rows and rows != (rows[0],) * 3] == []


@pytest.fixture
def arena(place: str, request: pytest.FixtureRequest) -> str:
    """Where nobody else has tables: their fences are logged."""
    kind = request.node.callspec.params["place"]
    if kind in ("lake", "sqlite"):
        return place
    server = request.getfixturevalue(kind)
    return f"{server.url(server.new_database())}#"


def _fought(folder: Path, arena: str, kills: int, *how: str) -> dict[str, int]:
    uri = [f"{arena}orders"] if arena.endswith("#") else []
    script = [sys.executable, "-m", "tests.integration.table_fights", str(folder), str(kills), *how, *uri]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", done.stdout)}


@pytest.mark.long
@pytest.mark.parametrize("how", ["new", "apart"])
def test_the_next_grant_completes_a_killed_first_commit_or_a_killed_separate_raise(place: str, how: str) -> None:
    assert _kills(place, 23, how, shares=SHARES) > 20


@pytest.mark.long
def test_racing_and_killed_committers_never_write_after_a_later_grant_has_raised_the_fence(
    tmp_path: Path, arena: str
) -> None:
    found = _fought(tmp_path, arena, 200)
    assert (found["violations"], found["live"]) == (0, 1)
    # Otherwise nothing was tried here.
    assert found["kills"] >= 200
    assert found["raises"] > found["writes"] > ENOUGH


@pytest.mark.long
def test_the_judge_of_a_race_reports_writes_to_a_table_without_a_fence(tmp_path: Path, arena: str) -> None:
    assert _fought(tmp_path, arena, 60, "control")["violations"] > 0
