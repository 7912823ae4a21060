"""Run as many tests as a time allows: where a run starts, and when it starts no further test.

CI runs what is `long` this way. Each commit starts at another place of the same circle of tests, so that a few landings
run all of them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest
from pytest_timeout import Settings, timeout_sigalrm  # type: ignore[import-untyped]

from airflow_tx.testing.deadline import Deadline
from tests.changes import changed_files
from tests.closure import Sources

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]

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
    """Gives each test its time limit, without the seconds in which it waited for a processor."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    # Before pytest-timeout looks at the limit.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._budget.again:
            item.add_marker(pytest.mark.timeout(self._budget.limit(limit_of(item))), append=False)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Settings) -> bool | None:
        if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
            return None
        # A test that hangs on a busy machine must not take the time of all others.
        deadline = Deadline(settings.timeout, least=1 / 2)

        def ring(number: int, frame: FrameType | None) -> None:
            __tracebackhide__ = True
            left = deadline.left()
            if left > 0:
                signal.setitimer(signal.ITIMER_REAL, max(left, 0.1))
            else:
                timeout_sigalrm(item, settings)

        def cancel() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

        # pytest-timeout calls what stands there.
        item.cancel_timeout = cancel  # type: ignore[attr-defined]
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        return True


class DonePlugin:
    """Leaves out the tests that have passed in an earlier part of a run, and writes down those that pass.

    :param file: a line for each test; each is written at once, so that a run that is killed can go on.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._done = set(file.read_text().splitlines()) if file.exists() else set[str]()

    # Before those with an order of their own.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self._done])
        items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (report.when == "call" and report.passed) or (report.when == "setup" and report.skipped):
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")


def met(items: Sequence[pytest.Item], commit: str, *, changed: Collection[str] | None = None) -> list[pytest.Item]:
    """Return the tests that meet a change: their modules import a changed file. The nearest come first.

    :param commit: what the change is compared with; ``nothing``: all files have changed.
    :param changed: the files that have changed, where they are known.
    """
    sources = Sources(ROOT)
    near = sources.distances(changed or changed_files(ROOT, None if commit == "nothing" else commit))
    paths = {item: str(item.path.relative_to(ROOT)) for item in items}
    return sorted((item for item in items if paths[item] in near), key=lambda item: near[paths[item]])


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
