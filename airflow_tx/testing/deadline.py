"""Time limits that do not count the time in which processes wait for a processor."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LEAST = 1 / 8
"""The part of the time that always counts, so that a wait ends even on a machine that stays busy."""


class Deadline:
    """A limit of seconds in which the processes of this control group could run.

    The kernel counts how long a task of the group was ready and no processor was free. The limit grows by these
    seconds. If the group has no such count, the count of the whole machine is used. If the kernel has none, all time
    counts.

    :param seconds: the limit.
    :param least: part of the time that always counts, from 0 to 1.
    """

    def __init__(self, seconds: float, *, least: float = _LEAST) -> None:
        self._seconds = seconds
        self._least = least
        self._pressure = _pressure()
        self._stalled = _stalled(self._pressure)
        self._began = time.monotonic()

    def left(self) -> float:
        """Return the seconds that are left; 0 or less: the time is over."""
        passed = time.monotonic() - self._began
        stalled = _stalled(self._pressure) - self._stalled
        return self._seconds - max(passed - stalled, passed * self._least)


def run_command(
    command: Sequence[str], *, timeout: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, like `subprocess.run` with `text=True`, within a `Deadline`.

    :param timeout: seconds of the deadline.
    :param options: `input`, `capture_output`, `check`, and the options of `subprocess.Popen`.
    :raises subprocess.TimeoutExpired: the command did not end in time, and was killed.
    """
    deadline = Deadline(timeout)
    given, check = options.pop("input", None), options.pop("check", False)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            output, errors = _communicate(process, given, deadline, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _communicate(
    process: subprocess.Popen[str], given: str | None, deadline: Deadline, timeout: float
) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(given, timeout=max(deadline.left(), 0.01))
        except subprocess.TimeoutExpired as error:
            if deadline.left() <= 0:
                error.timeout = timeout
                raise
            given = None  # the process has the input, and Popen refuses input in a second call


def _pressure() -> Path:
    """Return the kernel's file with the time for which tasks of this process's control group were stalled."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = next((line[len("0::/") :] for line in lines if line.startswith("0::/")), "")
    tops = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    files = [top / own / "cpu.pressure" for top in tops if own]
    return next((file for file in files if file.exists()), Path("/proc/pressure/cpu"))


def _stalled(pressure: Path) -> float:
    """Return the seconds for which at least one task was ready to run and had no processor."""
    try:
        some = pressure.read_text().split("\n", 1)[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0
