"""A query that may take long, for example because a server does not respond.

It runs in a separate thread, and delays no other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Generic, TypeAlias, TypeVar

_Answer = TypeVar("_Answer")
_Question: TypeAlias = Callable[[], _Answer]


class Inquiry(Generic[_Answer]):
    """Runs a query repeatedly, one at a time, and stores the latest result. Its thread ends with the process.

    :param name: thread name.
    :param every: seconds between two queries.
    :param patience: seconds to wait for the first result.
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
        """The error of the last query, or None if it was answered."""

    def ask(self, prepare: Callable[[], _Question[_Answer]]) -> None:
        """Query again, unless the last query is recent or its thread is still waiting for the result.

        :param prepare: function that prepares the query in the caller's thread. It is called only if a query is due.
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
            # Publish the thread after its start, since another caller may join it.
            self._thread = thread
            thread.join(self._patience)
            self._patience = 0.0

    def wait(self, seconds: float) -> bool:
        """Wait for the result of the last query. Return whether its thread has ended."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(seconds)
        return not thread.is_alive()

    @property
    def age(self) -> float:
        """Seconds since the start of the last answered query."""
        return self._clock() - self._answer_of

    def _find_answer(self, question: _Question[_Answer], asked_at: float) -> None:
        try:
            self.answer = question()
            self.error = None
        except Exception as error:  # noqa: BLE001 - the caller reads it
            self.error = error
        self._answer_of = asked_at
