"""Wakes `begin` when txids have come to the data interval of its run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from airflow_tx.processing.begin import room
from airflow_tx.processing.order import order_in
from airflow_tx.protocol.api import Store
from airflow_tx.triggers.base import Event
from airflow_tx.triggers.ready import ReadyTrigger
from airflow_tx.triggers.run_slots import OrderWatch, SlotWatch

# Seconds after which a run asks again whether an earlier one is on its way, as long as the order has not begun.
_PATIENCE = 30.0


@dataclass(kw_only=True, eq=False, repr=False)
class OrderTrigger(ReadyTrigger):
    """Fires when the order of intervals has come to a date and the window has room.

    :param after: that date.
    :param missing: where the interval begins that the run waited for when it was deferred.
    """

    after: str
    missing: str
    patience: float = _PATIENCE

    def __post_init__(self) -> None:
        super().__post_init__()
        self._began = time.monotonic()

    def watch(self) -> SlotWatch | None:
        if self.slots is None:
            return None
        after = datetime.fromisoformat(self.after)
        missing = datetime.fromisoformat(self.missing)
        return OrderWatch(self.paths, self.slots, after=after, missing=missing, log=self.log)

    def event(self, store: Store) -> Event | None:
        event = room(store, self.paths, max_pending=self.max_pending, key=self.key)
        if event is None:
            return None
        end = order_in(store, self.paths)
        if end is None:
            return event if time.monotonic() - self._began >= self.patience else None
        # A run that has a transaction is not ahead any more.
        return event if end >= datetime.fromisoformat(self.after) else None
