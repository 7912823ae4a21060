"""Detect that a waiting run occupies the run slot that the current transaction needs, and offer the slot.

Source: protocol.md §6.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from airflow_tx.base import compat
from airflow_tx.ledger import Bidding, Ledger, Paths, Store, TurnReading, Waiter
from airflow_tx.transaction import QUEUED

Ask = Callable[[Callable[[Store], Any]], Awaitable[Any]]
"""A function that runs a read of the ledger in a thread."""

# Seconds between two queries of Airflow's database.
_PACE = 3.0
# A run yields once its offer has led for the grace time divided by this number.
_SETTLE = 5
# Number of grace times that a run waits before it makes an offer if a run slot seems to be free.
_DOUBT = 10
# Seconds, in addition to two grace times, within which a leader must yield. Its deferred task must
# first resume.
_LEAST = 30.0


class SlotWatch:
    """Detects when a waiting run should yield its run slot.

    :param paths: paths of the ledger.
    :param run: result of `slots_of` for the waiting run.
    :param clock: monotonic clock of this process.
    """

    def __init__(
        self, paths: Paths, run: dict[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paths = paths
        self._run = run
        self._clock = clock
        self._pace = min(_PACE, run["grace"] / _SETTLE)
        self._asked_at = float("-inf")
        # The current txid, its run, and the total number of yields. If one of them changes, the
        # grace time starts again.
        self._turn: tuple[int, str, int] | None = None
        self._since = 0.0
        self._leads_since: float | None = None
        self._most: int = run.get("most", 0)
        """The highest number of runs that were running at the same time."""
        self._patience = 1

    async def event(self, ask: Ask) -> dict[str, Any] | None:
        """Return the event that ends the wait if this run should yield. Return None otherwise."""
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
        """Return whether the current transaction's run waits for a run slot, as far as Airflow reveals this.

        Airflow does not reveal a backfill's limit. If fewer runs are running than before, a slot seems to be free.
        Airflow may then not start the run for another reason, such as a paused backfill. In this case only one run
        yields, after a longer time.
        """
        limit: int | None = self._run["limit"]
        if not is_queued and limit is not None:
            return False
        running = await compat.running_runs_async(self._run["dag_id"])
        if limit is not None:
            return running >= limit
        self._most = max(self._most, running)
        self._patience = 1 if running == self._most else _DOUBT
        yielded_to = {entry.blocking for entry in turn.topology.yielded.values()}
        return is_queued and (self._patience == 1 or turn.current not in yielded_to)

    def _bid(self, store: Store, blocking: int) -> Any:
        run = self._run
        waiter = Waiter(run["run_id"], run["txid"], run["task_try"], blocking)
        # A leader that has not yielded by this time is assumed to have died.
        ledger = self._ledger(store)
        overdue = ledger.clock.now() - timedelta(seconds=2 * run["grace"] + _LEAST)
        return ledger.bid(waiter, overdue=overdue.isoformat(timespec="milliseconds"))

    def _ledger(self, store: Store) -> Ledger:
        return Ledger(store, self._paths)


def run_of(turn: TurnReading) -> str:
    """Return the run_id of the current transaction. Return "" if no run has begun it."""
    return "" if turn.record is None else turn.record.run_id
