"""The process that runs the code of DAG files: an api-server outlives all that it may do."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.plugin.api.app import make_app
from airflow_tx.plugin.api.dag_process import (
    MOST_PROCESSES,
    DagProcess,
    FailedThere,
    NotAnsweredThere,
    RefusedThere,
)
from airflow_tx.testing.eventually import eventually

ANSWERS = """
import json, os, sys, time
for line in sys.stdin:
    question = json.loads(line)
    what = question.pop("what")
    if what == "hang":
        open(question["file"], "w").write(str(os.getpid()))
    elif what == "later":
        open(question["file"], "w").close()
        while not os.path.exists(question["file"] + ".now"):
            time.sleep(0.01)
        print(json.dumps({"id": question["id"], "found": os.getpid()}), flush=True)
    elif what == "end":
        os._exit(1)
    else:
        print(json.dumps({"id": question["id"], what: os.getpid()}), flush=True)
"""
"""Answers with its process id, one question when a file is there; except questions that let it hang, or end."""


@pytest.fixture
def process() -> Iterator[DagProcess]:
    process = DagProcess((sys.executable, "-c", ANSWERS))
    yield process
    process.end()


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_dag_process_that_does_not_answer_is_replaced(process: DagProcess, tmp_path: Path) -> None:
    first = process.ask({"what": "found"}, seconds=300)
    with pytest.raises(NotAnsweredThere, match=r"no answer within 0.5 s.*is replaced. Repeat the request"):
        process.ask({"what": "hang", "file": str(tmp_path / "pid")}, seconds=0.5)
    assert process.ask({"what": "found"}, seconds=300) != first
    eventually(lambda: not is_alive(first), 300, "the first process has ended")


def test_a_dag_process_that_is_replaced_still_answers_the_earlier_requests(process: DagProcess, tmp_path: Path) -> None:
    first = process.ask({"what": "found"}, seconds=300)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(process.ask, {"what": "later", "file": str(tmp_path / "other")}, seconds=300)
        eventually((tmp_path / "other").exists, 300, "another question is asked")
        with pytest.raises(NotAnsweredThere):
            process.ask({"what": "hang", "file": str(tmp_path / "own")}, seconds=0.5)
        assert is_alive(first)
        (tmp_path / "other.now").touch()
        assert other.result() == first
    eventually(lambda: not is_alive(first), 300, "the first process has ended")


def test_a_request_to_a_dag_process_that_ends_fails_immediately(process: DagProcess) -> None:
    with pytest.raises(NotAnsweredThere, match="has ended. Repeat the request"):
        process.ask({"what": "end"}, seconds=300)
    assert process.ask({"what": "found"}, seconds=300)


def test_refusals_and_failures_of_a_dag_process_are_returned_as_answers(process: DagProcess) -> None:
    with pytest.raises(RefusedThere):
        process.ask({"what": "refused"}, seconds=300)
    with pytest.raises(FailedThere) as failed:
        process.ask({"what": "failed"}, seconds=300)
    assert not isinstance(failed.value, NotAnsweredThere)


def test_an_answer_that_comes_too_late_is_reported_as_a_gateway_timeout_and_not_as_a_conflict() -> None:
    handler = make_app().exception_handlers[NotAnsweredThere]
    assert handler(None, NotAnsweredThere(text="it hangs")).status_code == 504  # type: ignore[arg-type, union-attr]


HANGS = """
import json, os, subprocess, sys
hangs = None
for line in sys.stdin:
    question = json.loads(line)
    answer = {"id": question.get("id")}
    if "hang" in question:
        hangs = {"dag_id": "stuck", "path": question["hang"], "changed": os.stat(question["hang"]).st_mtime_ns}
        hangs.update(text="it hangs", again=600)
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
        open(question["file"], "w").write(f"{os.getpid()} {child.pid}")
        if question["answers"]:
            print(json.dumps({**answer, "found": 1}), flush=True)
    elif "say" in question:
        print(json.dumps({question["say"]: hangs if question["say"] == "hangs" else "stuck"}), flush=True)
        print(json.dumps({**answer, "found": os.getpid()}), flush=True)
    elif "end_search" in question:
        open(question["end_search"], "w").close()
    elif hangs is not None:
        print(json.dumps({**answer, "slow": hangs}), flush=True)
    else:
        print(json.dumps({**answer, "found": [os.getpid(), question["leave"]]}), flush=True)
