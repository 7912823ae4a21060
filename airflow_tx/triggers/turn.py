"""Wakes a committer when its turn is near, or when something happened to its own transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tx.commit.turn import read_line
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.triggers.base import POLL, until
from airflow_tx.triggers.run_slots import SlotWatch


class TurnTrigger(BaseTrigger):
    """Fires once: near the turn with all earlier transactions on their way, when the one whose turn it is
    is to be skipped, when the own record changed or vanished, or when the run is to yield.

    :param op: that of the own record when the task deferred itself.
    :param mapped: ids of the tasks that have map indexes.
    :param hold: seconds that it waits at least.
    :param poll: seconds between two looks.
    :param waited: the line in which its task has waited in its worker for as long as it may: it is not woken for it.
    :param slots: what `operators.yielding.slots_of` says of the run that waits; None: it never yields.
    """

    def __init__(
        self,
        zookeeper_conn_id: str,
        root: str,
        topology: str,
        txid: int,
        op: str | None,
        mapped: list[str],
        hold: float,
        poll: float = POLL,
        slots: dict[str, Any] | None = None,
        waited: list[list[Any]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.zookeeper_conn_id = zookeeper_conn_id
        self.root = root
        self.topology = topology
        self.txid = txid
        self.op = op
        self.mapped = mapped
        self.hold = hold
        self.poll = poll
        self.slots = slots
        self.waited = waited or []
        self._told: tuple[Any, ...] = ()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments: plain, without passwords."""
        return (
            "airflow_tx.triggers.turn.TurnTrigger",
            {
                "zookeeper_conn_id": self.zookeeper_conn_id,
                "root": self.root,
                "topology": self.topology,
                "txid": self.txid,
                "op": self.op,
                "mapped": self.mapped,
                "hold": self.hold,
                "poll": self.poll,
                "slots": self.slots,
                "waited": self.waited,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then yield one event."""
        slots = None if self.slots is None else SlotWatch(Paths(self.root, self.topology), self.slots)
        event = await until(self._look, self.zookeeper_conn_id, hold=self.hold, poll=self.poll, slots=slots)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    def _look(self, store: Store) -> dict[str, Any] | None:
        line = read_line(store, Paths(self.root, self.topology), self.txid, self.mapped)
        event = line.wake_event(op=self.op, waited=self.waited)
        if event is not None:
            return event
        first = line.earlier.get(line.current)
        told = (line.current, first and first.phase)
        if first is not None and told != self._told:
            self._told = told
            self.log.info(
                "Waiting for transaction %s (run %s), which is %s", first.txid, first.run_id, first.phase.value
            )
        return None
