"""The waits of a committer: its turn, and the acks of the messages of its attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, ClassVar

from airflow_tx.ledger import ReadOnlyLedger, Store
from airflow_tx.outputs import Origin, shared_ackers
from airflow_tx.transaction import (
    WARM_PLACES,
    is_processing,
    messages_of,
    read_line,
)
from airflow_tx.triggers.base import Event, WaitTrigger

# --- transaction --------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class TransactionTrigger(WaitTrigger):
    """Waits for the transaction of a committer, and logs what that waits for."""

    txid: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._logged: Any = ""

    def log_once(self, waits: Any, text: str, *values: Any) -> None:
        """Write a line of the log, unless the last line was of the same wait."""
        if waits != self._logged:
            self._logged = waits
            self.log.info(text, *values)


# --- turn ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class TurnTrigger(TransactionTrigger):
    """Fires near the turn with all earlier transactions on their way, when the one whose turn it is is to be skipped,
    or when the own record changed or vanished.

    :param op: the `op` of the own record when the task deferred itself.
    :param mapped: ids of the tasks that have map indexes.
    :param waited: the line in which its task has waited in its worker for as long as it may: it is not woken for it.
    :param places: how many in line wait in their worker.
    """

    watched: ClassVar[bool] = True

    op: str | None
    mapped: list[str]
    waited: list[list[Any]] = field(default_factory=list)
    places: int = WARM_PLACES

    def event(self, store: Store) -> Event | None:
        line = read_line(
            ReadOnlyLedger(store, self.paths), self.txid, self.mapped, places=self.places
        )
        event = line.wake_event(op=self.op, waited=self.waited)
        first = line.earlier.get(line.current)
        if event is None and first is not None:
            text = "Waiting for transaction %s (run %s), which is %s"
            waits = line.current, first.phase
            self.log_once(waits, text, line.current, first.run_id, first.phase.value)
        return event


# --- messages -----------------------------------------------------------------------------------------------------
# Wakes a committer when every message of its attempt is acked, when they cannot be, or when its time is up.


@dataclass(kw_only=True, eq=False, repr=False)
class MessagesTrigger(TransactionTrigger):
    """Fires when there is nothing to wait for any more.

    :param acker_store: the id of the connection of the ackers; None: they are beside the ledger.
    :param timeout: seconds that messages have from begin on.
    :param incarnation: of the topology.
    """

    attempt: int
    acker_store: str | None
    timeout: float
    incarnation: str = ""

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
        if found.waiting:
            text = "Transaction %s.%s waits: %s"
            self.log_once(found.waiting, text, self.txid, self.attempt, found.waiting)
        return None if found.waiting else {"reason": found.problem or "its messages are acked"}
