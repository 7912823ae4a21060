"""Tests that run in threads stand still while one that needs the whole machine runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.ahead import Ahead
from tests.budget import Budget


class Told:
    """As much of a test as these threads ask of it."""

    def __init__(self, nodeid: str, obj: Callable[[Any], None]) -> None:
        self.nodeid = nodeid
        self.obj = obj

    def get_closest_marker(self, name: str) -> pytest.Mark:
        return pytest.Mark(name, (1.0,), {}, _ispytest=True)


def ahead(*tests: Told, held: bool = False) -> Ahead:
    return Ahead(tests, "stack", None, Budget.of(None), held=held)  # type: ignore[arg-type]


def test_no_test_starts_while_tests_are_held_back() -> None:
    started = threading.Event()
    test = Told("held", lambda stack: started.set())
    own = ahead(test, held=True)
    eventually(own._waiting.empty, 300, "a thread has taken the test")
    assert not started.wait(0.1)
    own.go_on()
    assert own.result(test)  # type: ignore[arg-type]
    assert started.is_set()


def test_running_tests_end_before_a_test_that_must_run_alone_starts() -> None:
    started, ended, end = threading.Event(), threading.Event(), threading.Event()

    def run(stack: object) -> None:
        started.set()
        assert end.wait(300)
        ended.set()

    own = ahead(Told("running", run))
    assert started.wait(300)
    holding = threading.Thread(target=own.hold)
    holding.start()
    eventually(lambda: own._held, 300, "it holds the others")
    holding.join(0.1)
    assert holding.is_alive()
    end.set()
    holding.join(300)
    assert ended.is_set()
    assert not holding.is_alive()
