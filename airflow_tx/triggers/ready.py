"""Wakes `begin` when the window of a topology has room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tx.processing.begin import room
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.triggers.base import POLL, until
from airflow_tx.triggers.run_slots import SlotWatch


class ReadyTrigger(BaseTrigger):
    """Fires once when another transaction may be allocated; several waiters may be woken for one place.

    :param hold: seconds that it waits at least.
    :param poll: seconds between two looks.
    :param slots: what `operators.yielding.slots_of` says of the run that waits; None: it never yields.
    :param key: of the run that waits: fires, too, once that one has a transaction.
    """

    def __init__(
        self,
        zookeeper_conn_id: str,
        root: str,
        topology: str,
        max_pending: int,
        hold: float,
        poll: float = POLL,
        slots: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.zookeeper_conn_id = zookeeper_conn_id
        self.root = root
        self.topology = topology
        self.max_pending = max_pending
        self.hold = hold
        self.poll = poll
        self.slots = slots
        self.key = key

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments: plain, without passwords."""
        return (
            "airflow_tx.triggers.ready.ReadyTrigger",
            {
                "zookeeper_conn_id": self.zookeeper_conn_id,
                "root": self.root,
                "topology": self.topology,
                "max_pending": self.max_pending,
                "hold": self.hold,
                "poll": self.poll,
                "slots": self.slots,
                "key": self.key,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then yield one event."""
        slots = None if self.slots is None else SlotWatch(Paths(self.root, self.topology), self.slots)
        event = await until(self._look, self.zookeeper_conn_id, hold=self.hold, poll=self.poll, slots=slots)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    def _look(self, store: Store) -> dict[str, int] | None:
        return room(store, Paths(self.root, self.topology), max_pending=self.max_pending, key=self.key)
