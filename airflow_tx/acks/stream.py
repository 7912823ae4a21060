"""The sums of one worker for one acker, sent in numbered portions: a portion that is sent twice counts once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from itertools import islice

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.reference import Origin
from airflow_tx.acks.tree import Portion

TREES_A_PORTION = 10_000
"""Redis takes a million arguments in one command."""


class Stream:
    """The sums of one worker for one acker of one attempt.

    :param emitter: the task that registers the roots it adds; "": they are registered already.
    :param filled: called when there is something to send again.
    """

    def __init__(
        self,
        store: AckerStore,
        origin: Origin,
        acker: int,
        *,
        emitter: str = "",
        filled: Callable[[Stream], None] = lambda stream: None,
    ) -> None:
        self.origin = origin
        self._store = store
        self._acker = acker
        self._emitter = emitter
        self._filled = filled
        self._name = secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[int, int]] = {}
        self._acked = 0
        self._portion: Portion | None = None

    def add(self, root: int, message: int, count: int) -> None:
        """Add an id to the sum of a tree.

        :param count: 1: it is emitted; -1: it is acked.
        """
        with self._lock:
            self._acked += count < 0
            before = self._sums.get(root)
            if before is not None:
                self._sums[root] = (before[0] ^ message, before[1] + count)
                return
            first = not self._sums
            self._sums[root] = (message, count)
        if first:
            self._filled(self)

    def send(self) -> list[int]:
        """Send what has been added up; the roots that the acker does not know.

        A portion that was not answered is sent again, unchanged, before anything that was added since.

        :raises AckersUnavailable: it is to be called again.
        :raises StaleMessage, UnknownMessage, AckersBehind: the stream is of no more use.
        """
        refused = list[int]()
        while (portion := self._next()) is not None:
            refused += self._store.take(self.origin, self._acker, portion)
            self._number = portion.number
            self._portion = None
        return refused

    def _next(self) -> Portion | None:
        if self._portion is None:
            with self._lock:
                sums = dict(islice(self._sums.items(), TREES_A_PORTION))
                for root in sums:
                    del self._sums[root]
                acked = self._acked
                self._acked = 0
            if sums:
                self._portion = Portion(self._name, self._number + 1, sums, self._emitter, acked)
        return self._portion
