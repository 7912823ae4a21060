"""Runs the tests in parts beside each other, each in a process of its own, and says what failed and what it cost.

`script/test` calls it. Parts are taken from a queue, the longest first, and those that run need no more cores together
than there are. A part that waits for servers half of its time needs half a core.

A test whose wait ran out is run once more, alone, and is named with its count. Any other failure is final. A run of
the rest is watched and does not judge by itself: see `tests.before`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests import before, changes, costs

ROOT = Path(__file__).resolve().parents[1]
LONG = "(long or chaos) and not cluster"
MARKS = {
    "quick": "not chaos and not long and not cluster",
    "all": "not cluster",
    "met": LONG,
    "rest": LONG,
    "hosts": "cluster",
    "starve": "not chaos and not cluster",
}
STARVED = 0.2
"""Of a core: what a test has at least, on the busiest machine that was seen."""
STARVED_WHOLE = 0.3
"""Of a core: what each part has when all quick tests are starved."""
TIMES = 3
AGAIN = 600.0
"""Seconds that there are at least to run failed tests once more."""
SILENT = 300.0
"""Seconds after which a test that still runs is named, with what it does: the run may be ended from outside."""
LOCK = threading.Lock()


@dataclass(frozen=True)
class Part:
    """Tests that run in one process.

    :param marks: an expression of pytest's option ``-m``.
    :param arguments: files, folders and options of pytest.
    :param shares: how many times the normal share of the processor it gets.
    :param load: cores that it keeps busy while it runs; 0: it runs from the beginning, beside all others.
    """

    name: str
    marks: str
    arguments: tuple[str, ...]
    shares: int = 1
    load: float = 1.0


def quick() -> list[Part]:
    """Return the parts of a run of quick tests, the longest first."""
    sources = _files("contract/test_{kafka,rabbit_source,redis_source,sql_source}_suite.py")
    sources += _files("integration/test_{kafka,rabbit,redis_source,sql_source}*.py")
    seen = ["tests/integration/board", "tests/integration/kinds", *_files("integration/test_cli*.py")]
    stores = "changed,delta,guard,mariadb,memcached,redis_guard,redis_state,sql_state,state"
    stored = _files(f"integration/test_{{{stores}}}*.py")
    known = ("airflow", "cluster", "containers", "contract", "imports", "integration", "model")
    return [
        airflow(),
        Part("others", "not spark", tuple(_folders(without=known)), load=0.5),
        # What people see and type: it asks an Airflow of its own.
        Part("people", "not spark", tuple(seen), load=0.5),
        # What these wait for, each of them starts once.
        Part("sources", "not spark", tuple(sources), load=0.25),
        Part("integration", "not spark", ("tests/integration", *_without([*seen, *sources, *stored])), load=0.5),
        Part("stores", "not spark", tuple(stored), load=0.5),
        Part("spark", "spark", tuple(_sparks()), shares=4),
        Part("contract", "not spark", ("tests/contract", *_without(sources))),
        Part("model", "not spark", ("tests/model", "tests/imports")),
    ]


def rest() -> list[Part]:
    """Return the parts of a run of long tests."""
    folders = _folders(without=("airflow", "cluster", "containers"))
    return [
        airflow("-v"),
        Part("spark", "spark", ("-v", *_sparks()), shares=4),
        Part("others", "not spark", ("-v", *folders)),
    ]


def hosts(*, containers: bool) -> list[Part]:
    """Return the parts with hosts that break, each with hosts and servers of its own."""
    named = {
        "cut-off": ["tests/cluster/test_cut_off.py"],
        "elections": _files("cluster/test_{clocks,elections,object_storage}.py"),
        "spark": ["tests/cluster/test_spark.py"],
    }
    parts = [Part(name, "", ("-v", *files), load=0.0) for name, files in named.items()]
    others = _without([file for files in named.values() for file in files])
    parts.append(Part("others", "", ("-v", "tests/cluster", *others), load=0.0))
    return [*parts, *([Part("containers", "", ("-v", "tests/containers"), load=0.0)] if containers else [])]


def airflow(*options: str) -> Part:
    """Return the part of the tests in a real Airflow: six processes, which wait for each other most of the time."""
    return Part("airflow", "", (*options, "tests/airflow"), shares=4, load=0.0)


def _files(pattern: str) -> list[str]:
    """Return the test files of a pattern in which braces hold alternatives."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern)
    patterns = [f"{found[1]}{each}{found[3]}" for each in found[2].split(",")] if found else [pattern]
    return sorted({str(file.relative_to(ROOT)) for each in patterns for file in (ROOT / "tests").glob(each)})


