"""Run as many tests as a time allows: where a run starts, and when it starts no further test.

CI runs what is `long` this way. Each commit starts at another place of the same circle of tests, so that a few landings
run all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

T = TypeVar("T")

GRACE = 600.0
"""Seconds that a test may take which starts at the very end of a budget."""
SHORTEST = 60.0
"""Seconds that a test which failed once has in any case."""


@dataclass
class Budget:
    """Starts tests until its time is over; each of them may use its own time limit.

    A test whose limit is longer than `GRACE` starts only if it ends before the budget and this grace are over.

    :param until: when it is over, in seconds of ``time.monotonic``.
    :param again: whether these tests have failed once. Each of them may start, whatever its time limit, but it ends
        with the budget. A test that is left out counts as failed.
    :ivar begun: ids of the tests that run ahead of their turn, in a thread.
    :ivar left_out: ids of the tests that were not started.
    """

    until: float
    again: bool = False
    begun: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, seconds: float | None, *, again: bool = False) -> Budget:
        """Begin now. Without a number of seconds it is never over."""
        return cls(float("inf") if seconds is None else time.monotonic() + seconds, again)

    def fits(self, limit: float) -> bool:
        """Answer whether a test with this time limit, in seconds, may start now."""
        left = self.until - time.monotonic()
        return left > 0 and (self.again or limit <= left + GRACE)

    def leaves_out(self, test: str, limit: float) -> bool:
        """Answer, and note, whether a test whose turn has come is not started."""
        if test in self.begun or self.fits(limit):
            return False
        self.left_out.append(test)
        return True

    def begins(self, test: str, limit: float) -> bool:
        """Answer, and note, whether a test may start ahead of its turn."""
        if not self.fits(limit):
            return False
        self.begun.add(test)
        return True

    @property
    def fails(self) -> bool:
        """Answer whether the run fails because a failed test was not started once more."""
        return self.again and bool(self.left_out)

    def lines(self) -> list[str]:
        """Say how many tests of each file were not started; of tests that failed before, name each."""
        if self.again:
            return [f"failed, and no time is left to run it once more: {test}" for test in self.left_out]
        files = Counter(test.partition("::")[0] for test in self.left_out)
        return [f"not run: {file} ({count})" for file, count in sorted(files.items())]

    def limit(self, own: float) -> float:
        """Return the time limit of a test that failed once and starts now: its own, or what is left."""
        return min(own, max(self.until - time.monotonic(), SHORTEST))


BUDGET = pytest.StashKey[Budget]()


class LimitsPlugin:
    """Lets tests that failed once end with the budget, so that a run has an end."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    # Before pytest-timeout looks at the limit.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.add_marker(pytest.mark.timeout(self._budget.limit(limit_of(item))), append=False)
        return (yield)


def limit_of(item: pytest.Item) -> float:
    """Return the time limit of a test in seconds: that of its mark ``timeout``, else that of the run."""
    mark = item.get_closest_marker("timeout")
    if mark is not None and mark.args:
        return float(mark.args[0])
    return float(item.config.getoption("timeout") or item.config.getini("timeout") or 0)


def rotated(tests: Sequence[T], commit: str) -> list[T]:
    """Return the tests in the same order, from a place on that the commit decides.

    :param commit: the id of a commit, in hexadecimal digits.
    """
    if not tests:
        return []
    first = int(commit, 16) % len(tests)
    return [*tests[first:], *tests[:first]]
