"""Runs the quick tests on every mutant of some files, each in a fork of one warm process; says which ones survive.

A mutant gets the tests that run its function, the quickest first, until one fails. What was found is kept, so that a
run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ["airflow_tx/protocol", "airflow_tx/state/fence.py", "airflow_tx/commit"]
ROOMS = ("commit", "coordinator", "processing", "protocol", "state", "topology")
TESTS = [*(f"tests/unit/{room}" for room in ROOMS), "tests/model", "tests/contract"]
SERVERS = ("zookeeper", "postgres", "mariadb", "redis", "kafka", "memcached", "delta", "spark", "source_suite")
RESULTS = ROOT / ".mutants.jsonl"
# Of one test on the code as it is; slower ones are left out.
SLOW = 3.0
Called = tuple[str, int]


@dataclass
class Calls:
    """Which functions of the files each test calls, and how long it takes."""

    files: frozenset[str]
    of_test: dict[str, set[Called]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _now: set[Called] = field(default_factory=set)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_filename in self.files:
            self._now.add((code.co_filename, code.co_firstlineno))

    def run(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        """Run a test; returns whether it passed."""
        self._now, began = set(), time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            passed = _passes(item, following)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        self.of_test[item.nodeid], self.seconds[item.nodeid] = self._now, time.perf_counter() - began
        return passed

    def tests_of(self, called: Called) -> list[str]:
        """The tests that call a function, the quickest first."""
        found = [test for test, all_called in self.of_test.items() if called in all_called]
        return sorted((test for test in found if self.seconds[test] < SLOW), key=self.seconds.__getitem__)


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    return all(report.passed or report.skipped for report in runtestprotocol(item, nextitem=following, log=False))


class Run:
    """A plugin that runs the mutants instead of the tests."""

    def __init__(self, wanted: Sequence[Mutant], known: dict[str, str], limit: float) -> None:
        self.wanted, self.known, self.limit = wanted, known, limit
        self.tried = 0
        self.survivors: list[Mutant] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not _is_slow(item)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        calls = Calls(frozenset(str(ROOT / mutant.path) for mutant in self.wanted))
        print(f"{len(session.items)} tests run once, to know what they call ...", flush=True)
        passing = []
        for number, item in enumerate(session.items, 1):
            if calls.run(item, None):
                passing.append(item)
            if number % 250 == 0:
                print(f"  {number}", flush=True)
        tests = {item.nodeid: item for item in passing}
        gone = [item.nodeid for item in session.items if item.nodeid not in tests]
        print(f"{len(passing)} pass in {sum(calls.seconds.values()):.0f} s; without: {gone}", flush=True)
        functions = _functions(calls.files)
        gc.freeze()  # so that no fork copies what it only looks at
        for number, mutant in enumerate(self.wanted, 1):
            outcome = self.known.get(mutant.key) or self._try(mutant, calls, tests, functions)
            self.tried = number
            if not outcome.startswith("killed"):
                self.survivors.append(mutant)
                print(f"\n[{number}/{len(self.wanted)}] {shown(mutant, outcome)}", flush=True)
            elif number % 50 == 0:
                print(f"[{number}/{len(self.wanted)}] {len(self.survivors)} survive", flush=True)
        return True

    def _try(
        self, mutant: Mutant, calls: Calls, tests: dict[str, pytest.Item], functions: dict[str, list[FunctionType]]
    ) -> str:
        path = str(ROOT / mutant.path)
        chosen = [tests[name] for name in calls.tests_of((path, mutant.first_line)) if name in tests]
        outcome = self._forked(mutant, chosen, functions[path]) if chosen else "survives: no test calls it"
        with RESULTS.open("a") as file:
            file.write(json.dumps({"key": mutant.key, "outcome": outcome}) + "\n")
        return outcome

    def _forked(self, mutant: Mutant, chosen: list[pytest.Item], functions: list[FunctionType]) -> str:
        """Run its tests in a child of this process, until one fails."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            os.setsid()
            _tried(mutant, chosen, functions, writing)
        os.close(writing)
        end = time.monotonic() + self.limit
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(reading)
                return "killed: it takes too long"
            time.sleep(0.002)
        with os.fdopen(reading) as answer:
            return answer.read() or "killed: the process ended"


def _tried(mutant: Mutant, chosen: list[pytest.Item], functions: list[FunctionType], writing: int) -> None:
    """In the child: never returns."""
    outcome = f"survives {len(chosen)} tests"
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    try:
        if not mutant.apply(functions):
            outcome = "survives: its function is not found"
        else:
            for item in chosen:
                if not _passes(item, None):
                    outcome = f"killed: {item.nodeid}"
                    break
    except BaseException as error:  # noqa: BLE001 - whatever a mutant does
        outcome = f"killed: {type(error).__name__}"
    os.write(writing, outcome.encode())
    os._exit(0)


def _functions(files: frozenset[str]) -> dict[str, list[FunctionType]]:
    """Per file the functions that were made of its code, wherever they are now."""
    found: dict[str, list[FunctionType]] = {path: [] for path in files}
    for each in gc.get_objects():
        # Not isinstance: it wakes proxies, which import what is not there.
        if type(each) is FunctionType and each.__code__.co_filename in files:
            found[each.__code__.co_filename].append(each)
    return found


def _is_slow(item: pytest.Item) -> bool:
    """Whether it needs a server, or takes long."""
    needed = set(getattr(item, "fixturenames", ()))
    return bool(
        any(server in item.nodeid.lower() for server in SERVERS)
        or needed & {*SERVERS, "url"}
        or any(item.get_closest_marker(mark) for mark in ("long", "chaos"))
        or "test_exploration" in item.nodeid
    )


def shown(mutant: Mutant, outcome: str) -> str:
    """A survivor, as a person reads it."""
    return f"{mutant.path}:{mutant.line} {mutant.function}: {mutant.what} ({outcome})\n{mutant.diff}"


def _files(names: Sequence[str]) -> Iterator[tuple[Path, int | None]]:
    for name in names:
        path, _, line = name.partition(":")
        found = ROOT / path
        for file in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            yield file, int(line) if line else None


def _known() -> dict[str, str]:
    if not RESULTS.exists():
        return {}
    entries: list[dict[str, Any]] = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {entry["key"]: entry["outcome"] for entry in entries}


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/mutate", description=__doc__)
    parser.add_argument("files", nargs="*", default=DEFAULT, help="files, folders or file:line; default: all rules")
    parser.add_argument("--sample", type=int, help="so many mutants, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="forget what was found before")
    parser.add_argument("--survivors", action="store_true", help="try again those that have survived")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one mutant")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    if given.again:
        RESULTS.unlink(missing_ok=True)
    known = _known()
    if given.survivors:
        known = {key: outcome for key, outcome in known.items() if outcome.startswith("killed")}
    wanted = [
        mutant for path, line in _files(given.files) for mutant in mutants(path, ROOT) if line in (None, mutant.line)
    ]
    if given.sample is not None:
        wanted = random.Random(given.seed).sample(wanted, min(given.sample, len(wanted)))
    began = time.monotonic()
    run = Run(wanted, known, given.limit)
    # Nothing of the warm process may go into the forks: no output of a test, no thread, no limit of time.
    options = ["-q", "-p", "no:cacheprovider", "-o", "timeout=0", *given.tests]
    pytest.main(options, plugins=[run])
    killed, seconds = run.tried - len(run.survivors), time.monotonic() - began
    print(f"\n{run.tried} of {len(wanted)} mutants, {killed} killed, {len(run.survivors)} survive; {seconds:.0f} s")
    return 0 if run.tried == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
