"""Beside an Airflow that is too old, the package ends in one line as soon as Airflow imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("version", ["2.11.0", "3.0.6", "3.2.2"])
def test_an_older_airflow_is_refused_with_what_to_do(version: str) -> None:
    last = _imported(version).stderr.strip().splitlines()[-1]
    assert "needs Airflow 3.3 or newer" in last
    assert f"this is Airflow {version}. Upgrade it: pip install 'apache-airflow>=3.3'" in last


@pytest.mark.parametrize("version", ["3.3.0", "3.3.2+astro.1", "3.10.0rc1", "4.0.dev0"])
def test_a_newer_airflow_is_taken(version: str) -> None:
    assert _imported(version).returncode == 0
