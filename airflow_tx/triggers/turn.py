"""The triggers of a committer, which wait for its turn or for the acks of its messages."""

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
    """The base class of a committer's triggers.

    :param txid: the transaction of the committer.
    """

    txid: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._logged: Any = ""

    def log_once(self, waits: Any, text: str, *values: Any) -> None:
        """Log a line unless the previous line was about the same wait.

        :param waits: value that identifies the wait.
        """
        if waits != self._logged:
            self._logged = waits
            self.log.info(text, *values)


# --- turn ---------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class TurnTrigger(TransactionTrigger):
    """Fires when the turn of a transaction is near and all earlier transactions make progress.

    The trigger also fires if the current transaction must be skipped, or if the record of the waiting transaction has
    changed or is deleted.

    :param op: the field `op` in the transaction's record at the time of the deferral.
    :param mapped: ids of the mapped tasks.
    :param waited: earlier transactions that the task has already waited for in a worker, up to the maximum time. The
        trigger does not fire again for them.
    :param places: number of transactions closest to the turn whose committers wait in a worker instead of the
        triggerer.
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
# Wakes a committer when all messages of its attempt are acked, when a message has failed, or after
# the time-out.


@dataclass(kw_only=True, eq=False, repr=False)
class MessagesTrigger(TransactionTrigger):
    """Fires when all messages of an attempt are acked, or when the attempt cannot wait any longer.

    :param attempt: number of the attempt.
    :param acker_store: connection of the ackers; None if the ackers are in the ledger's ZooKeeper.
    :param timeout: seconds after the attempt's start within which the messages must be acked.
    :param incarnation: incarnation of the topology.
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
