"""The part of the coordinator that runs in a worker. It makes a plan and executes it. Source: protocol.md §6.

The worker can be killed at any line. The ledger records all started work, so the next worker continues it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.compat import is_live, text
from airflow_tx.base.errors import ConfigError, Refused, SourceError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.coordinator.corrections import CorrectionWatch
from airflow_tx.coordinator.lane import AnyLane, NoLane
from airflow_tx.coordinator.monitor import CoordinatorAlarms
from airflow_tx.coordinator.plan import (
    Action,
    Allocate,
    CameBack,
    CoordinatorMemory,
    Examine,
    Follow,
    LedgerSnapshot,
    Plan,
    Replay,
    RestartDead,
    Restate,
    Return,
    Rules,
    SnapshotReader,
    Start,
    Unblock,
    plan,
)
from airflow_tx.ledger import (
    AlreadyCommitted,
    Begun,
    Blocked,
    GivenUp,
    NoData,
    ReadOnlyLedger,
    ReplayNoted,
    ReplayRequest,
    Store,
    TransactionAttempt,
)
from airflow_tx.transaction import TaskRuns, TransactionSpec, allocate, follow

# The seconds that the coordinator defers while the DAG of the topology, or its own, is paused.
PAUSED = 60.0
# Seconds between two queries of the states of runs.
STATES_EVERY = 3.0
# Seconds between two checks for a pause. While a lane works without failures, also the seconds
# between two readings of the ledger.
LOOK_EVERY = 2.0


@dataclass(frozen=True)
class Pace:
    """The limits and pauses of the coordinator of one topology.

    :param rules: the limits of the topology.
    :param poll: seconds between two readings.
    :param linger: seconds that an idle coordinator waits before it defers.
    :param hold: the minimum number of seconds before its trigger reads for the first time.
    """

    rules: Rules
    poll: float
    linger: float
    hold: float


def shows(spec: TransactionSpec) -> bool:
    """Return whether the ledger shows that a committer holds the turn. It does not show this for a commit phase."""
    return spec.phase is None


class Coordination:
    """The work of the coordinator in its worker, until it has been idle for some time.

    :param spec: the `Transaction` block of the topology.
    :param pace: the limits and pauses.
    :param store: the connected store of the ledger.
    :param ti: the task instance of the coordinator.
    :param log: the log of the task.
    :param memory: the memory of the coordinator so far.
    :param clock: a function that returns monotonic seconds.
    :param sleep: a function that waits for a number of seconds. The default also returns when the turn moves.
    :param lane: the lane that works on new transactions while it is open. If it is None, each transaction becomes a
        run.
    :param alarms: the object that raises the alerts after each reading, or None for no alerts.
    """

    def __init__(
        self,
        spec: TransactionSpec,
        pace: Pace,
        store: Store,
        ti: Any,
        log: Any,
        *,
        memory: CoordinatorMemory,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        lane: AnyLane | None = None,
        alarms: CoordinatorAlarms | None = None,
    ) -> None:
        self.spec = spec
        self.pace = pace
        self.memory = memory
        self._ledger = spec.ledger(store)
        self._looker = SnapshotReader(store, spec.paths, shows=shows(spec))
        self._ti = ti
        self._runs = TaskRuns(spec.dag_id, ti, spec.source.interval_of_run)
        self._log = log
        self._clock = clock
        self._sleep = sleep or self._until_turn_moves
        self._store = store
        self._turn = 0
        self._corrections = CorrectionWatch(spec.named_source)
        self._lane = lane or NoLane()
        self._alarms = alarms
        self._planned_at = clock()
        self._paused = False
        self._awake_at = float("-inf")
        self._flows = False
        self._left = 0
        self._done = 0
        self._states: Mapping[str, str | None] = {}
        self._asked_at = float("-inf")
        self._said: dict[str, str] = {}

    def work_until_idle(self) -> float:
        """Plan and act until the coordinator has been idle for `linger` seconds.

        :return: the seconds that the trigger may wait before its first reading.
        :raises StoreError: the ledger cannot be reached, or cannot be read.
        """
        idle_since = self._clock()
        while True:
            found = self.step()
            if not self._lane.working and (self._paused or self._lane.is_over):
                return PAUSED if self._paused else 0.0
            now = self._clock()
            if self._done or self._lane.working:
                idle_since = now
            elif now - idle_since >= self.pace.linger and not self._soon(found):
                return 0.0
            if self._done and not self.memory.source_wait:
                continue
            if self._lane.working:
                self._lane.wait(self.pace.poll)
            else:
                self._sleep(self.pace.poll)

    def step(self) -> Plan:
        """Read the ledger once, and execute the plan.

        A lane without failures begins its next transactions without a reading.
        """
        self._done = 0
        if self._goes_well():
            self._allocate()
            return Plan((), 0.0, self.memory)
        self._flows = False
        self._left = self._lane.left
        look = self._looker.look()
        if look is None:  # The ledger has changed during the reading.
            return Plan((), 0.0, self.memory)
        self._turn = look.current
        if self._alarms is not None:
            self._alarms.step(look)
        look = replace(look, busy=self._busy(look), lane=self._lane.open_in(look))
        now = self._clock()
        elapsed = now - self._planned_at
        self._planned_at = now
        ready = (
            self.spec.allocates and self.memory.source_wait <= elapsed and not self._lane.is_over
        )
        corrected = self._corrections.is_due(self._ledger, look)
        found = plan(
            look,
            self._run_states(look),
            self.memory,
            elapsed=elapsed,
            rules=self.pace.rules,
            ready=ready,
            corrected=corrected,
        )
        if any(not isinstance(each, Allocate) for each in found.actions):
            # The states of the runs may be some seconds old. Read them again, and plan again.
            states = self._run_states(look, fresh=True)
            found = plan(
                look,
                states,
                self.memory,
                elapsed=elapsed,
                rules=self.pace.rules,
                ready=ready,
                corrected=corrected,
            )
        self.memory = found.memory
        if found.actions and self._is_paused(found.actions):
            return found
        for action in found.actions:
            self._do(action)
        self._flows &= len(found.actions) == 1
        return found

    def _until_turn_moves(self, seconds: float) -> None:
        """Wait until a transaction commits, since another one may then begin."""
        reads = ReadOnlyLedger(self._store, self.spec.paths)
        watched = self.spec.source.watched(self.spec.paths.root)
        with self._store.watch(self.spec.paths.current, *watched) as watch:
            # The watch does not report a change that happened before it was set.
            moved = reads.current() != self._turn or watch.wait(seconds)
        if moved and watched:
            # An upstream commit may have added rows to the source.
            self.memory = self.memory.answered(0.0)

    def _goes_well(self) -> bool:
        """Return whether the last reading is recent, and the lane has since begun a transaction and lost none."""
        lane = self._lane
        return (
            self._flows
            and lane.left == self._left
            and not (lane.is_over or lane.rests)
            and self._clock() - self._planned_at < LOOK_EVERY
        )

    def _run_states(self, look: LedgerSnapshot, *, fresh: bool = False) -> Mapping[str, str | None]:
        """Return the states of the runs. They are read again every few seconds and after each action."""
        now = self._clock()
        if (
            fresh
            or now - self._asked_at >= STATES_EVERY
            or not self._states.keys() >= set(look.run_ids)
        ):
            self._states = {
                run_id: compat.run_state(self._ti, self.spec.dag_id, run_id)
                for run_id in look.run_ids
            }
            self._asked_at = now
        return self._states

    def _soon(self, found: Plan) -> bool:
        """Return whether an action is due so soon that a trigger would wake the task too late."""
        return found.wait is not None and found.wait < max(self.pace.hold, self.pace.rules.silence)

    def _busy(self, look: LedgerSnapshot) -> bool | None:
        """Return whether Airflow lists the committer as running, and no other task of its run is live.

        Return None if the coordinator has no reason to ask Airflow.
        """
        record = look.opened.get(look.current)
        if record is None or look.owner is not False:
            return None
        found = self._ti.get_task_states(dag_id=self.spec.dag_id, run_ids=[record.run_id]).get(
            record.run_id, {}
        )
        live = {text(state) for state in found.values() if state is not None and is_live(state)}
        return live == {"running"}

    def _is_paused(self, actions: Sequence[Action]) -> bool:
        """Return whether the DAG of the topology or the coordinator's DAG is paused."""
        if all(isinstance(action, (CameBack, Unblock)) for action in actions):
            return False
        now = self._clock()
        allocates_only = all(isinstance(action, Allocate) for action in actions)
        if allocates_only and now - self._awake_at < LOOK_EVERY:
            return False
        paused = [
            dag_id for dag_id in (self.spec.dag_id, self._ti.dag_id) if compat.is_paused(dag_id)
        ]
        self._paused = bool(paused)
        self._awake_at = float("-inf") if paused else now
        if paused:
            self._say(
                "paused", f"DAG {paused[0]} is paused: nothing is started until you unpause it."
            )
        return self._paused

    # --- actions

    def _do(self, action: Action) -> None:
        if isinstance(action, Examine):
            return  # Each reading queries Airflow, see `_busy`.
        if isinstance(action, Allocate):
            self._allocate()
            return
        self._did()
        try:
            self._deed(action)
        except (compat.RunNotStarted, Refused) as error:
            if isinstance(action, Replay) and isinstance(error, compat.RunNotStarted):
                self._note_unstarted(TransactionAttempt(action.txid, action.attempt), error)
                return
            self._say(f"{type(action).__name__} {getattr(action, 'run_id', '')}", str(error))

    def _deed(self, action: Action) -> None:
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Replay):
            self._replay(action)
        elif isinstance(action, Restate):
            self._restate(action)
        elif isinstance(action, Return):
            self._return(action)
        elif isinstance(action, CameBack):
            self._ledger.came_back(action.run_id)
        elif isinstance(action, Follow):
            self._follow()
        elif isinstance(action, Unblock):
            self._ledger.unblock()
            self._log.info("Transaction %s is no longer blocked: a person has acted.", action.txid)

    def _follow(self) -> None:
        found = self._corrections.read(self._ledger)
        if found is not None:
            follow(self.spec, self._ledger, found, self._log)

    def _allocate(self) -> None:
        before = self._lane.begun
        try:
            answer = (
                allocate(self.spec, self._ledger)
                if self._lane.rests
                else self._lane.work(self.pace.poll)
            )
        except (SourceError, ConfigError, Refused) as error:
            self.memory = self.memory.failed(self.pace.poll)
            self._say(
                "source",
                f"{error} The coordinator queries the source again, at growing intervals. Replays continue.",
            )
            return
        self._flows = self._lane.begun != before and not isinstance(answer, NoData)
        if self._lane.begun != before:
            self.memory = self.memory.answered(
                self.pace.poll if isinstance(answer, NoData) else 0.0
            )
            self._did()
            return
        if not isinstance(answer, Begun):
            self.memory = self.memory.answered(self.pace.poll)
            return
        self.memory = self.memory.answered(0.0)
        self._said.pop("source", None)
        attempt = answer.attempt
        failpoint("coordinator.after_allocate", topology=self.spec.topology, txid=attempt.txid)
        self._log.info(
            "Transaction %s of %s: rows %.500s", attempt, self.spec.topology, answer.metadata
        )
        self._done += 1
        try:
            self._create(answer.run_id, answer.key)
        except compat.RunNotStarted as error:
            self._note_unstarted(attempt, error)

    def _start(self, action: Start) -> None:
        attempt = TransactionAttempt(action.txid, self.memory.health[action.txid].attempt)
        self.memory = self.memory.tried(action.txid)
        try:
            created = self._create(action.run_id, action.key)
        except compat.RunNotStarted as error:
            self._note_unstarted(attempt, error)
            return
        if created:
            self._log.info(
                "Transaction %s had no run yet: the process that allocated it was stopped.",
                action.txid,
            )

    def _note_unstarted(self, attempt: TransactionAttempt, error: compat.RunNotStarted) -> None:
        """Record in the ledger why a run could not be started.

        If the DAG forbids the run, the next try counts as a replay.
        """
        self._say(
            str(attempt),
            f"{str(error).rstrip('.')}. The coordinator tries again at growing intervals.",
        )
        # Record this failure, even if the ledger already has a note about an earlier one.
        overdue = (self._ledger.clock.now() + timedelta(seconds=1)).isoformat(
            timespec="milliseconds"
        )
        limit = self.pace.rules.max_replays
        request = ReplayRequest(attempt, str(error), error.forbidden, limit, overdue=overdue)
        answer = self._ledger.note_replay(request)
        if isinstance(answer, Blocked):
            self._block(attempt, answer.reason)

    def _create(self, run_id: str, key: str) -> bool:
        created = self._runs.create(run_id, key)
        if created:
            self._states = {**self._states, run_id: "queued"}
            self._log.info("Run %s is started", run_id)
        return created

    def _replay(self, action: Replay) -> None:
        self.memory = self.memory.tried(action.txid)
        attempt = TransactionAttempt(action.txid, action.attempt)
        request = ReplayRequest(attempt, action.reason, action.counts, self.pace.rules.max_replays)
        answer = self._ledger.note_replay(request)
        if isinstance(answer, Blocked):
            self._block(attempt, answer.reason)
        if isinstance(answer, GivenUp):
            self._log.warning(
                "Transaction %s is skipped at its turn: %s. It was to restate transaction %s, which still counts.",
                attempt, answer.reason, answer.replaces,
            )  # fmt: skip
        if isinstance(answer, (AlreadyCommitted, Blocked, GivenUp)):
            return
        assert isinstance(answer, ReplayNoted)
        if not answer.first and not action.noted:
            return  # Another process starts it.
        failpoint(
            "coordinator.after_note",
            topology=self.spec.topology,
            txid=action.txid,
            attempt=action.attempt,
        )
        counted = (
            f"automatic replay {answer.count} of {self.pace.rules.max_replays}"
            if action.counts
            else "not counted as automatic"
        )
        self._log.info("Transaction %s is replayed (%s): %s", attempt, counted, action.reason)
        if isinstance(action, RestartDead):
            compat.restart_dead(self.spec.dag_id, action.run_id)
        else:
            self._runs.start(action.run_id, action.key)

    def _block(self, attempt: TransactionAttempt, reason: str) -> None:
        txid = attempt.txid
        self.memory = self.memory.blocked(txid)
        self._log.error(
            "Transaction %s is no longer replayed: %s. No later transaction commits until a person acts: %s",
            attempt,
            reason,
            Remedy.of(
                Command.of("replay", self.spec.topology, txid),
                ", or ",
                Command.of("skip", self.spec.topology, txid, "--why", "TEXT"),
            ),
        )

    def _restate(self, action: Restate) -> None:
        self.memory = self.memory.tried(action.txid)
        self._log.info("Run %s restates transaction %s", action.run_id, action.txid)
        failpoint("coordinator.before_restate", topology=self.spec.topology, txid=action.txid)
        self._runs.start(action.run_id, action.key)

    def _return(self, action: Return) -> None:
        if action.txid is not None:
            self.memory = self.memory.tried(action.txid)
        self._log.info(
            "Run %s had yielded its run slot. It starts again, since no earlier transaction needs the slot.",
            action.run_id,
        )
        self._runs.restart(action.run_id)
        self._ledger.came_back(action.run_id)

    def _did(self) -> None:
        self._done += 1
        self._asked_at = float("-inf")

    def _say(self, about: str, line: str) -> None:
        if self._said.get(about) != line:
            self._said[about] = line
            self._log.warning("%s", line)
