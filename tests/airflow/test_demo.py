"""The demo as its users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_demo_counts_every_flight_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo", "--home", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "336776 of 336776 flights counted once"
    assert done.stdout.count("fault: ") == 3
