"""Wakes a committer when its turn is near, or when something happened to its own transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_tx.commit.turn import WARM_PLACES, read_line
from airflow_tx.protocol.api import Store
from airflow_tx.triggers.base import Event, WaitTrigger


@dataclass(kw_only=True, eq=False, repr=False)
class TurnTrigger(WaitTrigger):
    """Fires near the turn with all earlier transactions on their way, when the one whose turn it is is to be skipped,
    or when the own record changed or vanished.

    :param op: the `op` of the own record when the task deferred itself.
    :param mapped: ids of the tasks that have map indexes.
    :param waited: the line in which its task has waited in its worker for as long as it may: it is not woken for it.
    :param places: how many in line wait in their worker.
    """

    watched: ClassVar[bool] = True

    txid: int
    op: str | None
    mapped: list[str]
    waited: list[list[Any]] = field(default_factory=list)
    places: int = WARM_PLACES

    def __post_init__(self) -> None:
        super().__post_init__()
        self._logged: tuple[Any, ...] = ()

    def event(self, store: Store) -> Event | None:
        line = read_line(store, self.paths, self.txid, self.mapped, places=self.places)
        event = line.wake_event(op=self.op, waited=self.waited)
        first = line.earlier.get(line.current)
        if event is None and first is not None and (line.current, first.phase) != self._logged:
            self._logged = (line.current, first.phase)
            text = "Waiting for transaction %s (run %s), which is %s"
            self.log.info(text, line.current, first.run_id, first.phase.value)
        return event
