"""The base classes of the triggers. All triggers of a connection share one ZooKeeper client and two threads.

If a trigger fires before the scheduler has noticed the deferral, Airflow fails the task. So each trigger waits for at
least `hold` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tx.base.described import stored_name
from airflow_tx.base.errors import StoreError, UnreadableRecord
from airflow_tx.ledger import Paths, Store

if TYPE_CHECKING:
    from airflow_tx.triggers.run_slots import SlotWatch

Event = dict[str, Any]
"""The event that a trigger sends to its task, as plain JSON."""

# Seconds between two reads. A read sends a few requests over a client that all triggers share.
POLL = 1.0

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class LedgerTrigger(BaseTrigger):
    """The base class of triggers that read the ledger of a topology.

    Its fields are its arguments, which Airflow stores. They never contain a password.

    :param zookeeper_conn_id: ZooKeeper connection of the ledger.
    :param root: root path of the ledgers.
    :param topology: name of the topology.
    :param hold: minimum seconds to wait after the deferral.
    :param poll: seconds between two reads.
    :param since: time of the deferral, in seconds since 1970. A triggerer may start the trigger later, and starts it
        again after its own restart.
    """

    zookeeper_conn_id: str
    root: str
    topology: str
    hold: float
    poll: float = POLL
    since: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def held(self) -> float:
        """The remaining seconds of `hold`. They never exceed `hold`, even if the worker's clock is wrong."""
        return min(max(self.since + self.hold - time.time(), 0.0), self.hold)

    @property
    def paths(self) -> Paths:
        return Paths(self.root, self.topology)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return stored_name(type(self)), {
            each.name: getattr(self, each.name) for each in fields(self)
        }


@dataclass(kw_only=True, eq=False, repr=False)
class WaitTrigger(LedgerTrigger):
    """A trigger that fires once: when the task can continue, or when its run should yield its run slot.

    :param slots: result of `slots_of` for the waiting run; None if the run never yields.
    """

    slots: dict[str, Any] | None = None
    watched: ClassVar[bool] = False
    """Whether `event` only reads, so that remembered records may be used; see `until`."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        times = {"hold": self.held, "poll": self.poll}
        event = await until(
            self.event, self.zookeeper_conn_id, **times, slots=self.watch(), watched=self.watched
        )
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    def watch(self) -> SlotWatch | None:
        """Return the watch that detects when the run should yield. Return None if the run never yields."""
        # Import here, since parsing a DAG file does not need the ledger's steps.
        from airflow_tx.triggers.run_slots import SlotWatch

        return None if self.slots is None else SlotWatch(self.paths, self.slots)

    @abstractmethod
    def event(self, store: Store) -> Event | None:
        """Read the ledger in a thread. Return the event that wakes the task, or None to keep waiting."""


@cache
def _threads(conn_id: str) -> ThreadPoolExecutor:
    """Return the threads that read the ledgers of one connection.

    Each connection has its own threads, so an unreachable ZooKeeper ensemble delays only its own triggers. In the event
    loop's default executor, it would delay every Airflow trigger.
    """
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix=f"airflow_tx-trigger-{conn_id}")


async def until(
    read: Callable[[Store], Event | None],
    conn_id: str,
    *,
    hold: float,
    poll: float = POLL,
    slots: SlotWatch | None = None,
    watched: bool = False,
) -> Event:
    """After `hold` seconds, call `read` in a thread repeatedly until it returns an event. Return this event.

    While the ledger cannot be reached, the function waits, since the task could only fail. If the ledger is damaged or
    deleted, it returns an event with the reason, so that the task raises the error.

    :param read: function that reads the ledger, and returns an event or None.
    :param conn_id: ZooKeeper connection of the ledger.
    :param hold: seconds to wait before the first call.
    :param poll: seconds between two calls.
    :param slots: the watch that returns an event if the run should yield; None if it never yields.
    :param watched: whether `read` may use remembered records, which ZooKeeper's watches keep up to date. If so, no
        request is sent while nothing changes, and `read` must not run steps.
    """
    loop = asyncio.get_running_loop()
    threads = _threads(conn_id)

    async def ask(question: Callable[[Store], Any]) -> Any:
        return await loop.run_in_executor(threads, partial(_ask, question, conn_id))

    await asyncio.sleep(hold)
    warned = False
    while True:
        try:
            reading = partial(_ask_watched if watched else _ask, read, conn_id)
            event: Event | None = await loop.run_in_executor(threads, reading)
            if event is None and slots is not None:
                event = await slots.event(ask)
            warned = False
        except UnreadableRecord as error:
            event = {"reason": str(error)}
        except StoreError as error:
            event = None
            if not warned:
                log.warning("%s This task still waits.", error)
            warned = True
        if event is not None:
            return event
        await asyncio.sleep(poll)


def _ask_watched(question: Callable[[Store], Any], conn_id: str) -> Any:
    from airflow_tx.hooks import shared_watched_store

    try:
        return question(shared_watched_store(conn_id))
    except UnreadableRecord:
        # Read again without remembered records, some of which may be older than others.
        return _ask(question, conn_id)


def _ask(question: Callable[[Store], Any], conn_id: str) -> Any:
    from airflow_tx.hooks import shared_store

    return question(shared_store(conn_id))
