"""Tests that wait run beside each other: each starts in a thread of its own, long before its turn to be reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

import pytest

from tests.budget import Budget, limit_of

P = ParamSpec("P")
T = TypeVar("T")

# A task of Airflow is a process that computes for a second or two, and two cores have other tests to run.
AT_ONCE = 4


def once(tell: Callable[P, T]) -> Callable[P, T]:
    """Let a story be told once for all tests that are about it; the others wait for the one that came first."""
    lock, told = threading.Lock(), list[Future[T]]()

    @wraps(tell)
    def shared(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            first = not told
            if first:
                told.append(Future())
        if first:
            _settle(told[0], lambda: tell(*args, **kwargs))
        return told[0].result()

    return shared


class Ahead:
    """Runs tests in threads, in their order; none of them needs more than one value.

    :param value: what each of them is called with.
    :param budget: until when they may start.
    :ivar seconds: per test that has ended, how long it took.
    """

    def __init__(self, items: Sequence[pytest.Function], name: str, value: object, budget: Budget) -> None:
        self._budget = budget
        self._waiting: SimpleQueue[pytest.Function] = SimpleQueue()
        self._arguments = {name: value}
        self._done: dict[str, Future[Any]] = {item.nodeid: Future() for item in items}
        self.seconds: dict[str, float] = {}
        for item in items:
            self._waiting.put(item)
        for _ in range(min(AT_ONCE, len(items))):
            # What is left of it when the run ends early is not waited for.
            threading.Thread(target=self._work, daemon=True).start()

    def result(self, item: pytest.Item) -> bool:
        """Wait until a test has ended; whether it was one of these.

        :raises BaseException: what it raised.
        """
        done = self._done.get(item.nodeid)
        if done is not None:
            done.result()
        return done is not None

    def end(self) -> None:
        """Start no other one."""
        while True:
            try:
                self._waiting.get_nowait()
            except Empty:
                return

    def _work(self) -> None:
        while True:
            try:
                item = self._waiting.get_nowait()
            except Empty:
                return
            if not self._budget.begins(item.nodeid, limit_of(item)):
                continue
            began = time.monotonic()
            _settle(self._done[item.nodeid], partial(self._run, item, began))

    def _run(self, item: pytest.Function, began: float) -> None:
        try:
            item.obj(**self._arguments)
        finally:
            self.seconds[item.nodeid] = time.monotonic() - began


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        future.set_exception(error)