def _folders(without: Sequence[str]) -> list[str]:
    folders = sorted(path for path in (ROOT / "tests").iterdir() if next(path.rglob("test_*.py"), None))
    return [f"tests/{path.name}" for path in folders if path.name not in without]


def _sparks() -> list[str]:
    # To import the other modules takes five seconds.
    files = [*_files("contract/*.py"), *_files("edges/*.py"), *_files("integration/*.py")]
    return [file for file in files if re.search(r"mark\.spark\b", (ROOT / file).read_text())]


def _without(files: Iterable[str]) -> list[str]:
    return [f"--ignore={file}" for file in files]


class Run:
    """One run of parts: their processes, their logs, what failed.

    :param kind: a key of `MARKS`; names the folder of what the run costs.
    :param options: of pytest, for every part.
    :param marks: which tests run, as an expression of the option ``-m``; those of the kind by default.
    """

    def __init__(self, kind: str, options: Sequence[str], *, marks: str | None = None) -> None:
        self._marks = MARKS[kind] if marks is None else marks
        self._options = list(options)
        self.costs = ROOT / "build/costs" / kind
        self._logs = Path(os.environ["AIRFLOW_HOME"])
        self._running: dict[Part, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []

    def parts(self, parts: Sequence[Part], cores: float) -> list[Part]:
        """Run all parts, at once those that need no more than these cores together, and return those that failed."""
        queue, failed = list(parts), []
        while queue or self._running:
            for part in list(queue):
                busy = sum(each.load for each in self._running)
                if not part.load or busy == 0 or busy + part.load <= cores:
                    queue.remove(part)
                    self._start(part)
            for part, process in list(self._running.items()):
                if process.poll() is not None:
                    del self._running[part]
                    if process.returncode not in (0, 5):  # 5: no test has these marks
                        failed.append(part)
            time.sleep(0.2)
        for reader in self._readers:
            reader.join()
        return failed

    def _start(self, part: Part) -> None:
        marks = " and ".join(f"({each})" for each in (part.marks, self._marks) if each)
        options = ["--no-header", "-m", marks, "--costs", str(self.costs / f"{part.name}.json")]
        options += [f"--shares={part.shares}", *(each.format(part=part.name) for each in self._options)]
        process = _pytest([*options, *part.arguments], read=True)
        self._running[part] = process
        reader = threading.Thread(target=self._read, args=(part.name, process), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with (self._logs / f"{name}.log").open("a") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                with LOCK:
                    print(f"{name:<11} | {line}", end="", flush=True)

    def alone(self, tests: Sequence[str], options: Sequence[str]) -> int:
        """Run tests by their ids in one process beside nothing else, and return its exit status."""
        process = _pytest(["--no-header", "-v", "--costs", str(self.costs / f"{costs.SECOND}.json"), *options, *tests])
        self._running[Part(costs.SECOND, "", ())] = process
        return process.wait()

    def log(self, part: Part) -> str:
        """Return what a part has printed."""
        file = self._logs / f"{part.name}.log"
        return file.read_text() if file.exists() else ""

    def end(self) -> None:
        """Interrupt what still runs, so that it ends its servers, and kill what does not end."""
        running = [process for process in self._running.values() if process.poll() is None]
        for process in running:
            _signal(process, signal.SIGINT)
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            _signal(process, signal.SIGKILL)


def _pytest(arguments: Sequence[str], *, read: bool = False) -> subprocess.Popen[str]:
    output, errors = (subprocess.PIPE, subprocess.STDOUT) if read else (None, None)
    command = [sys.executable, "-m", "pytest", *arguments]
    # A session of its own, so that all of it can be ended.
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=output, stderr=errors, start_new_session=True)


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def named(log: str, kind: str) -> list[str]:
    """Return the tests that a part calls ``not in time``, ``wrong`` or ``not run``."""
    return re.findall(rf"^{kind}: (.*)$", log, re.MULTILINE)


def told(log: str) -> str:
    """Return the end of a log: its failures."""
    found = re.search(r"^=* (FAILURES|ERRORS) =*$.*", log, re.MULTILINE | re.DOTALL)
    return "\n".join((found[0] if found else log).splitlines()[-300:])


def judge(run: Run, failed: Sequence[Part], *, watched: bool, left: float) -> int:
    """Print what failed, run once more what may have had bad luck, and return the exit status of the run.

    :param watched: whether everything is run once more, and a test that was red before the change does not count.
    :param left: seconds that the run has, for a second try.
    """
    if not failed:
        return 0
    logs = {part: run.log(part) for part in failed}
    for part, log in logs.items():
        print(f"\n== failed in {part.name}\n{told(log)}", flush=True)
    kinds = "(?:not in time|wrong)" if watched else "not in time"
    late = [test for log in logs.values() for test in named(log, kinds)]
    broken = [part.name for part, log in logs.items() if not named(log, "(?:not in time|wrong)")]
    wrong = [] if watched else [test for log in logs.values() for test in named(log, "wrong")]
    if broken or wrong or not late:
        print("\n".join(f"ended without naming a test: {name}" for name in broken), flush=True)
        return 1
    print("\n== failed beside the other parts; once more, alone:", *late, sep="\n  ", flush=True)
    options = [f"--timeout={AGAIN:g}", "--again", f"--budget={max(left, 0) + AGAIN:g}"]
    if run.alone(late, options if watched else []) == 0:
        print(f"\n== {len(late)} needed a second chance:", *late, sep="\n  ", flush=True)
        return 0
    return before.judge(late, run.costs / f"{costs.SECOND}.json") if watched else 1


def main() -> int:
    """Run what `script/test` was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.parts")
    parser.add_argument("kind", choices=MARKS)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--continue", dest="goes_on", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--containers", action="store_true")
    parser.add_argument("tests", nargs="*")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ways: dict[str, Callable[[argparse.Namespace], int]] = {"hosts": _hosts, "starve": _starve}
    return ways.get(given.kind, _parts)(given)


def _parts(given: argparse.Namespace) -> int:
    began, kind = time.monotonic(), given.kind
    options = ["--timeout=600", "-o", f"faulthandler_timeout={SILENT:g}"]
    if kind in ("met", "rest"):
        options += [f"--budget={given.seconds:g}", f"--met={changes.base(ROOT) or 'nothing'}"]
    if kind == "rest":
        options[-1] = f"--commit={changes.head(ROOT)}"
    if kind != "quick":
        # What a run of the change has passed is not run again with the rest.
        done = ROOT / "build/done" / ("all" if kind == "all" else f"long-{changes.head(ROOT)[:12]}")
        if kind in ("all", "met") and not given.goes_on:
            shutil.rmtree(done, ignore_errors=True)
        done.mkdir(parents=True, exist_ok=True)
        options.append(f"--done={done}/{{part}}.txt")
    parts = quick() if kind in ("quick", "all") else rest()
    run = Run(kind, options)
    status = _judged(run, parts, watched=kind == "rest", until=began + (given.seconds or 0))
    if kind == "rest":
        print(f"\n== the rest, from the tests on that belong to this commit, for {given.seconds:g} s")
    if kind in ("met", "rest"):
        word = "no time is left to run" if kind == "met" else "not run for lack of time"
        for part in parts:
            for line in named(run.log(part), "not run"):
                print(f"{word}: {line}")
    return status


def _hosts(given: argparse.Namespace) -> int:
    run = Run("hosts", [], marks=f"{MARKS['hosts']} and not long" if given.quick else None)
    return _judged(run, hosts(containers=given.containers), watched=False, until=0)


def _starve(given: argparse.Namespace) -> int:
    """Run tests with a part of a core: what fails then assumes something of the machine."""
    if given.tests == ["all"]:
        parts = [replace(part, load=STARVED_WHOLE) for part in quick()]
        run = Run("starve", [f"--cores={STARVED_WHOLE}"], marks=MARKS["quick"])
        return _judged(run, parts, watched=False, until=0)
    tests = given.tests or changes.changed_tests(ROOT, changes.base(ROOT))
    if not tests:
        print("No test differs from the newest commit that is over four hours old: name the tests to starve.")
        return 0
    print("== starved:", *tests, sep="\n  ", flush=True)
    parts = [Part(f"starved {number + 1}", "", tuple(tests)) for number in range(TIMES)]
    return _judged(Run("starve", [f"--cores={STARVED}"]), parts, cores=1, watched=False, until=0)


def _judged(run: Run, parts: Sequence[Part], *, cores: int | None = None, watched: bool, until: float) -> int:
    shutil.rmtree(run.costs, ignore_errors=True)
    run.costs.mkdir(parents=True)
    try:
        failed = run.parts(parts, cores or os.cpu_count() or 1)
        found = costs.read(run.costs)
        if found:
            print("\n== the slowest tests, and what all of them took", *costs.summary(found), sep="\n", flush=True)
        return judge(run, failed, watched=watched, left=until - time.monotonic())
    finally:
        run.end()


if __name__ == "__main__":
    sys.exit(main())
