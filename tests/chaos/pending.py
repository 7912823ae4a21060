"""Faults that go on for a while, and how they end: beside the run, because a server takes its time to start."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.chaos.record import Fault
from tests.chaos.world import SESSION

LONGEST = 2.0 * SESSION
"""No longer than so many seconds does anything stand still that is frozen, cut off, or at a point."""
# A server that does not come up at once is started again, so often.
_STARTS = 5
_TICK = 0.05


@dataclass
class Pending:
    """A fault that goes on.

    :param until: when it ends; `end`: how.
    :param hit: what nothing else is done to meanwhile: the name of a server, of a component or of a disk.
    """

    until: float
    end: Callable[[], Any]
    fault: Fault
    hit: str
    ending: Future[Any] | None = None
    tries: int = 0


class PendingFaults:
    """All that go on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: list[Pending] = []
        self._ends = ThreadPoolExecutor(8)

    @property
    def busy(self) -> set[str]:
        """The servers, components and disks to which something is done now."""
        return {each.hit for each in self._left}

    def add(self, fault: Fault, seconds: float, end: Callable[[], Any], hit: str = "") -> None:
        """Let a fault go on for so long."""
        fault.ended = float("inf")
        self._left.append(Pending(self._clock() + seconds, end, fault, hit))

    def step(self) -> None:
        """End what is over."""
        now = self._clock()
        for each in [each for each in self._left if each.until <= now]:
            self._end(each)

    def end(self) -> bool:
        """Go on ending all of them; whether some are left."""
        for each in list(self._left):
            self._end(each)
        time.sleep(_TICK)
        return bool(self._left)

    def _end(self, pending: Pending) -> None:
        if pending.ending is None:
            pending.ending = self._ends.submit(pending.end)
            pending.tries += 1
        elif pending.ending.done():
            error = pending.ending.exception()
            if error is None:
                self._left.remove(pending)
                pending.fault.ended = self._clock()
            elif pending.tries < _STARTS:
                print(f"{pending.hit}: {error}", flush=True)
                pending.ending = None
            else:
                raise error
