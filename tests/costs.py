"""What a run of the tests costs: the seconds of each test, and the processor time of each part with its servers.

`script/test` prints the sums and the slowest tests when it ends. `script/test --slowest` puts the slowest ones into
docs/testing.md, each with the words of its mark `worth`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

SLOWEST = 30
GROUPS = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup"))
PAGE = Path(__file__).parents[1] / "docs" / "testing.md"
TABLE = re.compile(r"(?<=<!-- slowest -->\n).*?(?=<!-- end of slowest -->)", re.DOTALL)
NO_REASON = "–"
LATER = ("chaos", "cluster", "long")


@dataclass
class Costs:
    """What one process of pytest notes.

    :ivar seconds: per test, with its fixtures and their end.
    :ivar worth: per test that says so, why it is worth its time.
    :ivar wall: seconds from the first to the last line of pytest.
    :ivar processor: seconds of all processors, servers included.
    :ivar whole: whether `processor` counts what left the tree of processes, too.
    :ivar ran: the tests whose body ran and did not skip itself.
    :ivar later: the tests that were left out for a mark of `LATER`.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    worth: dict[str, str] = field(default_factory=dict)
    wall: float = 0.0
    processor: float = 0.0
    whole: bool = False
    ran: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)


class Meter:
    """Counts the processor time of this process and of all that it starts, in a control group of its own."""

    def __init__(self, name: str) -> None:
        self._began = time.monotonic()
        self._group = next((made for top in GROUPS if (made := _joined(top / name))), None)

    def read(self, costs: Costs) -> None:
        """Note the time since the beginning."""
        costs.wall = time.monotonic() - self._began
        costs.whole = self._group is not None
        costs.processor = sum(os.times()[:4]) if self._group is None else _used(self._group)

    def close(self) -> None:
        """Leave the control group, and remove it unless a server is still in it: `script/test` does so later."""
        if self._group is None:
            return
        with suppress(OSError):
            (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()


def _joined(group: Path) -> Path | None:
    """Make a control group and move this process into it; None where this is not allowed."""
    try:
        group.mkdir()
        with (group / "cgroup.procs").open("r+") as processes:
            processes.write(str(os.getpid()))
        _used(group)
    except (OSError, ValueError):
        return None
    return group


def _used(group: Path) -> float:
    usage = group / "cpuacct.usage"
    if usage.exists():
        return int(usage.read_text()) / 1e9
    lines = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(lines["usage_usec"]) / 1e6


class CostsPlugin:
    """Notes what each test took, and writes it to a file when pytest ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._costs = Costs()
        self._meter = Meter(f"airflow-tx-{os.environ.get('AIRFLOW_TX_TEST_RUN', 'run')}-{os.getpid()}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        marks = {item.nodeid: item.get_closest_marker("worth") for item in session.items}
        self._costs.worth = {test: mark.args[0] for test, mark in marks.items() if mark}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._costs.later += [item.nodeid for item in items if any(map(item.get_closest_marker, LATER))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self._costs.ran.append(report.nodeid)
        seconds = self._costs.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_unconfigure(self) -> None:
        self._meter.read(self._costs)
        self._meter.close()
        self._file.write_text(json.dumps(asdict(self._costs)))


def read(folder: Path) -> dict[str, Costs]:
    """Return what the parts of a run have written, by the name of the part."""
    return {file.stem: Costs(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}


def sums(parts: dict[str, Costs]) -> list[str]:
    """Say what each part took, and all of them."""
    lines = [_sum(name, costs.wall, costs.processor, len(costs.seconds)) for name, costs in parts.items()]
    found = list(parts.values())
    wall, tests = max(each.wall for each in found), sum(len(each.seconds) for each in found)
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


def main() -> None:
    """Print what a run took; with ``--write``, put its slowest tests into the page."""
    parts = read(Path(sys.argv[1]))
    if not parts:
        sys.exit(f"{sys.argv[1]} has no costs: run script/test without arguments, then try again.")
    if "--write" in sys.argv:
        PAGE.write_text(TABLE.sub(lambda _: table(slowest(parts.values())), PAGE.read_text()))
        return
    for taken, test, worth in slowest(parts.values()):
        print(f"{taken:6.1f} s  {test}: {worth}")
    print("\n".join(sums(parts)))


if __name__ == "__main__":
    main()
