"""A question that may take long, such as one to a hanging server. A thread asks it, so that it delays no other work."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Generic, TypeAlias, TypeVar

_Answer = TypeVar("_Answer")
_Question: TypeAlias = Callable[[], _Answer]


class Inquiry(Generic[_Answer]):
    """Asks a question repeatedly, one request at a time, and keeps the last answer. Its thread keeps no process alive.

    :param name: name of its threads.
    :param every: seconds between two questions.
    :param patience: seconds to wait for the first answer.
    """

    def __init__(
        self,
        name: str,
        *,
        every: float = 0.0,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._every = every
        self._patience = patience
        self._clock = clock
        self._asking = Lock()
        self._thread: Thread | None = None
        self._asked_at = float("-inf")
        self._answer_of = float("-inf")
        self.answer: _Answer | None = None
        self.error: Exception | None = None
        """The error of the last question; None if it was answered."""

    def ask(self, prepare: Callable[[], _Question[_Answer]]) -> None:
        """Ask again, unless the last question was recent, or a thread still waits for its answer.

        :param prepare: makes the question in the caller's thread. It is only called if a question is due.
        """
        with self._asking:
            now = self._clock()
            if now - self._asked_at < self._every or not self.wait(0.0):
                return
            self._asked_at = now
            thread = Thread(
                target=self._find_answer, args=(prepare(), now), name=self._name, daemon=True
            )
            thread.start()
            self._thread = thread  # after the start, since another caller may join this thread
            thread.join(self._patience)
            self._patience = 0.0

    def wait(self, seconds: float) -> bool:
        """Wait for the answer to the last question. Return whether its thread has ended."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(seconds)
        return not thread.is_alive()

    @property
    def age(self) -> float:
        """Seconds since the last answered question was asked."""
        return self._clock() - self._answer_of

    def _find_answer(self, question: _Question[_Answer], asked_at: float) -> None:
        try:
            self.answer = question()
            self.error = None
        except Exception as error:  # noqa: BLE001 - the caller reads it
            self.error = error
        self._answer_of = asked_at
