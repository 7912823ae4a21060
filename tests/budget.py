"""Run as many tests as a time allows: where a run starts, and when it starts no further test.

CI runs what is `long` this way. Each commit starts at another place of the same circle of tests, so that a few landings
run all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

T = TypeVar("T")


@dataclass
class Budget:
    """Starts tests until its time is over.

    :param until: when it is over, in seconds of ``time.monotonic``.
    :ivar begun: ids of the tests that run ahead of their turn, in a thread.
    :ivar left_out: ids of the tests that were not started.
    """

    until: float
    begun: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, seconds: float | None) -> Budget:
        """Begin now. Without a number of seconds it is never over."""
        return cls(float("inf") if seconds is None else time.monotonic() + seconds)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    def leaves_out(self, test: str) -> bool:
        """Answer, and note, whether a test whose turn has come is not started any more."""
        if not self.over or test in self.begun:
            return False
        self.left_out.append(test)
        return True

    def begins(self, test: str) -> bool:
        """Answer, and note, whether a test may start ahead of its turn."""
        if self.over:
            return False
        self.begun.add(test)
        return True

    def lines(self) -> list[str]:
        """Say per file how many tests were not started."""
        files = Counter(test.partition("::")[0] for test in self.left_out)
        return [f"not run: {file} ({count})" for file, count in sorted(files.items())]


BUDGET = pytest.StashKey[Budget]()


def rotated(tests: Sequence[T], commit: str) -> list[T]:
    """Return the tests in the same order, from a place on that the commit decides.

    :param commit: the id of a commit, in hexadecimal digits.
    """
    if not tests:
        return []
    first = int(commit, 16) % len(tests)
    return [*tests[first:], *tests[:first]]
