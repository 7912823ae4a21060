"""The process that runs the code of DAG files: an api-server outlives all that it may do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_tx.plugin.api.app import make_app
from airflow_tx.plugin.api.dag_process import (
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


def test_a_process_that_does_not_answer_is_replaced(process: DagProcess, tmp_path: Path) -> None:
    first = process.ask({"what": "found"}, seconds=300)
    with pytest.raises(NotAnsweredThere, match=r"no answer within 0.5 s.*is replaced; repeat it"):
        process.ask({"what": "hang", "file": str(tmp_path / "pid")}, seconds=0.5)
    assert process.ask({"what": "found"}, seconds=300) != first
    eventually(lambda: not is_alive(first), 300, "the first process has ended")


def test_the_questions_of_others_are_still_answered_by_a_process_that_is_replaced(
    process: DagProcess, tmp_path: Path
) -> None:
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


def test_a_process_that_ends_lets_nobody_wait(process: DagProcess) -> None:
    with pytest.raises(NotAnsweredThere, match="has ended; repeat it"):
        process.ask({"what": "end"}, seconds=300)
    assert process.ask({"what": "found"}, seconds=300)


def test_a_refusal_and_a_failure_are_answers(process: DagProcess) -> None:
    with pytest.raises(RefusedThere):
        process.ask({"what": "refused"}, seconds=300)
    with pytest.raises(FailedThere) as failed:
        process.ask({"what": "failed"}, seconds=300)
    assert not isinstance(failed.value, NotAnsweredThere)


def test_no_answer_in_time_is_a_timeout_of_the_gateway_and_no_conflict() -> None:
    handler = make_app().exception_handlers[NotAnsweredThere]
    assert handler(None, NotAnsweredThere(text="it hangs")).status_code == 504  # type: ignore[arg-type, union-attr]
