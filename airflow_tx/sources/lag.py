"""Measure a topology's lag, which is the data in its source after the last committed transaction."""

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
    """Signals that the lag of a topology is unknown at the moment."""

    template = "The lag of topology {topology!r} is unknown: {reason}"


@dataclass(frozen=True)
class Lag:
    """The amount of uncommitted data in a source.

    :param count: number of rows or files.
    :param unit: unit of `count`: "rows" or "files".
    """

    count: int
    unit: str

    def __str__(self) -> str:
        return counted(self.count, self.unit)


SourcePosition: TypeAlias = "tuple[Source, Json]"
"""A source, and the position after the last committed transaction."""


def lags(sources: Mapping[str, SourcePosition], *, seconds: float) -> dict[str, Lag | LagUnknown]:
    """Return the lag of each topology, or the reason why it is unknown. All sources are queried in parallel.

    :param sources: source and position of each topology.
    :param seconds: seconds to wait for all responses.
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
    named = source.named(name)  # this source's errors name the topology
    try:
        count = named.backlog(position)
    except Exception as error:  # noqa: BLE001  # a source may raise any error; report it as one line
        text = str(error) if isinstance(error, TxError) else f"{type(error).__name__}: {error}"
        return LagUnknown(topology=name, reason=" ".join(text.split()))
    finally:
        named.close()
        source.close()
    if count is None:
        return LagUnknown(topology=name, reason=f"{source!r} cannot count its rows")
    return Lag(count, source.unit)


LAG_EVERY = 30.0
"""Seconds between two queries of a `LagWatch`."""


class LagWatch(Inquiry[Lag | LagUnknown]):
    """Periodically queries the lag of one source.

    :param topology: name of the topology.
    :param make: function that creates the source, which only this watch uses.
    :param patience: seconds to wait for the first response.
    :param every: seconds between two queries.
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
        """Return the last known lag, or None if it is unknown. If it is old, query the source again.

        :param position: function that reads the position after the last committed transaction.
        """
        self.ask(lambda: partial(self._lag_behind, position()))
        return self.answer if isinstance(self.answer, Lag) else None

    def _lag_behind(self, position: Json) -> Lag | LagUnknown:
        try:
            source = self._make()
        except Exception as error:  # noqa: BLE001  # a constructor may raise any error
            return LagUnknown(topology=self._topology, reason=str(error))
        return _lag(self._topology, source, position)
