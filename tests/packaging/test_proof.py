"""The oldest and the newest pyarrow that are allowed read blocks of csv and JSON as the rule does, or prove nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.test_resolution import ROOT, UNREACHED, UV

TESTS = ("tests/unit/rows/test_blocks.py", "tests/edges/test_json_blocks.py")


def allowed() -> tuple[str, str]:
    """Read the first release that is allowed, and the first that is not."""
    found = re.search(r'"pyarrow>=(\d+),<(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1], found[2]


@pytest.mark.long
@pytest.mark.parametrize("release", ["oldest", "newest"])
def test_each_pyarrow_that_is_allowed_reads_blocks_as_the_rule_does(release: str, tmp_path: Path) -> None:
    first, beyond = allowed()
    wanted = f"pyarrow=={first}.0.0" if release == "oldest" else f"pyarrow>={first},<{beyond}"
    target = tmp_path / "site"
    command = [UV, "pip", "install", "-q", "--python", sys.executable, "--no-deps", "--target", str(target), wanted]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode and re.search(UNREACHED, installed.stderr):
        pytest.skip(f"NOT TESTED: {wanted}, since no package index can be reached")
    assert installed.returncode == 0, installed.stderr
    environment = {**os.environ, "PYTHONPATH": str(target), "AIRFLOW_HOME": str(tmp_path / "home")}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long and not spark", *TESTS]
    done = subprocess.run(tests, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert any(each.name.startswith("pyarrow-") for each in target.iterdir())
