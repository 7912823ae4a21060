"""Time limits that do not count the time that processes wait for a processor."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LEAST = 1 / 8
"""The share of the elapsed time that always counts, so that a wait ends even if the machine is always busy."""


class Deadline:
    """A time limit that only counts time in which the processes of this control group could run.

    The kernel counts how long a task of the group was ready without a free processor, and the limit is extended by this
    time. If the group has no such count, the count of the whole machine is used. If the kernel has no such count, all
    time counts.

    :param seconds: the limit, in seconds.
    :param least: the share of the elapsed time that always counts, from 0 to 1.
    """

    def __init__(self, seconds: float, *, least: float = _LEAST) -> None:
        self._seconds = seconds
        self._least = least
        self._pressure = _pressure()
        self._stalled = _stalled(self._pressure)
        self._began = time.monotonic()

    def left(self) -> float:
        """Return the seconds that are left: 0 or less when the deadline has passed."""
        passed = time.monotonic() - self._began
        stalled = _stalled(self._pressure) - self._stalled
        return self._seconds - max(passed - stalled, passed * self._least)


def run_command(
    command: Sequence[str], *, timeout: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command with a `Deadline`, like `subprocess.run` with `text=True`.

    :param timeout: the deadline in seconds.
    :param options: `input`, `capture_output`, `check`, and the options of `subprocess.Popen`.
    :raises subprocess.TimeoutExpired: the command has not ended in time, and was killed.
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
            given = None  # The process has the input. Popen refuses it in a second call.


def _pressure() -> Path:
    """Return the path of the kernel file that counts how long tasks of this control group waited for a processor."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = next((line[len("0::/") :] for line in lines if line.startswith("0::/")), "")
    tops = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    files = [top / own / "cpu.pressure" for top in tops if own]
    return next((file for file in files if file.exists()), Path("/proc/pressure/cpu"))


def _stalled(pressure: Path) -> float:
    """Return for how many seconds at least one task was ready to run without a free processor."""
    try:
        some = pressure.read_text().split("\n", 1)[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0
