"""Wakes the coordinator when there is something to do: cheap, for it runs all the time."""

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
# The part of a core that asking one source may cost; but new data is noticed within the second one.
_SHARE = 0.005
_LONGEST_PAUSE = 5.0
# A source that cannot be made here is asked by the task.
_BLIND = 30.0
_DAMAGED = 30.0


@cache
def _thread(conn_id: str, paths: Paths) -> ThreadPoolExecutor:
    """Threads for all questions to the source of one topology: a source that hangs holds up no other topology."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{_ASKING}-{paths.topology}")


@dataclass(frozen=True)
class SourceAnswer:
    """The answer of a source.

    :param cost: seconds of processor time.
    :param error: in words; None if it answered.
    """

    ready: bool
    cost: float = 0.0
    error: str | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class CoordinatorTrigger(LedgerTrigger):
    """Fires once, when a transaction can be allocated, must be replayed, or its run must be started.

    :param dag_id: of the runs.
    :param source: class path and arguments; None: nothing is allocated.
    :param rules: fields of `Rules`.
    :param memory: what the coordinator knows so far.
    :param refresh: seconds after which it fires anyway.
    :param shows: whether its committer shows in the ledger while it holds the turn.
    :param limits: fields of `AlarmLimits`.
    :param messages: whether its tasks emit messages that ackers track.
    :param acker_store: the id of the connection of these ackers; None: they are beside the ledger.
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
    """The memory of one trigger. It uses the monotonic time of this process."""

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
        """The due actions, in words."""
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
        # A source that was asked just now has a new time to wait.
        after = replace(self.memory, health=planned.memory.health)
        self.memory = planned.memory if waiting else after
        return [*(type(action).__name__ for action in planned.actions), *found["alarms"]]

    def _look(self, store: Store) -> dict[str, Any] | None:
        """The ledger, and from where the source is to be asked; in a thread."""
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
                return found  # its last transaction begins again just now
            raise

    def _is_corrected(self, store: Store, look: LedgerSnapshot) -> bool:
        """Whether something is to be done about corrections; a source that cannot be made here is asked by the task."""
        if self._corrections is None:
            with suppress(Exception):
                self._corrections = CorrectionWatch(self._made())
        return self._corrections is not None and self._corrections.is_due(
            ReadOnlyLedger(store, self._paths), look
        )

    async def _states(self, look: LedgerSnapshot) -> Mapping[str, str | None]:
        """The states of the runs, asked for every few seconds while there are some."""
        now = time.monotonic()
        if not look.run_ids or now - self._asked_at < STATES_EVERY:
            return {}
        self._asked_at = now
        return await compat.run_states(self._trigger.dag_id, look.run_ids)

    # --- the source

    async def _ready(self, look: LedgerSnapshot, position: Any) -> bool:
        """Whether the source has rows, or can only be asked elsewhere."""
        poll = self._trigger.poll
        try:
            source = self._made()
        except Exception as error:  # noqa: BLE001 - whatever its constructor raises
            self._say(
                "source",
                f"The source cannot be asked in the triggerer ({error}); the task asks it now and then.",
            )
            self.memory = self.memory.answered(max(_BLIND, poll))
            return True
        if self._question is None:
            question = partial(_ask, source, TransactionAttempt(look.allocated + 1, 1), position)
            thread = _thread(self._trigger.zookeeper_conn_id, self._paths)
            self._question = asyncio.get_running_loop().run_in_executor(thread, question)
        answered, _ = await asyncio.wait([self._question], timeout=poll)
        if not answered:
            return False  # replays do not wait for it
        answer = self._question.result()
        self._question = None
        if answer.error is not None:
            self.memory = self.memory.failed(poll)
            self._say("source", f"{answer.error} It is asked again, later and later.")
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
    """Not what a source says whenever it is asked, such as of files that came late: here that is every second."""
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
