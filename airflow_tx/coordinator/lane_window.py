"""The transactions that a lane works on: shared by its two threads and the threads of its applications."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_tx.coordinator.lane_tasks import LaneTransaction


class LaneWindow:
    """The transactions that a lane has begun, that are not final and have not left it.

    :ivar changed: notified with every change.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._open: set[int] = set()
        self._processed: dict[int, LaneTransaction] = {}
        self._applied: list[LaneTransaction] = []
        self._closed = False

    @property
    def txids(self) -> frozenset[int]:
        with self.changed:
            return frozenset(self._open)

    def add(self, txid: int) -> None:
        """Let it be in the window from now on."""
        with self.changed:
            self._open.add(txid)

    def drop(self, txid: int) -> None:
        """Let it be in the window no more: it is final, or leaves the lane."""
        with self.changed:
            self._open.discard(txid)
            self.changed.notify_all()

    def processed(self, transaction: LaneTransaction) -> None:
        """Let a transaction be committed, once those before it have been, or have left."""
        with self.changed:
            self._processed[transaction.begun.txid] = transaction
            self.changed.notify_all()

    def next_processed(self) -> LaneTransaction | None:
        """Wait until the first of the window is processed; None: the window is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self._closed or self._first in self._processed)
            return self._processed.pop(self._first, None)

    def close(self) -> None:
        """End the wait for the first one."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    @property
    def _first(self) -> int:
        return min(self._open, default=0)

    # --- in the thread that processes

    def applied(self, transaction: LaneTransaction) -> None:
        """Keep a transaction until its application is over."""
        self._applied.append(transaction)

    def take_over(self) -> list[LaneTransaction]:
        """Take the ones whose application is over."""
        found = [each for each in self._applied if each.is_ready]
        self._applied = [each for each in self._applied if each not in found]
        return found

    def wait_below(self, count: int, until: float) -> bool:
        """Wait until fewer than `count` transactions, or none, are in it, until an application is over, or until then.

        :param until: of the monotonic clock.
        :return: whether there is nothing more to wait for than an application that is over.
        """
        deadlines = [
            each.application.deadline for each in self._applied if each.application is not None
        ]
        with self.changed:
            self.changed.wait_for(
                lambda: self._is_below(count) or any(each.is_ready for each in self._applied),
                max(min([until, *deadlines]) - time.monotonic(), 0.0),
            )
            return self._is_below(count) or time.monotonic() >= until

    def _is_below(self, count: int) -> bool:
        return len(self._open) < max(count, 1)
