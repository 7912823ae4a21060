"""How far a source is ahead of its topology: what it has behind the last committed transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, TypeAlias

from airflow_tx.errors import TxError
from airflow_tx.protocol.batch_words import counted
from airflow_tx.sources.api import Json, Source


class LagUnknown(TxError):
    """A lag that cannot be known now."""

    template = "The lag of topology {topology!r} is unknown: {reason}"


@dataclass(frozen=True)
class Lag:
    """What a source has that is not committed yet.

    :param unit: what is counted: rows, or files.
    """

    count: int
    unit: str

    def __str__(self) -> str:
        return counted(self.count, self.unit)


SourcePosition: TypeAlias = "tuple[Source, Json]"
"""A source, and the position after the last committed transaction."""


def lags(sources: Mapping[str, SourcePosition], *, seconds: float) -> dict[str, Lag | LagUnknown]:
    """Find the lag of every topology, or why it is unknown; of all of them at once.

    A source that does not answer in time is left to itself, in a thread that keeps no process alive.

    :param sources: by topology.
    :param seconds: how long to wait, for all of them together.
    """
    found: dict[str, Lag | LagUnknown] = {}
    threads = {
        name: Thread(target=_answer, args=(found, name, *each), name=f"lag of {name}", daemon=True)
        for name, each in sources.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.join(max(deadline - time.monotonic(), 0.0))
    late = f"its source has not answered within {seconds:g} s"
    # A copy: a thread that is late still writes into the other one.
    return {name: found.get(name) or LagUnknown(topology=name, reason=late) for name in sources}


def _answer(found: dict[str, Any], name: str, source: Source, position: Json) -> None:
    try:
        count = source.backlog(position)
    except Exception as error:  # noqa: BLE001  # whatever a source raises, it becomes one line
        text = str(error) if isinstance(error, TxError) else f"{type(error).__name__}: {error}"
        found[name] = LagUnknown(topology=name, reason=" ".join(text.split()))
        return
    finally:
        source.close()
    if count is None:
        found[name] = LagUnknown(topology=name, reason=f"{source!r} does not know how much it has")
    else:
        found[name] = Lag(count, source.unit)


LAG_EVERY = 30.0
"""Seconds between two questions of a `LagWatch`."""


class LagWatch:
    """Asks one source for its lag now and then, in a thread, and gives what it answered last.

    :param make: makes the source, which nobody else uses.
    :param patience: seconds to wait for the first answer.
    :param every: seconds between two questions.
    """

    def __init__(
        self,
        topology: str,
        make: Callable[[], Source],
        *,
        patience: float = 0.0,
        every: float = LAG_EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topology = topology
        self._make = make
        self._clock = clock
        self._every = every
        self._patience = patience
        self._asked_at = float("-inf")
        self._answer_of = float("-inf")
        self._asking = Lock()
        self._thread: Thread | None = None
        self._found: dict[str, Lag | LagUnknown] = {}

    def latest(self, position: Callable[[], Json]) -> Lag | None:
        """Give the last answer, and ask again once it is old; None: there is none, or the source cannot tell.

        :param position: reads the position after the last committed transaction.
        """
        with self._asking:
            if self._clock() - self._asked_at >= self._every and (self._thread is None or not self._thread.is_alive()):
                self._asked_at = self._clock()
                thread = Thread(target=self._ask, args=(position(),), name=f"lag of {self._topology}", daemon=True)
                thread.start()
                self._thread = thread  # not before: another question may be waiting for it
                thread.join(self._patience)
                self._patience = 0.0
        return self.answer if isinstance(self.answer, Lag) else None

    def wait(self, seconds: float) -> bool:
        """Wait for the answer to the last question, and say whether there was one."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    @property
    def answer(self) -> Lag | LagUnknown | None:
        """The last answer, or why there was none; None: there was none yet."""
        return self._found.get(self._topology)

    @property
    def age(self) -> float:
        """Seconds since the source was asked the question that it answered last."""
        return self._clock() - self._answer_of

    def _ask(self, position: Json) -> None:
        asked_at = self._asked_at
        try:
            source = self._make()
        except Exception as error:  # noqa: BLE001  # whatever its constructor raises
            self._found[self._topology] = LagUnknown(topology=self._topology, reason=str(error))
        else:
            _answer(self._found, self._topology, source, position)
        self._answer_of = asked_at
