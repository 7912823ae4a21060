"""The waits of begin and of a committer: the turn, room in the window, the order of intervals, and acks of messages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, ClassVar

from airflow_tx.ledger import ReadOnlyLedger, Store
from airflow_tx.outputs import Origin, shared_ackers
from airflow_tx.transaction import (
    WARM_PLACES,
    is_processing,
    messages_of,
    order_in,
    read_line,
    room,
)
from airflow_tx.triggers.base import Event, OrderWatch, SlotWatch, WaitTrigger

# --- turn ---------------------------------------------------------------------------------------------------------


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
        line = read_line(
            ReadOnlyLedger(store, self.paths), self.txid, self.mapped, places=self.places
        )
        event = line.wake_event(op=self.op, waited=self.waited)
        first = line.earlier.get(line.current)
        if event is None and first is not None and (line.current, first.phase) != self._logged:
            self._logged = (line.current, first.phase)
            text = "Waiting for transaction %s (run %s), which is %s"
            self.log.info(text, line.current, first.run_id, first.phase.value)
        return event


# --- ready --------------------------------------------------------------------------------------------------------
# Wakes `begin` when the window of a topology has room.


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


# --- order --------------------------------------------------------------------------------------------------------
# Wakes `begin` when txids have come to the data interval of its run.


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


# --- messages -----------------------------------------------------------------------------------------------------
# Wakes a committer when every message of its attempt is acked, when they cannot be, or when its time is up.


@dataclass(kw_only=True, eq=False, repr=False)
class MessagesTrigger(WaitTrigger):
    """Fires when there is nothing to wait for any more.

    :param acker_store: the id of the connection of the ackers; None: they are beside the ledger.
    :param timeout: seconds that messages have from begin on.
    :param incarnation: of the topology.
    """

    txid: int
    attempt: int
    acker_store: str | None
    timeout: float
    incarnation: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._logged = ""

    def event(self, store: Store) -> Event | None:
        record = ReadOnlyLedger(store, self.paths).status(self.txid)
        if not is_processing(record, self.attempt):
            return {"reason": "its record changed"}
        origin = Origin(self.topology, self.txid, self.attempt, self.incarnation)
        now = datetime.now(timezone.utc)
        found = messages_of(
            lambda: shared_ackers(self.acker_store, store, self.root),
            origin,
            record,
            timeout=self.timeout,
            now=now,
        )
        if found.waiting not in ("", self._logged):
            self._logged = found.waiting
            self.log.info("Transaction %s.%s waits: %s", self.txid, self.attempt, found.waiting)
        return None if found.waiting else {"reason": found.problem or "its messages are acked"}
