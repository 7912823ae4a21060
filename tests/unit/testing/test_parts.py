"""The tests run in parts: each test in one of them, no more parts that compute than cores, and no failure is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests import parts
from tests.parts import ROOT, Part, Run, judge, named, quick, rest

LOG = """
==== FAILURES ====
E   NotInTime
not in time: tests/a.py::test_late
{}==== 1 failed ====
"""


def files(part: Part) -> set[str]:
    """Return the test files that a part collects."""
    left_out = {each.removeprefix("--ignore=") for each in part.arguments if each.startswith("--ignore=")}
    places = [ROOT / each for each in part.arguments if not each.startswith("-")]
    found = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))]
    paths = {str(file.relative_to(ROOT)): file for file in found}
    return {path for path in paths if not any(path == other or path.startswith(f"{other}/") for other in left_out)}


@pytest.mark.parametrize("made", [quick, rest])
def test_each_test_file_belongs_to_one_part(made: Callable[[], list[Part]]) -> None:
    everything = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    everything = {path for path in everything if not path.startswith(("tests/cluster/", "tests/containers/"))}
    found = [path for part in made() if part.marks != "spark" for path in files(part)]
    assert sorted(found) == sorted(everything)


def test_each_file_with_a_spark_test_belongs_to_the_spark_part() -> None:
    marked = {
        path for part in quick() if part.marks for path in files(part) if "mark.spark" in (ROOT / path).read_text()
    }
    (spark,) = [part for part in quick() if part.marks == "spark"]
    assert marked - files(spark) <= {str(Path(__file__).relative_to(ROOT))}


class Slow:
    """A process that ends after some questions whether it has ended."""

    def __init__(self, running: list[int], questions: int, status: int) -> None:
        self._left = questions
        self._running = running
        self._running[0] += 1
        self.returncode = status
        self.stdout: Iterator[str] = iter(())

    def poll(self) -> int | None:
        self._left -= 1
        if self._left == 0:
            self._running[0] -= 1
        return self.returncode if self._left <= 0 else None


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    made = Run("quick", [])
    made.costs = tmp_path
    return made


def test_running_parts_need_no_more_cores_than_the_machine_has(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, begun = [0], [0], list[str]()

    def start(arguments: Sequence[str], *, read: bool = False) -> Slow:
        begun.append(arguments[-1])
        process = Slow(running, 3, 0)
        most[0] = max(most[0], running[0])
        return process

    monkeypatch.setattr(parts, "_pytest", start)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    computing = [Part(f"part {number}", "", (str(number),)) for number in range(3)]
    halves = [Part(f"half {number}", "", (f"half {number}",), load=0.5) for number in range(4)]
    beside = Part("beside", "", ("beside",), load=0.0)
    assert run.parts([*computing, *halves, beside], 2) == []
    assert begun == ["0", "1", "beside", "2", "half 0", "half 1", "half 2", "half 3"]
    assert most == [3]


def test_a_failed_part_is_returned_and_a_part_without_tests_is_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"fails": 1, "empty": 5, "killed": -9, "passes": 0}
    monkeypatch.setattr(parts, "_pytest", lambda arguments, read: Slow([0], 1, status[arguments[-1]]))
    failed = run.parts([Part(name, "", (name,)) for name in status], 2)
    assert sorted(part.name for part in failed) == ["fails", "killed"]


def judged(run: Run, monkeypatch: pytest.MonkeyPatch, log: str, again: int, *, watched: bool = False) -> int:
    monkeypatch.setattr(Run, "log", lambda self, part: log)
    monkeypatch.setattr(Run, "alone", lambda self, tests, options: again)
    monkeypatch.setattr("tests.before.judge", lambda tests, costs: len(tests))
    return judge(run, [Part("a", "", ())], watched=watched, left=0)


def test_a_test_that_timed_out_may_pass_when_it_is_repeated_alone_and_is_counted(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(run, monkeypatch, LOG.format(""), 0) == 0
    assert "1 needed a second chance:\n  tests/a.py::test_late" in capsys.readouterr().out


def test_a_test_that_times_out_twice_fails_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(run, monkeypatch, LOG.format(""), 1) == 1


def test_a_test_that_fails_without_a_timeout_fails_the_run_immediately(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(run, monkeypatch, LOG.format("wrong: tests/a.py::test_wrong\n"), 0) == 1


def test_a_part_that_crashes_without_the_name_of_a_test_fails_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(run, monkeypatch, "Segmentation fault", 0) == 1
    assert "ended without naming a test: a" in capsys.readouterr().out


def test_the_commit_before_decides_whether_a_watched_test_that_fails_twice_counts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LOG.format("wrong: tests/a.py::test_wrong\n")
    assert judged(run, monkeypatch, log, 1, watched=True) == len(["test_late", "test_wrong"])
    assert judged(run, monkeypatch, log, 0, watched=True) == 0


def test_only_a_complete_line_of_the_log_names_a_test() -> None:
    assert named("wrong: a\nis wrong: b\n", "wrong") == ["a"]


def test_an_interrupted_run_ends_the_processes_that_it_has_started(run: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(1000)"], text=True, start_new_session=True
    )
    run._running[Part("a", "", ())] = process
    run.end()
    assert process.wait(60) != 0
