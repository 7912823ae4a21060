"""The progress of a command that starts runs up to a limit, and tracks them until they end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, Protocol, TextIO, TypeVar

from airflow_tx.ledger import Ledger

# Seconds between two readings. A commit ends the wait early.
_PACE = 1.0


class WorkStatus(Enum):
    """The status of one item of work."""

    DONE = "done"
    FAILED = "failed"
    IN_FLIGHT = "in flight"
    WAITING = "waiting"


class WorkPiece(Protocol):
    """One item of work, such as a date or a requested restatement. It becomes a transaction."""

    @property
    def status(self) -> WorkStatus: ...
    @property
    def txid(self) -> int | None:
        """Return the txid of the item's transaction, or None if it has none yet."""

    @property
    def is_in_flight(self) -> bool:
        """Return whether the run is queued or running, and has not committed."""


_Piece = TypeVar("_Piece", bound=WorkPiece)


class Work(ABC, Generic[_Piece]):
    """The items of work of a command.

    :ivar in_order: whether a failed item blocks all later items.
    """

    in_order = False

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.current: int | None = None
        """The txid that had the turn at the last reading."""

    @abstractmethod
    def read(self) -> list[_Piece]:
        """Read the current state of all items, in order."""

    @abstractmethod
    def create(self, piece: _Piece) -> None:
        """Start the run for a waiting item."""

    def await_commit(self, seconds: float) -> None:
        """Wait until the turn has changed since the last reading, for at most `seconds`."""
        with self.ledger.watch_turn() as watch:
            # The watch does not report changes made before it was set.
            if self.ledger.current_if_any() == self.current:
                watch.wait(seconds)


class Progress(Generic[_Piece]):
    """Starts runs up to a limit, and prints their progress.

    :param dates: items of work, such as dates.
    :param in_flight: maximum number of uncommitted runs that are queued or running. With 0, no runs are created, since
        a lane does the work.
    :param sleep: function that waits for a number of seconds. With None, the wait also ends when the turn changes.
    :param clock: function that returns the monotonic time in seconds.
    :param to: stream for the progress, or None for stdout.
    """

    def __init__(
        self,
        dates: Work[_Piece],
        in_flight: int,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        to: TextIO | None = None,
    ) -> None:
        self._dates = dates
        self._in_flight = in_flight
        self._sleep = sleep or dates.await_commit
        self._clock = clock
        self._to = to

    def follow(self) -> list[_Piece]:
        """Continue until all items have ended, or a user must act. Return the final state of the items."""
        dates = self._dates.read()
        began = self._clock()
        shown = ""
        at_first = _counts(dates)[WorkStatus.DONE]
        while True:
            counts = _counts(dates)
            line = f"done {counts[WorkStatus.DONE]} of {len(dates)}, " + ", ".join(
                f"{status.value} {counts[status]}"
                for status in WorkStatus
                if status is not WorkStatus.DONE
            )
            if line != shown:
                seconds = self._seconds_left(
                    counts, counts[WorkStatus.DONE] - at_first, self._clock() - began
                )
                print(line + seconds, file=self._to, flush=True)
                shown = line
            created = self._create(dates)
            if not created and _is_over(dates, in_order=self._dates.in_order):
                return dates
            if not created:
                self._sleep(_PACE)
            dates = self._dates.read()

    def _create(self, dates: Sequence[_Piece]) -> bool:
        room = max(self._in_flight - sum(each.is_in_flight for each in dates), 0)
        wanted = [each for each in dates if each.status is WorkStatus.WAITING][:room]
        for each in wanted:
            self._dates.create(each)
        return bool(wanted)

    def _seconds_left(self, counts: Counter[WorkStatus], done: int, elapsed: float) -> str:
        left = counts[WorkStatus.IN_FLIGHT] + counts[WorkStatus.WAITING]
        return f", about {round(left * elapsed / done)} s left" if done and left else ""


def _counts(dates: Sequence[WorkPiece]) -> Counter[WorkStatus]:
    return Counter(each.status for each in dates)


def _is_over(dates: Sequence[WorkPiece], *, in_order: bool) -> bool:
    """Return whether no other item can commit. Either all items have ended, or the first open one has failed."""
    open_ones = [
        each
        for each in dates
        if each.status is WorkStatus.IN_FLIGHT
        or each.status is WorkStatus.WAITING
        or (each.status is WorkStatus.FAILED and (in_order or each.txid is not None))
    ]
    return not open_ones or open_ones[0].status is WorkStatus.FAILED
