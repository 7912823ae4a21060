"""The triggers of `begin`, which wait for a free slot of `max_pending` or for the previous data interval."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from airflow_tx.base import compat
from airflow_tx.ledger import Paths, Store, TurnReading
from airflow_tx.transaction import QUEUED, gap, order_in, room
from airflow_tx.triggers.base import Event, WaitTrigger
from airflow_tx.triggers.run_slots import Ask, SlotWatch, run_of

# Seconds after which a run that waits for the order to begin wakes up to look for an earlier run
# again.
_PATIENCE = 30.0


@dataclass(kw_only=True, eq=False, repr=False)
class ReadyTrigger(WaitTrigger):
    """Fires when another transaction may be allocated. Several tasks may wake up, but only one can continue.

    :param max_pending: maximum number of open transactions.
    :param key: key of the waiting run. The trigger also fires once this run has a transaction.
    """

    watched: ClassVar[bool] = True

    max_pending: int
    key: str | None = None

    def event(self, store: Store) -> Event | None:
        return room(store, self.paths, max_pending=self.max_pending, key=self.key)


class OrderWatch(SlotWatch):
    """The `SlotWatch` of a run that is ahead. It logs a warning if no run has the next data interval.

    :param paths: paths of the ledger.
    :param run: result of `slots_of` for the waiting run.
    :param clock: monotonic clock.
    :param after: date that the order must reach before the run can begin.
    :param missing: start of the next interval, which is used until the order has begun.
    :param log: logger of the trigger.
    """

    def __init__(
        self,
        paths: Paths,
        run: dict[str, Any],
        clock: Callable[[], float] = time.monotonic,
        *,
        after: datetime,
        missing: datetime,
        log: Any,
    ) -> None:
        super().__init__(paths, run, clock)
        self._after = after
        self._missing = missing
        self._named: datetime | None = None
        self._log = log

    async def event(self, ask: Ask) -> dict[str, Any] | None:
        event = await super().event(ask)
        return None if event is None else {**event, "missing": self._missing.isoformat()}

    def _read_turn(self, store: Store) -> TurnReading | None:
        turn = self._ledger(store).turn(with_topology=True)
        if turn.record is None:
            self._missing = order_in(store, self._paths) or self._missing
        return None if run_of(turn) == self._run["run_id"] else turn

    async def _in_the_way(self, turn: TurnReading) -> bool:
        if turn.record is not None:
            return await super()._in_the_way(turn)
        dag_id = self._run["dag_id"]
        date = self._missing
        if await compat.runs_on_async(dag_id, date, ["running"]):
            return False
        if not await compat.runs_on_async(dag_id, date, [QUEUED]):
            if self._named != date and date < self._after:
                self._named = date
                self._log.warning("%s", gap(dag_id, date, self._after))
            return False
        return await self._lacks_slot(turn, is_queued=True)


@dataclass(kw_only=True, eq=False, repr=False)
class OrderTrigger(ReadyTrigger):
    """Fires when the order of data intervals has reached a date and `max_pending` has a free slot.

    :param after: date that the order must reach.
    :param missing: start of the interval that the run was waiting for when it was deferred.
    :param patience: seconds after which the trigger fires if the order has not begun.
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
        event = super().event(store)
        if event is None:
            return None
        end = order_in(store, self.paths)
        if end is None:
            return event if time.monotonic() - self._began >= self.patience else None
        return event if end >= datetime.fromisoformat(self.after) else None
