"""Beside an Airflow that is too old the package ends in one line; the oldest one that it takes runs the stories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tx.testing.deadline import run_command

ROOT = Path(__file__).parents[2]
# As an Airflow of this version that has begun to load its providers.
IMPORT = """
import sys, types

airflow = sys.modules["airflow"] = types.ModuleType("airflow")
airflow.__version__ = sys.argv[1]
import airflow_tx.provider_info
"""


def _imported(version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", IMPORT, version], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("version", ["2.11.0", "3.0.6", "3.1.8"])
def test_an_older_airflow_is_refused_with_the_upgrade_command(version: str) -> None:
    last = _imported(version).stderr.strip().splitlines()[-1]
    assert "needs Airflow 3.2 or newer" in last
    assert f"this is Airflow {version}. Upgrade it: pip install 'apache-airflow>=3.2'" in last


@pytest.mark.parametrize("version", ["3.2.0", "3.3.2+astro.1", "3.10.0rc1", "4.0.dev0"])
def test_a_newer_airflow_is_accepted(version: str) -> None:
    assert _imported(version).returncode == 0


STORIES = {
    "pipeline": ["tests/airflow/test_pipeline.py"],
    "clear": ["tests/airflow/test_clear.py"],
    "kill": ["tests/airflow/test_commit_crash.py", "tests/airflow/test_crash_kit.py"],
    "plain": ["tests/airflow/test_plain_tasks.py"],
    "backfill": ["tests/airflow/test_backfill.py", "tests/airflow/test_backfill_in_order.py"],
    "coordinator": ["tests/airflow/test_coordinator.py", "tests/airflow/test_yield.py"],
    "watcher": ["tests/airflow/test_topologies.py"],
    "lane": ["tests/airflow/test_lane.py", "tests/airflow/test_lane_applications.py"],
    "corrections": ["tests/airflow/test_corrections.py"],
    "board": ["tests/airflow/test_board.py"],
    "kafka": ["tests/airflow/test_kafka.py"],
    "restart": ["tests/airflow/test_restart.py"],
    "runs": ["tests/airflow/test_compat_runs.py"],
    "parts": [
        "tests/packaging/test_example_dags.py",
        "tests/unit/topology",
        "tests/unit/test_compat.py",
        "tests/unit/triggers",
        "tests/unit/coordinator",
        "tests/unit/plugin",
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("story", STORIES)
def test_the_end_to_end_tests_pass_on_the_oldest_supported_airflow(story: str, tmp_path: Path) -> None:
    subprocess.run([ROOT / "script/env", "airflow-3.2"], check=True)
    programs = ROOT / ".venv/airflow-3.2/bin"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "AIRFLOW_HOME": str(tmp_path)}
    pytest_of = [str(programs / "python"), "-m", "pytest", "-q", "-m", "not chaos", *STORIES[story]]
    done = run_command(pytest_of, env=environment, cwd=ROOT, capture_output=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
