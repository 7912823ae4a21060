"""The triggers' common ground: fields that are the arguments, a ZooKeeper client and two threads for each connection.

Airflow fails a deferred task that is woken before the scheduler has seen the end of its first leg, so a trigger holds
it for a while in any case.
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
"""The event of a trigger for its task: plain JSON."""

# Between two readings; each is a few reads on a client that all triggers share.
POLL = 1.0

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class LedgerTrigger(BaseTrigger):
    """A trigger that reads the ledger of a topology; its fields are its arguments, plain and without passwords.

    :param hold: seconds from the deferral that it waits at least.
    :param poll: seconds between two readings.
    :param since: when the task deferred itself, in seconds since 1970. A triggerer takes a while to start a trigger,
        and starts it again after a restart.
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
        """Return the seconds that it still waits; the clock of the worker may be wrong."""
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
    """Fires once, when a waiting task can continue or when its run is to yield.

    :param slots: what `slots_of` says of the run that waits; None: it never yields.
    """

    slots: dict[str, Any] | None = None
    watched: ClassVar[bool] = False
    """Whether `event` asks nothing but reads, see `until`."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        times = {"hold": self.held, "poll": self.poll}
        event = await until(
            self.event, self.zookeeper_conn_id, **times, slots=self.watch(), watched=self.watched
        )
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    def watch(self) -> SlotWatch | None:
        """Make the watch that sees whether the run blocks another run; None: it never yields."""
        # A DAG file is parsed without the steps.
        from airflow_tx.triggers.run_slots import SlotWatch

        return None if self.slots is None else SlotWatch(self.paths, self.slots)

    @abstractmethod
    def event(self, store: Store) -> Event | None:
        """Read the ledger, in a thread: the event that wakes the task; None: none yet."""


@cache
def _threads(conn_id: str) -> ThreadPoolExecutor:
    """For all readings of the ledgers of one connection, so that an ensemble that is away holds up only its own.

    The default executor of the event loop serves every trigger of Airflow.
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
    """Call `read` in a thread, again and again, until it gives an event; not before `hold` seconds have passed.

    A ledger that cannot be reached is no event: the task would only fail. A damaged or deleted ledger does not mend
    itself: the task is woken, and raises the error.

    :param slots: asked besides, whether the run is to yield.
    :param watched: whether `read` may be given what was read before and has not changed, as far as ZooKeeper has said:
        while nothing happens, the many who wait send no requests. It must not run steps.
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
        return _ask(
            question, conn_id
        )  # what is remembered may be older than what was just read beside it


def _ask(question: Callable[[Store], Any], conn_id: str) -> Any:
    from airflow_tx.hooks import shared_store

    return question(shared_store(conn_id))
