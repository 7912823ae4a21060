"""The trigger that wakes the coordinator when an action is due. It runs all the time, so it must be cheap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_tx.base import compat
from airflow_tx.base.errors import TxError, UnreadableRecord
from airflow_tx.coordinator.corrections import CorrectionWatch
from airflow_tx.coordinator.monitor import Monitor
from airflow_tx.coordinator.plan import (
    CoordinatorMemory,
    LedgerSnapshot,
    Rules,
    SnapshotReader,
    plan,
)
from airflow_tx.coordinator.worker import STATES_EVERY
from airflow_tx.ledger import Paths, ReadOnlyLedger, Store, TransactionAttempt
from airflow_tx.outputs import AckerStore, shared_ackers
from airflow_tx.sources import Source, rebuild
from airflow_tx.transaction import AlarmLimits, AlarmTopology, has_batch
from airflow_tx.triggers import LedgerTrigger, until

_ASKING = "airflow_tx-source"
# The maximum share of a processor core for queries of one source. The pause between two queries is
# limited, too.
_SHARE = 0.005
_LONGEST_PAUSE = 5.0
# Seconds between two wake-ups of the task if the triggerer cannot create the source.
_BLIND = 30.0
# Maximum number of seconds to wait when the ledger is damaged.
_DAMAGED = 30.0


@cache
def _thread(conn_id: str, paths: Paths) -> ThreadPoolExecutor:
    """Return the thread that queries one topology's source. A source that hangs does not delay other topologies."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{_ASKING}-{paths.topology}")


@dataclass(frozen=True)
class SourceAnswer:
    """The response of a source.

    :param ready: whether the source has rows.
    :param cost: the CPU time of the query, in seconds.
    :param error: the message of the error, or None if there was no error.
    """

    ready: bool
    cost: float = 0.0
    error: str | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class CoordinatorTrigger(LedgerTrigger):
    """Fires once when the coordinator has an action to do, such as to allocate or to replay a transaction.

    :param dag_id: the DAG of the runs.
    :param source: the class path and the arguments of the source, or None if the coordinator allocates no transactions.
    :param rules: fields of `Rules`.
    :param memory: JSON of the `CoordinatorMemory`.
    :param refresh: seconds after which the trigger always fires.
    :param shows: whether the ledger shows that a committer holds the turn.
    :param limits: fields of `AlarmLimits`.
    :param messages: whether tasks of the topology emit messages that ackers track.
    :param acker_store: the connection id of these ackers, or None if they are next to the ledger.
    """

    dag_id: str
    source: list[Any] | None
    rules: dict[str, Any]
    memory: dict[str, Any]
    refresh: float
    shows: bool = True
    limits: dict[str, Any] = field(default_factory=dict)
    messages: bool = False
    acker_store: str | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watch = _Watch(self)
        began = time.monotonic()
        await asyncio.sleep(self.held)
        try:
            due = await watch.step()
            while not due and time.monotonic() - began < self.refresh:
                await asyncio.sleep(self.poll)
                due = await watch.step()
        finally:
            watch.close()
        event = {"due": due, "refresh": not due, "memory": watch.memory.to_json()}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]


def _ackers(trigger: CoordinatorTrigger, store: Store) -> AbstractContextManager[AckerStore]:
    return shared_ackers(trigger.acker_store, store, trigger.root)


