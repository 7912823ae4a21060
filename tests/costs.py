"""What a run of the tests costs: the seconds of each test, and the processor time of each part with its servers.

`script/test` prints the sums and the slowest tests when it ends. `script/test --slowest` puts the slowest ones into
tests/README.md, each with the words of its mark `worth`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.groups import Group

SLOWEST = 30
PAGE = Path(__file__).with_name("README.md")
TABLE = re.compile(r"(?<=<!-- slowest -->\n).*?(?=<!-- end of slowest -->)", re.DOTALL)
NO_REASON = "–"
LATER = ("chaos", "cluster", "long")
SECOND = "second"
"""The part of a run with the tests that had a second chance."""


@dataclass
class Costs:
    """What one process of pytest notes.

    :ivar seconds: per test, with its fixtures and their end.
    :ivar used: seconds of all processors while a test ran, servers included, per test that used a tenth of one.
    :ivar worth: per test that says so, why it is worth its time.
    :ivar began: when, in seconds of the clock of the day.
    :ivar wall: seconds from the first to the last line of pytest.
    :ivar processor: seconds of all processors, servers included.
    :ivar whole: whether `processor` counts what left the tree of processes, too.
    :ivar ran: the tests whose body ran and did not skip itself.
    :ivar passed: those of them that passed.
    :ivar later: the tests that were left out for a mark of `LATER`.
    :ivar left_out: the tests that were left out for anything else.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    worth: dict[str, str] = field(default_factory=dict)
    wall: float = 0.0
    processor: float = 0.0
    whole: bool = False
    ran: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    began: float = 0.0
    left_out: list[str] = field(default_factory=list)


class CostsPlugin:
    """Notes what each test took, and writes it to a file when pytest ends."""

    def __init__(self, file: Path, group: Group) -> None:
        self._file = file
        self._group = group
        self._costs = Costs(began=time.time())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        marks = {item.nodeid: item.get_closest_marker("worth") for item in session.items}
        self._costs.worth = {test: mark.args[0] for test, mark in marks.items() if mark}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            later = any(map(item.get_closest_marker, LATER))
            (self._costs.later if later else self._costs.left_out).append(item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = self._group.used()
        try:
            return (yield)
        finally:
            used = self._group.used() - before
            if used >= 0.1:
                self._costs.used[item.nodeid] = round(used, 2)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self._costs.ran.append(report.nodeid)
            if report.passed:
                self._costs.passed.append(report.nodeid)
        seconds = self._costs.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_unconfigure(self) -> None:
        self._costs.wall = self._group.wall()
        self._costs.processor = self._group.used()
        self._costs.whole = self._group.whole
        self._file.write_text(json.dumps(asdict(self._costs)))


def read(folder: Path) -> dict[str, Costs]:
    """Return what the parts of a run have written, by the name of the part."""
    return {file.stem: Costs(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}


def sums(parts: dict[str, Costs]) -> list[str]:
    """Say what each part took, and all of them."""
    lines = [_sum(name, costs.wall, costs.processor, len(costs.seconds)) for name, costs in parts.items()]
    found = list(parts.values())
    wall = max(each.began + each.wall for each in found) - min(each.began for each in found)
    tests = sum(len(each.seconds) for each in found)
    lines.append(_sum("together", wall, sum(each.processor for each in found), tests))
    if not all(each.whole for each in found):
        lines.append("The processor time lacks servers: this machine allows no control group of our own.")
    return lines


def _sum(name: str, wall: float, processor: float, tests: int) -> str:
    return f"{name:<11} | {wall:6.0f} s {processor / 60:6.1f} processor-minutes {tests:6} tests"


def slowest(parts: Iterable[Costs]) -> list[tuple[float, str, str]]:
    """Return the slowest tests of all parts: seconds, id, and why it is worth them."""
    each = [(taken, test, costs.worth.get(test, NO_REASON)) for costs in parts for test, taken in costs.seconds.items()]
    return sorted(each, reverse=True)[:SLOWEST]


def table(found: Iterable[tuple[float, str, str]]) -> str:
    """Write the slowest tests as a table of Markdown."""
    rows = [f"| {taken:.0f} | `{_named(test)}` | {worth} |" for taken, test, worth in found]
    return "\n".join(["| s | test | why it is worth its time |", "|--:|---|---|", *rows, ""])


def _named(test: str) -> str:
    file, _, name = test.removeprefix("tests/").partition("::")
    return f"{file} {name}".replace("|", "/")


def summary(parts: dict[str, Costs]) -> list[str]:
    """Return the slowest tests, those that had a second chance, and what each part took."""
    lines = [f"{taken:6.1f} s  {test}: {worth}" for taken, test, worth in slowest(parts.values())]
    second = parts.get(SECOND)
    if second is not None:
        lines.append(f"{len(second.seconds)} tests had a second chance: {', '.join(second.seconds)}")
    return [*lines, *sums(parts)]


def main() -> None:
    """Print what a run took; with ``--write``, put its slowest tests into the page."""
    parts = read(Path(sys.argv[1]))
    if not parts:
        sys.exit(f"{sys.argv[1]} has no costs: run script/test without arguments, then try again.")
    if "--write" in sys.argv:
        PAGE.write_text(TABLE.sub(lambda _: table(slowest(parts.values())), PAGE.read_text()))
        return
    print("\n".join(summary(parts)))


if __name__ == "__main__":
    main()
