"""A limit counts the time that processes had: seconds without a processor are added, and no wait is without an end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError, TimeoutExpired

import pytest

from airflow_tx.testing import deadline
from airflow_tx.testing.deadline import Deadline, run_command

SET = Callable[[float, float], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SET:
    """Set the seconds that have passed, and those in which a task was stalled, as the kernel writes them."""
    pressure = tmp_path / "cpu.pressure"

    def show(passed: float, stalled: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: 1000 + passed)
        lines = [f"{kind} avg10=1.00 avg60=2.00 avg300=3.00 total={{}}\n" for kind in ("some", "full")]
        pressure.write_text("".join(lines).format(int(stalled * 1e6), 0))

    monkeypatch.setattr(deadline, "_pressure", lambda: pressure)
    show(0, 0)
    return show


def test_seconds_in_which_the_process_waited_for_a_processor_extend_the_deadline(clock: SET) -> None:
    limit = Deadline(60)
    clock(50, 30)
    assert limit.left() == 40
    clock(90, 30)
    assert limit.left() == 0


def test_seconds_before_the_deadline_started_do_not_extend_it(clock: SET) -> None:
    clock(0, 500)
    limit = Deadline(60)
    clock(60, 500)
    assert limit.left() == 0


def test_the_deadline_passes_even_on_a_machine_that_is_always_busy(clock: SET) -> None:
    limit = Deadline(60)
    clock(480, 480)
    assert limit.left() == 0


def test_a_deadline_uses_plain_time_if_the_kernel_does_not_count_stalls(clock: SET, tmp_path: Path) -> None:
    (tmp_path / "cpu.pressure").unlink()
    limit = Deadline(60)
    assert limit.left() == 60


def test_a_command_that_ends_in_time_returns_its_output_and_its_exit_code() -> None:
    done = run_command(
        [sys.executable, "-c", "print(input()); exit(3)"], timeout=300, input="hello\n", capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "")


def test_a_command_that_waited_for_a_processor_receives_its_input_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0.0])
    monkeypatch.setattr(deadline, "_stalled", lambda pressure: next(counts, 1e9))
    monkeypatch.setattr(deadline, "Deadline", partial(Deadline, least=0.0))
    code = "import time; time.sleep(2); print(input())"
    done = run_command([sys.executable, "-c", code], timeout=1, input="hello\n", capture_output=True)
    assert done.stdout == "hello\n"


def test_a_checked_command_that_fails_raises_an_error() -> None:
    with pytest.raises(CalledProcessError):
        run_command([sys.executable, "-c", "exit(3)"], timeout=300, check=True)


def test_a_command_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
    with pytest.raises(TimeoutExpired, match=r"timed out after 1 seconds"):
        run_command([sys.executable, "-c", code, str(tmp_path / "pid")], timeout=1)
    if (tmp_path / "pid").exists():
        assert not Path("/proc", (tmp_path / "pid").read_text()).exists()
