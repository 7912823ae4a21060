"""How far a source is ahead of its topology: what it has behind the last committed transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from airflow_tx.base.errors import TxError
from airflow_tx.base.inquiry import Inquiry
from airflow_tx.ledger import counted
from airflow_tx.sources.api import Json, Source


class LagUnknown(TxError):
    """A lag that cannot be known now."""

    template = "The lag of topology {topology!r} is unknown: {reason}"


@dataclass(frozen=True)
class Lag:
    """The data of a source that is not committed yet.

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

    :param sources: by topology.
    :param seconds: how long to wait, for all of them together.
    """
    inquiries = {name: Inquiry[Lag | LagUnknown](f"lag of {name}") for name in sources}
    for name, inquiry in inquiries.items():
        question = partial(_lag, name, *sources[name])
        inquiry.ask(lambda question=question: question)  # type: ignore[misc]
    deadline = time.monotonic() + seconds
    for inquiry in inquiries.values():
        inquiry.wait(max(deadline - time.monotonic(), 0.0))
    late = f"its source has not answered within {seconds:g} s"
    return {
        name: each.answer or LagUnknown(topology=name, reason=late)
        for name, each in inquiries.items()
    }


def _lag(name: str, source: Source, position: Json) -> Lag | LagUnknown:
    named = source.named(name)  # what it refuses names the topology
    try:
        count = named.backlog(position)
    except Exception as error:  # noqa: BLE001  # whatever a source raises, it becomes one line
        text = str(error) if isinstance(error, TxError) else f"{type(error).__name__}: {error}"
        return LagUnknown(topology=name, reason=" ".join(text.split()))
    finally:
        named.close()
        source.close()
    if count is None:
        return LagUnknown(topology=name, reason=f"{source!r} does not know how much it has")
    return Lag(count, source.unit)


LAG_EVERY = 30.0
"""Seconds between two questions of a `LagWatch`."""


class LagWatch(Inquiry[Lag | LagUnknown]):
    """Asks one source for its lag now and then.

    :param make: makes the source, for this use only.
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
    ) -> None:
        super().__init__(f"lag of {topology}", every=every, patience=patience)
        self._topology = topology
        self._make = make

    def latest(self, position: Callable[[], Json]) -> Lag | None:
        """Give the last answer, and ask again once it is old; None: there is none, or the source cannot tell.

        :param position: reads the position after the last committed transaction.
        """
        self.ask(lambda: partial(self._lag_behind, position()))
        return self.answer if isinstance(self.answer, Lag) else None

    def _lag_behind(self, position: Json) -> Lag | LagUnknown:
        try:
            source = self._make()
        except Exception as error:  # noqa: BLE001  # whatever its constructor raises
            return LagUnknown(topology=self._topology, reason=str(error))
        return _lag(self._topology, source, position)
