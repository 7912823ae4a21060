"""The faults: whom they hit, how, and where their victim was by then."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_tx.testing.failpoints import Armed
from airflow_tx.testing.processes import signal_process
from tests.chaos.pending import LONGEST, PendingFaults
from tests.chaos.points import TASK_AT, killing_points, standing_points, victim_at
from tests.chaos.record import Fault
from tests.chaos.server_faults import ServerFaults
from tests.chaos.topology import LANED, STORES, is_used
from tests.chaos.world import SESSION, World, chosen

WEIGHTS = {
    "kill": 36.0,
    "kill at a point": 26.0,
    "freeze": 8.0,
    "stand still at a point": 12.0,
    "fail writes": 4.0,
    "cut": 5.0,
    "lose replies": 5.0,
    "kill server": 4.0,
    "freeze server": 1.5,
    "cut off": 2.0,
    "fill disk": 2.0,
}
"""How often each is chosen."""
COMPONENT_WEIGHTS = {"kill component": 14.0, "freeze component": 4.0}
"""The same, where there is an Airflow."""
EXECUTOR_WEIGHTS = {"kill executor": 4.0, "freeze executor": 2.0}
"""The same, where there is a Spark."""
_STOP, _CONTINUE, _KILL = 19, 18, 9


@dataclass
class Waiting:
    """A failpoint that nobody has come by yet."""

    armed: Armed
    topology: str
    holds: float


@dataclass
class Gun:
    """Chooses faults by a seed, does them, and ends them.

    :param phase: tells the phase of a transaction of a topology that is under way, for the record.
    :param done: what was done, for the record.
    :param at: each fault is a kill at this point, of one topology after the other; "": faults are chosen.
    """

    world: World
    random: random.Random
    phase: Callable[[str, str], str]
    done: Callable[[Fault], None]
    clock: Callable[[], float] = time.monotonic
    count: int = 0
    at: str = ""
    waiting: list[Waiting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pending = PendingFaults(self.clock)
        self._servers = ServerFaults(self.world, self.random, self._note, self.pending)

    def shoot(self) -> None:
        """Do one fault, if its victim is there."""
        if self.at:
            if not self.waiting:
                self._wait_at(self.at, "kill", list(STORES)[self.count % len(STORES)], 0.0)
            return
        ways: Mapping[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill at a point": self._arm,
            "freeze": self._freeze,
            "stand still at a point": self._arm_pause,
            "fail writes": self._fail_writes,
            "cut": self._servers.cut,
            "lose replies": self._servers.lose_replies,
            "kill server": self._servers.kill,
            "freeze server": self._servers.freeze,
            "cut off": self._servers.cut_off,
            "fill disk": self._servers.fill_disk,
            "kill executor": self._servers.kill_executor,
            "freeze executor": self._servers.freeze_executor,
            "kill component": self._kill_component,
            "freeze component": self._freeze_component,
        }
        more = COMPONENT_WEIGHTS if self.world.components else {}
        executors = EXECUTOR_WEIGHTS if is_used("Spark") else {}
        ways[chosen(self.random, {**WEIGHTS, **more, **executors})]()

    def step(self) -> None:
        """End what is over, and note which failpoints were reached."""
        self.pending.step()
        for waiting in list(self.waiting):
            if waiting.armed.reached:
                self._reached(waiting)

    def cease(self) -> None:
        """End all faults, and let no failpoint act any more."""
        for waiting in list(self.waiting):
            if waiting.armed.reached:
                self._reached(waiting)
            elif waiting.holds:
                waiting.armed.release()
        while self.pending.end():
            self.world.scheduler.step()
        self.waiting.clear()
        self.world.disarm()

    # --- processes

    def _process(self) -> tuple[str, str, int] | None:
        """One of the processes of topologies: its topology, what it is, its pid."""
        found = [
            (run.dag_id, _victim(run.program, run.dag_id, task), pid)
            for run, task, pid in self.world.scheduler.processes()
            if run.program in ("execute", "coordinate", "act")
        ]
        return self.random.choice(found) if found else None

    def _kill(self) -> None:
        found = self._process()
        if found is not None:
            name, victim, pid = found
            moment = self.phase(name, victim)
            if signal_process(pid, _KILL):
                self._note(victim, "kill", moment, [name])

    def _freeze(self) -> None:
        """Longer than a session lives, or not; half of them are taken for dead meanwhile."""
        found = self._process()
        if found is None:
            return
        name, victim, pid = found
        moment = self.phase(name, victim)
        if signal_process(pid, _STOP):
            dead = self.random.random() < 0.5 and self.world.scheduler.silent(pid)
            how = "freeze, declared dead" if dead else "freeze"
            fault = self._note(victim, how, moment, [name])
            self.pending.add(fault, self.random.uniform(0.5, LONGEST), lambda: signal_process(pid, _CONTINUE))

    def _fail_writes(self) -> None:
        """From now on each write of a process to a file fails, as on a full disk."""
        found = self._process()
        if found is None:
            return
        name, victim, pid = found
        moment = self.phase(name, victim)
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))
        except ProcessLookupError:
            return
        self._note(victim, "failed writes", moment, [name])

    # --- points

    def _arm(self) -> None:
        name = self.random.choice(list(STORES))
        self._wait_at(self.random.choice(killing_points(name)), "kill", name, 0.0)

    def _arm_pause(self) -> None:
        name, holds = self.random.choice(list(STORES)), self.random.uniform(SESSION, LONGEST)
        self._wait_at(self.random.choice(standing_points(name)), "pause", name, holds)

    def _wait_at(self, point: str, action: str, name: str, holds: float) -> None:
        armed = self.world.failpoints.arm(point, action, topology=name)
        self.waiting.append(Waiting(armed, name, holds))

    def _reached(self, waiting: Waiting) -> None:
        self.waiting.remove(waiting)
        rule, name = waiting.armed.rule, waiting.topology
        victim = victim_at(rule.name, name)
        if rule.action == "kill":
            self._note(victim, "kill", rule.name, [name])
            return
        pids = self._standing(name, rule.name)
        frozen = [pid for pid in pids if signal_process(pid, _STOP)]
        dead = [pid for pid in frozen if self.world.scheduler.silent(pid)]
        how = "freeze, declared dead" if dead else "freeze" if frozen else "stands still"
        fault = self._note(victim, how, rule.name, [name])
        self.pending.add(fault, waiting.holds, lambda: self._wake(waiting.armed, frozen))

    def _standing(self, name: str, point: str) -> list[int]:
        """The processes of which one stands at a point: woken up late, it goes on at that very line."""
        task = TASK_AT.get(point.partition(".")[0])
        return [
            pid
            for run, own, pid in self.world.scheduler.processes()
            if run.dag_id == name and own in (task, "coordinate")
        ]

    def _wake(self, armed: Armed, pids: list[int]) -> None:
        armed.release()
        for pid in pids:
            signal_process(pid, _CONTINUE)

    # --- Airflow

    def _component(self) -> str | None:
        name = self.random.choice(self.world.components)
        return None if name in self.pending.busy or self.world.component(name) is None else name

    def _kill_component(self) -> None:
        name = self._component()
        if name is not None:
            self.world.kill_component(name)
            self._note(name, "kill", "Airflow", list(STORES))

    def _freeze_component(self) -> None:
        name = self._component()
        pid = None if name is None else self.world.component(name)
        if name is not None and pid is not None and signal_process(pid, _STOP):
            fault = self._note(name, "freeze", "Airflow", list(STORES))
            until = self.random.uniform(1.0, LONGEST)
            self.pending.add(fault, until, lambda: signal_process(pid, _CONTINUE), name)

    # --- the record

    def _note(self, victim: str, how: str, moment: str, topologies: list[str]) -> Fault:
        self.count += 1
        now = self.clock()
        fault = Fault(self.count, victim, how, moment, topologies, now, now)
        self.done(fault)
        return fault


def _victim(program: str, name: str, task: str) -> str:
    if program == "coordinate":
        return "lane" if name in LANED else "coordinator"
    return "person's command" if program == "act" else task