"""
"""Answers with its process id, and with what it was told to leave alone, until a DAG file hangs in it."""


class Stuck:
    """A process in which DAG files hang.

    :param dag_file: the file that hangs.
    """

    def __init__(self, home: Path) -> None:
        self.process = DagProcess((sys.executable, "-c", HANGS))
        self.dag_file = home / "stuck.py"
        self.dag_file.touch()
        self._home = home
        self._pool = ThreadPoolExecutor(8)

    def hang(self, name: str, *, answers: bool = False) -> tuple[Future[Any], int, int]:
        """Let a DAG file hang, and give the question, and the ids of the process and of what its code has started."""
        told = self._home / name
        question = {"hang": str(self.dag_file), "file": str(told), "answers": answers}
        asked = self._pool.submit(self.process.ask, question, seconds=300)
        eventually(lambda: told.exists() and " " in told.read_text(), 300, "a DAG file hangs")
        own, child = map(int, told.read_text().split())
        return asked, own, child

    def ask(self) -> tuple[int, dict[str, str]]:
        """Ask about another DAG, and give the process that answers, and what it is told to leave alone."""
        pid, left = self.process.ask({}, seconds=300)
        return pid, left

    def end(self, *processes: int) -> None:
        for each in processes:
            os.killpg(each, signal.SIGKILL)
        self.process.end()
        self._pool.shutdown()


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    stuck = Stuck(tmp_path)
    yield stuck
    stuck.end(*(pid for pid in children() if is_alive(pid)))


def children() -> set[int]:
    """The processes of this one that answer questions."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if (
                int(fields[1]) == os.getpid()
                and fields[0] != "Z"
                and b"leave" in (stat.parent / "cmdline").read_bytes()
            ):
                found.add(int(stat.parent.name))
    return found


def test_the_next_request_is_answered_by_another_process_while_a_dag_file_hangs(stuck: Stuck) -> None:
    asked, first, _ = stuck.hang("one")
    other, left = stuck.ask()
    assert other != first
    assert left == {"stuck": "it hangs"}
    assert not asked.done()
    assert stuck.ask()[0] == other


def test_a_dag_file_that_hung_is_read_again_after_it_has_changed(stuck: Stuck) -> None:
    stuck.hang("one")
    assert stuck.ask()[1] != {}
    os.utime(stuck.dag_file, ns=(1, 1))
    assert stuck.ask()[1] == {}


def test_a_dag_file_that_hung_is_read_again_after_some_time(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck.hang("one")
    assert stuck.ask()[1] != {}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    assert stuck.ask()[1] == {}


def test_dag_files_that_hang_start_at_most_the_maximum_number_of_processes(stuck: Stuck) -> None:
    for number in range(MOST_PROCESSES - 1):
        stuck.hang(str(number))
        stuck.ask()
    stuck.hang("last")
    with pytest.raises(NotAnsweredThere):
        stuck.process.ask({}, seconds=0.5)
    assert len(children()) == MOST_PROCESSES


def test_a_process_whose_dag_file_hangs_is_stopped_with_all_its_child_processes(stuck: Stuck) -> None:
    # Nobody waits for the file: it was read for a lag.
    asked, first, child = stuck.hang("one", answers=True)
    assert asked.result() == 1
    assert is_alive(child)
    stuck.process.ask({"say": "hangs"}, seconds=300)
    eventually(lambda: not is_alive(first) and not is_alive(child), 300, "the process has ended")
    assert children() == set()


def test_a_slow_dag_file_is_no_longer_excluded_after_it_was_read(stuck: Stuck) -> None:
    stuck.hang("one")
    stuck.ask()
    stuck.process.ask({"say": "read"}, seconds=300)
    assert stuck.ask()[1] == {}


def test_the_dag_process_is_notified_when_a_search_is_canceled(stuck: Stuck, tmp_path: Path) -> None:
    stuck.hang("one")
    stuck.process.end_search(str(tmp_path / "ended"))
    eventually((tmp_path / "ended").exists, 300, "the process is told")
