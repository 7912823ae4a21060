"""A Delta table whose committers are killed, or work at the same time."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tx.state import DeltaTable
from airflow_tx.testing.suites.state_tools import Grants
from tests.lake import read_back

ROOT = Path(__file__).parents[2]


def _kills(folder: Path, step: int) -> int:
    script = ["-m", "tests.integration.table_kills", str(folder), str(step)]
    done = subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.worth("a table of a lake, killed in its commit")
def test_a_commit_that_is_killed_is_finished_by_the_next_grant(tmp_path: Path) -> None:
    assert _kills(tmp_path, 23) > 10


@pytest.mark.long
def test_a_commit_that_is_killed_at_any_line_is_finished_by_the_next_grant(tmp_path: Path) -> None:
    assert _kills(tmp_path, 1) > 200


def test_of_two_committers_that_race_the_last_raise_counts(tmp_path: Path) -> None:
    grants = Grants()
    attempts = [grants(1, attempt) for attempt in range(1, 41)]
    (tmp_path / "grants").write_bytes(pickle.dumps(attempts))
    table = DeltaTable(tmp_path / "orders")
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.table_race", table.uri, str(tmp_path / "grants"), str(number)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    told = [each.communicate()[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert [row["n"] for row in read_back(table.uri)] == [40, 40, 40]
