"""Wakes `begin` when the window of a topology has room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_tx.processing.begin import room
from airflow_tx.protocol.api import Store
from airflow_tx.triggers.base import Event, WaitTrigger


@dataclass(kw_only=True, eq=False, repr=False)
class ReadyTrigger(WaitTrigger):
    """Fires when another transaction may be allocated; several waiters may be woken for one place.

    :param key: of the run that waits: fires, too, once that one has a transaction.
    """

    watched: ClassVar[bool] = True

    max_pending: int
    key: str | None = None

    def event(self, store: Store) -> Event | None:
        return room(store, self.paths, max_pending=self.max_pending, key=self.key)
