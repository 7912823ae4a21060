"""Which tests execute which lines of the files that are mutated, and in which order a mutant gets them."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant

SERVERS = (
    "zookeeper",
    "postgres",
    "mariadb",
    "rabbit",
    "redis",
    "kafka",
    "memcached",
    "delta",
    "spark",
    "source_suite",
)
# Of one test on the code as it is, while its lines are traced; slower ones are left out.
SLOW = 3.0


def is_slow(item: pytest.Item) -> bool:
    """Whether it needs a server, or takes long."""
    needed = set(getattr(item, "fixturenames", ()))
    file, _, name = item.nodeid.lower().partition("::")
    example = name.partition("[")[2]
    return bool(
        any(server in file or server in example for server in SERVERS)
        or needed & {*SERVERS, "url"}
        or any(item.get_closest_marker(mark) for mark in ("long", "chaos"))
        or "test_exploration" in item.nodeid
    )


def passes(item: pytest.Item) -> bool:
    """Run a test, with all that it needs."""
    return all(report.passed or report.skipped for report in runtestprotocol(item, nextitem=None, log=False))


class Selection:
    """The tests, as they were on the code as it is.

    :param files: that are mutated.
    :param most: seconds of tests for one mutant: in a function that all tests come through, hundreds say the same.
    """

    def __init__(self, files: frozenset[str], most: float) -> None:
        self.files = files
        self._most = most
        self.items: list[pytest.Item] = []
        self.seconds: list[float] = []
        self._by_line: dict[tuple[str, int], list[int]] = {}
        self._killers: dict[tuple[str, str], Counter[int]] = {}

    def measure(self, items: Sequence[pytest.Item]) -> None:
        """Run all tests once, to know the lines that each executes, and how long it takes."""
        print(f"{len(items)} tests run once, to know what they execute ...", flush=True)
        left_out = []
        for item in items:
            lines, seconds, passed = self._traced(item)
            if not passed or seconds > SLOW:
                left_out.append(item.nodeid)
                continue
            for line in lines:
                self._by_line.setdefault(line, []).append(len(self.items))
            self.items.append(item)
            self.seconds.append(seconds)
        print(f"{len(self.items)} pass in {sum(self.seconds):.0f} s; without: {left_out}", flush=True)

    def _traced(self, item: pytest.Item) -> tuple[set[tuple[str, int]], float, bool]:
        lines: dict[str, set[int]] = {path: set() for path in self.files}
        local = {path: _adding(found) for path, found in lines.items()}

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            return local.get(frame.f_code.co_filename)

        began = time.process_time()
        threading.settrace(trace)
        sys.settrace(trace)
        try:
            passed = passes(item)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        return {(path, line) for path, found in lines.items() for line in found}, time.process_time() - began, passed

    def of(self, mutant: Mutant, path: str) -> list[int]:
        """The tests that a mutant gets, in their order."""
        found = {number for line in mutant.lines for number in self._by_line.get((path, line), ())}
        killers = self._killers.get((mutant.path, mutant.function), Counter())
        chosen, seconds = list[int](), 0.0
        for number in sorted(found, key=lambda each: (-killers[each], self.seconds[each])):
            seconds += self.seconds[number]
            if chosen and seconds > self._most:
                break
            chosen.append(number)
        return chosen

    def note_killed(self, mutant: Mutant, test: int) -> None:
        """Let other mutants of the function get this test early."""
        self._killers.setdefault((mutant.path, mutant.function), Counter())[test] += 1


def _adding(lines: set[int]) -> Callable[[FrameType, str, object], Any]:
    add = lines.add

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        add(frame.f_lineno)
        return trace

    return trace
