"""DAG files are read one after the other; one whose import hangs is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_tx.operations.actions.dag_server import DagNotRead, DagReader

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


def test_a_file_whose_import_hangs_delays_no_later_question_about_another_one(answered: threading.Event) -> None:
    reader = hanging(answered)
    assert reader.read("other", lambda: parsed("other")) == parsed("other")


def test_a_file_whose_import_still_hangs_is_not_imported_again(answered: threading.Event) -> None:
    reader = hanging(answered)
    with pytest.raises(DagNotRead):
        reader.read("slow", lambda: pytest.fail("it is imported a second time"))


def test_a_file_is_imported_again_once_its_code_has_ended(answered: threading.Event) -> None:
    reader = hanging(answered)
    answered.set()
    assert reader._hanging["slow"].wait(LONG)
    assert reader.read("slow", lambda: parsed("again")) == parsed("again")


def test_files_are_imported_one_after_the_other() -> None:
    reader = DagReader(LONG)
    turn = threading.Lock()

    def alone() -> Any:
        assert turn.acquire(blocking=False)
        turn.release()
        return "alone"

    with ThreadPoolExecutor(8) as pool:
        found: list[Any] = list(pool.map(lambda number: reader.read(f"dag{number}", alone), range(8)))
    assert found == ["alone"] * 8


def test_what_a_file_raises_is_raised() -> None:
    def broken() -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        DagReader(LONG).read("broken", broken)
