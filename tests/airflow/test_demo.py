"""The demo as its users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_the_demo_counts_every_flight_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo", "--home", str(tmp_path / "demo")]
    log = tmp_path / "demo.log"
    try:
        with log.open("w") as file:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False)
    finally:
        print(log.read_text())  # how far it came, also when the time of the test is over
    text = log.read_text()
    assert done.returncode == 0
    assert text.splitlines()[-1] == "336776 of 336776 flights counted once"
    assert text.count("fault: ") == 3