class _Watch:
    """The work of one trigger: it reads ledger and source, and plans. It uses monotonic time."""

    def __init__(self, trigger: CoordinatorTrigger) -> None:
        self._trigger = trigger
        self._paths = trigger.paths
        self._rules = Rules(**trigger.rules)
        self.memory = CoordinatorMemory.from_json(trigger.memory)
        self._looker: SnapshotReader | None = None
        self._source: Source | None = None
        self._corrections: CorrectionWatch | None = None
        source = None if trigger.source is None else partial(rebuild, *trigger.source)
        topology = AlarmTopology(trigger.topology, trigger.dag_id, AlarmLimits(**trigger.limits))
        ackers = partial(_ackers, trigger) if trigger.messages else None
        self._monitor = Monitor(topology, self._paths, source, ackers=ackers)
        self._question: asyncio.Future[SourceAnswer] | None = None
        self._planned_at = time.monotonic()
        self._asked_at = float("-inf")
        self._said: dict[str, str] = {}

    async def step(self) -> list[str]:
        """Read ledger and source once, and plan. Return the names of the due actions and alarms."""
        trigger = self._trigger
        found = await until(
            self._look, trigger.zookeeper_conn_id, hold=0.0, poll=trigger.poll, watched=True
        )
        if "reason" in found:
            self._say("ledger", f"{found['reason']} The coordinator waits.", logging.ERROR)
            await asyncio.sleep(max(trigger.poll, min(_DAMAGED, 30 * trigger.poll)))
            return []
        look: LedgerSnapshot = found["look"]
        states = await self._states(look)
        now = time.monotonic()
        elapsed = now - self._planned_at
        self._planned_at = now
        waiting = self._question is None and self.memory.source_wait > elapsed
        ready = "position" in found and not waiting and await self._ready(look, found["position"])
        planned = plan(
            look,
            states,
            self.memory,
            elapsed=elapsed,
            rules=self._rules,
            ready=ready,
            corrected=found["corrected"],
        )
        # If the source was queried in this step, its response has set a new time to wait. Keep it.
        after = replace(self.memory, health=planned.memory.health)
        self.memory = planned.memory if waiting else after
        return [*(type(action).__name__ for action in planned.actions), *found["alarms"]]

    def _look(self, store: Store) -> dict[str, Any] | None:
        """Read the ledger, and the position from which the source is queried. This method runs in a thread."""
        if self._looker is None:
            self._looker = SnapshotReader(store, self._paths, shows=self._trigger.shows)
        self._looker.store = store
        look = self._looker.look()
        if look is None:
            return None
        alarms = [f"{change.kind.value} alarm" for change in self._monitor.observe(store, look)]
        found = {"look": look, "alarms": alarms, "corrected": self._is_corrected(store, look)}
        if self._trigger.source is None or not look.room(self._rules.max_pending):
            return found
        try:
            return {**found, "position": self._looker.next_position(look)}
        except UnreadableRecord:
            if look.opened:
                return found  # The last transaction is being replayed.
            raise

    def _is_corrected(self, store: Store, look: LedgerSnapshot) -> bool:
        """Return whether corrections need an action, or False if the triggerer cannot create the source."""
        if self._corrections is None:
            with suppress(Exception):
                self._corrections = CorrectionWatch(self._made())
        return self._corrections is not None and self._corrections.is_due(
            ReadOnlyLedger(store, self._paths), look
        )

    async def _states(self, look: LedgerSnapshot) -> Mapping[str, str | None]:
        """Return the states of the runs, which are read every few seconds.

        Between two readings, the result is empty.
        """
        now = time.monotonic()
        if not look.run_ids or now - self._asked_at < STATES_EVERY:
            return {}
        self._asked_at = now
        return await compat.run_states(self._trigger.dag_id, look.run_ids)

    # --- the source

    async def _ready(self, look: LedgerSnapshot, position: Any) -> bool:
        """Return whether the source has rows, or True if only the task can query it."""
        poll = self._trigger.poll
        try:
            source = self._made()
        except Exception as error:  # noqa: BLE001 - whatever its constructor raises
            self._say(
                "source",
                f"The triggerer cannot query the source ({error}). The task queries it at intervals instead.",
            )
            self.memory = self.memory.answered(max(_BLIND, poll))
            return True
        if self._question is None:
            question = partial(_ask, source, TransactionAttempt(look.allocated + 1, 1), position)
            thread = _thread(self._trigger.zookeeper_conn_id, self._paths)
            self._question = asyncio.get_running_loop().run_in_executor(thread, question)
        answered, _ = await asyncio.wait([self._question], timeout=poll)
        if not answered:
            return False  # Replays do not wait for the source's response.
        answer = self._question.result()
        self._question = None
        if answer.error is not None:
            self.memory = self.memory.failed(poll)
            self._say(
                "source",
                f"{answer.error} The coordinator queries the source again, at growing intervals.",
            )
            return False
        self._said.pop("source", None)
        self.memory = self.memory.answered(
            min(max(poll, answer.cost / _SHARE), max(poll, _LONGEST_PAUSE))
        )
        return answer.ready

    def _made(self) -> Source:
        if self._source is None:
            assert self._trigger.source is not None
            classpath, arguments = self._trigger.source
            self._source = rebuild(classpath, arguments)
        return self._source

    def close(self) -> None:
        if self._question is not None:
            self._question.cancel()

    def _say(self, about: str, line: str, level: int = logging.WARNING) -> None:
        if self._said.get(about) != line:
            self._said[about] = line
            self._trigger.log.log(level, "%s", line)


def _is_heard(record: logging.LogRecord) -> bool:
    """Drop the log lines of a source, which the trigger queries about once a second."""
    return not (record.threadName or "").startswith(_ASKING)


for _module in ("files.source", "partitions"):
    logging.getLogger(f"airflow_tx.sources.{_module}").addFilter(_is_heard)


def _ask(source: Source, attempt: TransactionAttempt, position: Any) -> SourceAnswer:
    before = time.thread_time()
    try:
        ready = has_batch(source, attempt, position)
    except TxError as error:
        return SourceAnswer(False, error=str(error))
    return SourceAnswer(ready, time.thread_time() - before)
