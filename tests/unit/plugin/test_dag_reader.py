"""DAG files are read one after the other; one whose import hangs is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.operations.actions import dag_server
from airflow_tx.operations.actions.dag_server import DagLeft, DagNotRead, DagReader, DagSlow
from airflow_tx.testing.eventually import eventually

SOON = 0.01
LONG = 300.0


def hanging(answered: threading.Event) -> DagReader:
    """A reader that has given up the file of a DAG, and has a lot of time for other ones."""
    reader = DagReader(SOON)
    with pytest.raises(DagNotRead, match="The file of DAG slow has not been read within 0.01 s"):
        reader.read("slow", lambda: parsed(str(answered.wait())))
    reader._seconds = LONG
    return reader


@pytest.fixture
def answered() -> Iterator[threading.Event]:
    """The server that a DAG file asks answers once this is set."""
    event = threading.Event()
    yield event
    event.set()


def parsed(name: str) -> Any:
    return name


def test_a_dag_file_whose_import_hangs_does_not_delay_a_request_about_another_file(answered: threading.Event) -> None:
    reader = hanging(answered)
    assert reader.read("other", lambda: parsed("other")) == parsed("other")


def test_a_dag_file_whose_import_still_hangs_is_not_imported_again(answered: threading.Event) -> None:
    reader = hanging(answered)
    with pytest.raises(DagNotRead):
        reader.read("slow", lambda: pytest.fail("it is imported a second time"))


def test_a_dag_file_is_imported_again_after_its_code_has_ended(answered: threading.Event) -> None:
    reader = hanging(answered)
    answered.set()
    assert reader._hanging["slow"].wait(LONG)
    assert reader.read("slow", lambda: parsed("again")) == parsed("again")


def test_dag_files_are_imported_one_at_a_time() -> None:
    reader = DagReader(LONG)
    turn = threading.Lock()

    def alone() -> Any:
        assert turn.acquire(blocking=False)
        turn.release()
        return "alone"

    with ThreadPoolExecutor(8) as pool:
        found: list[Any] = list(pool.map(lambda number: reader.read(f"dag{number}", alone), range(8)))
    assert found == ["alone"] * 8


def test_the_error_of_a_dag_file_is_raised() -> None:
    def broken() -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        DagReader(LONG).read("broken", broken)


def test_a_request_does_not_wait_for_the_slow_import_of_another_dag_file(answered: threading.Event) -> None:
    told: list[dict[str, Any]] = []
    reader = DagReader(LONG, SOON, told.append)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(reader.read, "slow", lambda: parsed(str(answered.wait())))
        eventually(lambda: reader._reading == "slow", LONG, "a file is read")
        with pytest.raises(DagSlow) as slow:
            reader.read("other", lambda: pytest.fail("two files are imported at once"))
        answered.set()
        assert first.result() == parsed("True")
    assert slow.value.read == "slow"
    assert told == [{"read": "slow"}]
    assert reader.read("other", lambda: parsed("other")) == parsed("other")


def test_an_action_that_has_begun_waits_for_the_import_of_the_other_dag_file(answered: threading.Event) -> None:
    reader = DagReader(LONG, SOON)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(reader.read, "slow", lambda: parsed(str(answered.wait())))
        eventually(lambda: reader._reading == "slow", LONG, "a file is read")
        other = pool.submit(reader.read, "other", lambda: parsed("other"), in_turn=True)
        answered.set()
        assert other.result() == parsed("other")


def test_a_dag_file_that_is_excluded_is_not_imported() -> None:
    reader = DagReader(LONG)
    reader.left = {"stuck": "it hangs"}
    with pytest.raises(DagLeft, match="it hangs"):
        reader.read("stuck", lambda: pytest.fail("it is imported"))


def test_the_reader_reports_the_path_of_the_dag_file_that_hangs(
    answered: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stuck.py"
    file.touch()
    monkeypatch.setattr(dag_server, "dag_path", lambda dag_id: file)
    told: list[dict[str, Any]] = []
    reader = DagReader(SOON, -1, told.append)
    with pytest.raises(DagNotRead) as error:
        reader.read("stuck", lambda: parsed(str(answered.wait())))
    assert str(error.value).startswith(f"The file of DAG stuck ({file}) has not been read within 0.01 s, the ")
    assert told == [{"hangs": dag_server.hanging_file("stuck", str(error.value))}]
    assert told[0]["hangs"]["changed"] == file.stat().st_mtime_ns
