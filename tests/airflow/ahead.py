"""Tests that wait run beside each other: each starts in a thread of its own, long before its turn to be reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
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
    :param held: whether none starts before `go_on`.
    :ivar seconds: per test that has ended, how long it took.
    """

    def __init__(
        self, items: Sequence[pytest.Function], name: str, value: object, budget: Budget, *, held: bool = False
    ) -> None:
        self._budget = budget
        self._waiting: SimpleQueue[pytest.Function] = SimpleQueue()
        self._arguments = {name: value}
        self._done: dict[str, Future[Any]] = {item.nodeid: Future() for item in items}
        self._change = threading.Condition()
        self._held = held
        self._running = 0
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

    def hold(self) -> None:
        """Start no other one until they go on, and wait until those that run have ended."""
        with self._change:
            self._held = True
            self._change.wait_for(lambda: not self._running)

    def go_on(self) -> None:
        """Start the next ones."""
        with self._change:
            self._held = False
            self._change.notify_all()

    @contextmanager
    def _taking_part(self) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: not self._held)
            self._running += 1
        try:
            yield
        finally:
            with self._change:
                self._running -= 1
                self._change.notify_all()

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
            with self._taking_part():
                if self._budget.begins(item.nodeid, limit_of(item)):
                    _settle(self._done[item.nodeid], partial(self._run, item, time.monotonic()))

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
