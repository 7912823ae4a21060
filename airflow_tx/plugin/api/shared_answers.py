"""Answers that viewers share: each is made once a second, and all of them together take a bounded amount of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from airflow_tx.plugin.api.ledger_client import SILENT, LedgerAway

MOST_ANSWERED = 32 * 2**20
"""Size of all answers that are kept."""
# Seconds to wait for the answer that another viewer's thread makes.
_PATIENCE = 10.0


@dataclass(frozen=True)
class _Answer:
    at: float
    body: bytes


class SharedAnswers:
    """Bodies of answers by what was asked.

    :param age: seconds for which an answer is given again.
    :param most: bytes that are kept.
    """

    def __init__(
        self,
        age: float,
        *,
        most: int = MOST_ANSWERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._age = age
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        # The oldest answer is first.
        self._answers: dict[Hashable, _Answer] = {}
        self._making: dict[Hashable, Future[bytes]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """Count the bytes that are kept."""
        return self._size

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Give the answer, or make it, unless another thread is making it.

        :raises LedgerAway: the other thread takes too long.
        """
        with self._lock:
            self._drop()
            if key in self._answers:
                return self._answers[key].body
            other = self._making.get(key)
            own = self._making[key] = Future[bytes]() if other is None else other
        return self._make(key, own, make) if other is None else _waited_for(other)

    def _make(self, key: Hashable, own: Future[bytes], make: Callable[[], bytes]) -> bytes:
        try:
            body = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            own.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._answers[key] = _Answer(self._clock(), body)
            self._size += len(body)
            self._drop()
        own.set_result(body)
        return body

    def _drop(self) -> None:
        """Drop what is old, and then the oldest answers until the others fit."""
        now = self._clock()
        for key, answer in list(self._answers.items()):
            if now - answer.at < self._age and self._size <= self._most:
                return
            del self._answers[key]
            self._size -= len(answer.body)


def _waited_for(other: Future[bytes]) -> bytes:
    try:
        return other.result(timeout=_PATIENCE)
    except FutureTimeout:
        raise LedgerAway(reason=SILENT) from None
