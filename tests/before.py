"""Decides whether a test that fails was red before the change, by running it on the older commit.

The rotation reaches a test once in several changes. So a fault that it finds may be an older one, which must not keep
the change from landing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from airflow_tx.testing.deadline import Deadline, run_command
from tests import changes

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600.0
"""Seconds for all of these tests."""
FAILED = 1
"""The exit status of pytest when a test failed. Another one says that the test could not be run."""


def judge(tests: Sequence[str], costs: Path, *, status: Callable[[str], int | None] | None = None) -> int:
    """Print which of these failed tests were red before the change; return 0 if all of them were, else 1.

    :param tests: ids of tests that have failed twice, or that passed the second time.
    :param costs: what the second run of them cost, with those that passed.
    :param status: runs one test on the older commit and returns pytest's exit status; None: it could not be run.
    """
    with suppress(OSError, ValueError):
        passed = set(json.loads(costs.read_text())["passed"])
        tests = [test for test in tests if test not in passed]
    if status is None:
        since = changes.base(ROOT)
        status = _older(since) if since else lambda test: None
    red = [test for test in tests if status(test) == FAILED]
    new = [test for test in tests if test not in red]
    print("".join(f"\nRED BEFORE: {test}" for test in red))
    print("".join(f"RED BY THIS CHANGE, or not to be judged: {test}\n" for test in new), end="", flush=True)
    return 1 if new or not tests else 0


def _older(commit: str) -> Callable[[str], int | None]:
    """Return how a test is run on an older commit, in a checkout of its own with an environment of its own."""
    folder = ROOT / "build/before"
    for command in (
        ["worktree", "remove", "--force", str(folder)],
        ["worktree", "add", "--detach", str(folder), commit],
    ):
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, check=False)

    deadline = Deadline(LIMIT)

    def status(test: str) -> int | None:
        left = deadline.left()
        if left <= 0:
            return None
        print(f"\n== on {commit[:12]}, before this change: {test}", flush=True)
        # It measures nothing that this run measures.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        try:
            return run_command(
                ["script/test", "-m", "", "-v", test], timeout=left, cwd=folder, env=environment
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"could not be run there: {error}", flush=True)
            return None

    return status
