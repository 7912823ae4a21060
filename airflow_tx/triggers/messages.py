"""Wakes a committer when every message of its attempt is acked, when they cannot be, or when its time is up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_tx.acks.location import shared_ackers
from airflow_tx.acks.reference import Origin
from airflow_tx.commit.messages import is_processing, messages_of
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import TransactionRecord
from airflow_tx.triggers.base import Event, WaitTrigger


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
        record = Reader(store).peek_if_any(TransactionRecord, self.paths.transaction(self.txid))
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
