"""The triggers' common ground: fields that are the arguments, a ZooKeeper client and two threads for each connection.

Airflow fails a deferred task that is woken before the scheduler has seen the end of its first leg, so a trigger holds
it for a while in any case.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache, partial
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tx.base import compat
from airflow_tx.base.described import stored_name
from airflow_tx.base.errors import StoreError, UnreadableRecord
from airflow_tx.ledger import (
    Bidding,
    Ledger,
    Paths,
    Store,
    TurnReading,
    Waiter,
)
from airflow_tx.transaction import QUEUED

# --- base ---------------------------------------------------------------------------------------------------------


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


# --- run slots ----------------------------------------------------------------------------------------------------
# Sees that a waiting run is in the way of the run whose turn it is, and bids to yield. Source: protocol.md §6.


Ask = Callable[[Callable[[Store], Any]], Awaitable[Any]]
"""Lets a function read the ledger in a thread."""

# Seconds between two questions to Airflow.
_PACE = 3.0
# The part of the grace for which a bid has to lead.
_SETTLE = 5
# How many times as long a run waits while a run slot seems to be free.
_DOUBT = 10
# Seconds that a leader has at least: its task has to come back from its deferral first.
_LEAST = 30.0


class SlotWatch:
    """Watches for one waiting run. It uses the monotonic time of this process.

    :param run: what `slots_of` said of it.
    """

    def __init__(
        self, paths: Paths, run: dict[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paths = paths
        self._run = run
        self._clock = clock
        self._pace = min(_PACE, run["grace"] / _SETTLE)
        self._asked_at = float("-inf")
        # Whose turn it is, and how many have yielded so far: if either changes, the grace starts again.
        self._turn: tuple[int, str, int] | None = None
        self._since = 0.0
        self._leads_since: float | None = None
        self._most: int = run.get("most", 0)
        """The most runs that were running at a time."""
        self._patience = 1

    async def event(self, ask: Ask) -> dict[str, Any] | None:
        """Give the event that ends the wait, once this run is to yield."""
        now = self._clock()
        if now - self._asked_at < self._pace:
            return None
        self._asked_at = now
        turn = await ask(self._read_turn)
        if turn is None or not await self._in_the_way(turn):
            self._turn = None
            return None
        seen = (turn.current, run_of(turn), turn.topology.yields)
        if seen != self._turn:
            self._turn = seen
            self._since = now
            self._leads_since = None
        if now - self._since < self._run["grace"] * self._patience:
            return None
        answer = await ask(lambda store: self._bid(store, turn.current))
        if not isinstance(answer, Bidding) or answer.leader != self._run["run_id"]:
            self._leads_since = None
            return None
        if self._leads_since is None:
            self._leads_since = now
        if now - self._leads_since < self._run["grace"] / _SETTLE:
            return None
        self._turn = None
        return {"yield": turn.current}

    def _read_turn(self, store: Store) -> TurnReading | None:
        turn = self._ledger(store).turn(with_topology=True)
        return None if run_of(turn) in ("", self._run["run_id"]) else turn

    async def _in_the_way(self, turn: TurnReading) -> bool:
        dag_id = self._run["dag_id"]
        run_id = run_of(turn)
        states = await compat.run_states(dag_id, [run_id])
        return await self._lacks_slot(turn, is_queued=states[run_id] == QUEUED)

    async def _lacks_slot(self, turn: TurnReading, *, is_queued: bool) -> bool:
        """Whether the run whose turn it is waits for a run slot, as far as Airflow tells.

        The limit of a backfill cannot be asked. If fewer runs are running than there were before, a slot seems to be
        free, and Airflow does not start the run for another reason: the backfill is paused, or was cancelled. Then a
        run yields late, and no second run does.
        """
        limit: int | None = self._run["limit"]
        if not is_queued and limit is not None:
            return False
        running = await compat.running_runs_async(self._run["dag_id"])
        if limit is not None:
            return running >= limit
        self._most = max(self._most, running)
        self._patience = 1 if running == self._most else _DOUBT
        yielded_to = {entry["blocking"] for entry in turn.topology.yielded.values()}
        return is_queued and (self._patience == 1 or turn.current not in yielded_to)

    def _bid(self, store: Store, blocking: int) -> Any:
        run = self._run
        waiter = Waiter(run["run_id"], run["txid"], run["task_try"], blocking)
        # A leader that has not yielded after so long is dead.
        ledger = self._ledger(store)
        overdue = ledger.clock.now() - timedelta(seconds=2 * run["grace"] + _LEAST)
        return ledger.bid(waiter, overdue=overdue.isoformat(timespec="milliseconds"))

    def _ledger(self, store: Store) -> Ledger:
        return Ledger(store, self._paths)


def run_of(turn: TurnReading) -> str:
    """Name the run whose turn it is; "": none has begun."""
    return "" if turn.record is None else turn.record.run_id
