"""A process family leaves nothing behind, whoever dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import ProcessFamily, marked

# A child in a session and process group of its own, as a task process has.
TREE = ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]


def test_ending_a_process_family_ends_descendants_that_have_left_their_process_group(tmp_path: Path) -> None:
    family = ProcessFamily()
    family.spawn(TREE, env=dict(os.environ), log=tmp_path / "log")
    eventually(lambda: len(family.members()) == 2, 60, "both processes run")
    family.end()
    assert family.members() == []
    family.end()


def test_a_process_family_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, time
from airflow_tx.testing.processes import ProcessFamily
family = ProcessFamily()
family.spawn({TREE!r}, env=dict(os.environ), log=pathlib.Path({str(tmp_path / "log")!r}))
print(family.mark, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        mark = owner.stdout.readline().strip()
        eventually(lambda: len(marked(mark)) == 2, 60, "both processes run")
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: marked(mark) == [], 60, "nothing of the family is left")


def test_a_process_family_inside_another_family_ends_with_it(tmp_path: Path) -> None:
    family, inner = ProcessFamily(), f"{str(tmp_path / 'inner')!r}"
    code = f"""
import os, pathlib, time
from airflow_tx.testing.processes import ProcessFamily
within = ProcessFamily()
within.spawn(["sleep", "1000"], env=dict(os.environ), log=pathlib.Path({inner}))
time.sleep(1000)
"""
    family.spawn([sys.executable, "-c", code], env=dict(os.environ), log=tmp_path / "log")
    # The owner, its guard and its member.
    eventually(lambda: len(family.members()) == 3, 60, "the family within runs")
    family.end()
    assert family.members() == []
