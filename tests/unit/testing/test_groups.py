"""A run of tests has a control group of its own where the machine allows it, else it counts its own time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import groups
from tests.groups import Group

ROOT = Path(__file__).parents[3]
SPIN = """
import glob, os, time
from tests.groups import Group
group = Group(f"airflow-tx-test-{os.getpid()}", cores=0.2)
began = time.monotonic()
child = os.fork()
while time.process_time() < 0.3:
    pass
if not child:
    os._exit(0)
os.waitpid(child, 0)
print(group.used() > 0.5, time.monotonic() - began > 2 * 0.3)
group.close()
print(glob.glob(f"/sys/fs/cgroup/*/airflow-tx-test-{os.getpid()}"))
"""


def test_without_a_control_group_the_processor_time_of_the_process_is_reported() -> None:
    group = Group("there/is/no such folder")
    assert not group.whole
    assert group.used() > 0
    group.close()


def test_a_limit_that_this_machine_does_not_allow_is_refused() -> None:
    with pytest.raises(OSError, match=r"allows no control group of 0\.2 cores: run it as root"):
        Group("there/is/no such folder", cores=0.2)


def test_a_control_group_counts_and_limits_all_processes_in_it() -> None:
    if not any((Path(top) / "cgroup.procs").exists() for top in groups.TOPS[:2]):
        pytest.skip("this machine has no control groups of version 1")
    done = subprocess.run([sys.executable, "-c", SPIN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True True", "[]"], done.stderr
