"""How long something takes, what it computes, and how busy others keep the machine meanwhile."""

from __future__ import annotations

import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Took:
    """What something took.

    :param seconds: by the clock on the wall.
    :param processor: seconds of processor time, of this process and all below it: servers, tasks, databases.
    :param load: of the machine, over the last minute, this included.
    :param others: how many processors all other processes kept busy.
    """

    seconds: float
    processor: float
    load: float
    others: float


@dataclass(frozen=True)
class Moment:
    """What the clocks show: of the wall, of the processor for these processes, and for all."""

    wall: float
    own: float
    whole: float

    def since(self, other: Moment) -> Took:
        """Say what was taken between another moment and this one."""
        seconds, spent = self.wall - other.wall, self.own - other.own
        return Took(seconds, spent, os.getloadavg()[0], max(self.whole - other.whole - spent, 0) / seconds)


def now() -> Moment:
    """Read the clocks, that of the wall first: the others take some milliseconds."""
    return Moment(time.perf_counter(), _below(), _whole())


def measured(work: Callable[[], None]) -> Took:
    """Do it, and say what it took."""
    began = now()
    work()
    return now().since(began)


def adopt_orphans() -> None:
    """Let processes whose parent ends become children of this one, so that none is lost from sight."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _below() -> float:
    """Sum up the processor time of this process and all below it, with that of children which have ended."""
    children: dict[int, list[int]] = defaultdict(list)
    spent: dict[int, float] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        children[int(fields[1])].append(int(name))
        spent[int(name)] = sum(map(int, fields[11:15])) / _TICKS
    total, wanted = 0.0, [os.getpid()]
    while wanted:
        pid = wanted.pop()
        total += spent.get(pid, 0.0)
        wanted += children[pid]
    return total


def _whole() -> float:
    """Sum up the processor time of the whole machine; idle and waiting do not count."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(more[:3])) / _TICKS
