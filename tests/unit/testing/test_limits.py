"""A test that takes too long fails; the seconds in which it waited for a processor do not count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOOKS = "from tests.conftest import pytest_addoption, pytest_configure\n"
SLEEPS = """
import time

def test_sleeps():
    time.sleep({seconds})
"""


def run_pytest(folder: Path, conftest: str, seconds: float) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(HOOKS + conftest)
    (folder / "test_sleeps.py").write_text(SLEEPS.format(seconds=seconds))
    command = [sys.executable, "-m", "pytest", "--timeout=1", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, str(folder)], cwd=folder, env=environment, capture_output=True, text=True)


def test_a_test_that_takes_longer_than_its_time_limit_fails(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, "", 1000)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "Timeout (>1.0s)" in run.stdout


def test_seconds_in_which_a_test_waited_for_a_processor_do_not_count(tmp_path: Path) -> None:
    kernel = """
from airflow_tx.testing import deadline
from tests import budget
counts = iter([0.0])
deadline._stalled = lambda pressure: next(counts, 1e9)
budget.Deadline = lambda seconds, least: deadline.Deadline(seconds, least=0.0)
"""
    run = run_pytest(tmp_path, kernel, 1.5)
    assert run.returncode == 0, run.stdout + run.stderr
