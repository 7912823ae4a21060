"""Sees that a waiting run is in the way of the run whose turn it is, and bids to yield. Source: protocol.md §6."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from airflow_tx import compat
from airflow_tx.commit.run_slots import QUEUED
from airflow_tx.processing.order import gap, order_in
from airflow_tx.protocol import run_slots
from airflow_tx.protocol.answers import Bidding
from airflow_tx.protocol.api import Store, SystemClock, SystemIds
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import TurnReading
from airflow_tx.protocol.run_slots import Waiter

Ask = Callable[[Callable[[Store], Any]], Awaitable[Any]]
"""Lets a function read the ledger in a thread."""

# Seconds between two questions to Airflow.
_PACE = 3.0
# The part of the grace for which a bid has to lead.
_SETTLE = 5
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
        seen = (turn.current, _run_of(turn), turn.topology.yields)
        if seen != self._turn:
            self._turn = seen
            self._since = now
            self._leads_since = None
        if now - self._since < self._run["grace"]:
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
        return None if _run_of(turn) in ("", self._run["run_id"]) else turn

    async def _in_the_way(self, turn: TurnReading) -> bool:
        dag_id = self._run["dag_id"]
        limit = self._run["limit"]
        run_id = _run_of(turn)
        states = await compat.run_states(dag_id, [run_id])
        if states[run_id] != QUEUED:
            return False
        return limit is None or await compat.running_runs_async(dag_id) >= limit

    def _bid(self, store: Store, blocking: int) -> Any:
        run = self._run
        waiter = Waiter(run["run_id"], run["txid"], run["task_try"], blocking)
        # A leader that has not yielded after so long is dead.
        overdue = SystemClock().now() - timedelta(seconds=2 * run["grace"] + _LEAST)
        return self._ledger(store).run(
            run_slots.bid, waiter, overdue=overdue.isoformat(timespec="milliseconds")
        )

    def _ledger(self, store: Store) -> Ledger:
        return Ledger(store, self._paths, clock=SystemClock(), ids=SystemIds())


class OrderWatch(SlotWatch):
    """Watches for a run whose data interval is ahead, and names the interval that it waits for if no run has it.

    :param after: the date to which the order must have come.
    :param missing: of the interval that is next, as long as the order has not begun.
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
        return None if _run_of(turn) == self._run["run_id"] else turn

    async def _in_the_way(self, turn: TurnReading) -> bool:
        if turn.record is not None:
            return await super()._in_the_way(turn)
        dag_id = self._run["dag_id"]
        limit = self._run["limit"]
        date = self._missing
        if await compat.runs_on_async(dag_id, date, ["running"]):
            return False
        if not await compat.runs_on_async(dag_id, date, [QUEUED]):
            if self._named != date and date < self._after:
                self._named = date
                self._log.warning("%s", gap(dag_id, date, self._after))
            return False
        return limit is None or await compat.running_runs_async(dag_id) >= limit


def _run_of(turn: TurnReading) -> str:
    """Name the run whose turn it is; "": none has begun."""
    return "" if turn.record is None else turn.record.run_id
