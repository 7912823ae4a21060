"""A control group for a run of tests: what the processor's time is shared by, counted by, and limited by.

The kernel shares the processor among *sessions*, whatever number of processes each has. An Airflow of six processes
would get as much as a test that computes alone. In a group of its own, it gets several times the share.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

TOPS = ("/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
"""Where the hierarchies are: those of version 1, each for one thing, and the one of version 2."""
PERIOD = 100_000
"""Microseconds in which a limited group may use its part of a core."""


class Group:
    """Moves this process, and all that it will start, into a control group of its own.

    Where that is not allowed, nothing is limited, time is counted for ended children only, and a run with the normal
    share lets others go first by the `autogroup` of its session.

    :param name: of the group.
    :param shares: how many times the normal share of the processor it gets while others want it, too.
    :param cores: at most so many cores, for example 0.2.
    :raises OSError: it is to be limited, and this machine does not allow it.
    """

    def __init__(self, name: str, *, shares: int = 1, cores: float | None = None) -> None:
        self._began = time.monotonic()
        self._joined = _join(name)
        shared = [
            _set(group, "cpu.shares", 1024 * shares) or _set(group, "cpu.weight", 100 * shares)
            for group in self._joined
        ]
        if not any(shared) and shares == 1:
            with suppress(OSError):
                Path("/proc/self/autogroup").write_text("10")
        if cores is not None and not any(_limit(group, int(cores * PERIOD)) for group in self._joined):
            raise OSError(f"this machine allows no control group of {cores} cores: run it as root with cgroups mounted")

    @property
    def whole(self) -> bool:
        """Answer whether `used` counts processes that left the tree of this one, too."""
        return _used(self._joined) is not None

    def wall(self) -> float:
        """Return the seconds since the group was made."""
        return time.monotonic() - self._began

    def used(self) -> float:
        """Return the seconds of all processors that the group has used."""
        used = _used(self._joined)
        return sum(os.times()[:4]) if used is None else used

    def close(self) -> None:
        """Leave the group, and remove it unless a server is still in it: `script/test` does so later."""
        for group in self._joined:
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(str(os.getpid()))
                group.rmdir()


def _join(name: str) -> list[Path]:
    """Make the group in each hierarchy that allows it, and move this process there."""
    joined: list[Path] = []
    for top in TOPS:
        group = Path(top).resolve() / name
        if group in joined:  # cpu and cpuacct are often one
            continue
        try:
            group.mkdir()
            with (group / "cgroup.procs").open("r+") as processes:
                processes.write(str(os.getpid()))
        except OSError:
            continue
        joined.append(group)
    return joined


def _set(group: Path, file: str, value: object) -> bool:
    try:
        with (group / file).open("r+") as setting:
            setting.write(str(value))
    except OSError:
        return False
    return True


def _limit(group: Path, quota: int) -> bool:
    return _set(group, "cpu.cfs_quota_us", quota) or _set(group, "cpu.max", f"{quota} {PERIOD}")


def _used(groups: list[Path]) -> float | None:
    for group in groups:
        with suppress(OSError, ValueError, KeyError):
            if (group / "cpuacct.usage").exists():
                return int((group / "cpuacct.usage").read_text()) / 1e9
            lines = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            return int(lines["usage_usec"]) / 1e6
    return None
