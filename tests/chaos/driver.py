"""Drives a run: shoots, feeds and acts until so many faults are done, then lets the world rest, and has it judged."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.chaos.faults import Gun
from tests.chaos.judge import Judge
from tests.chaos.ledger_watch import LedgerState, LedgerWatch
from tests.chaos.person import Person
from tests.chaos.record import Fault, Record, Rest
from tests.chaos.story import Story
from tests.chaos.topology import STORES, UPSTREAM
from tests.chaos.world import Unanswered, World

_TICK = 0.05
# Seconds, on average, between two faults, two acts of the person, and two looks at what the sources have.
_FAULT, _ACT, _FEED = 0.8, 1.5, 2.0
# Batches that a source is ahead at least.
_AHEAD = 2
# A topology that does not move for so many seconds and so many processes, while nothing is done to it, is stuck: on a
# busy machine it takes seconds to start a process. After so many seconds more it is stuck whatever was started.
_STUCK, _PROCESSES, _STUCK_ANYHOW = 240.0, 20, 900.0
# After so many seconds without a move, what lives says where it stands: whoever ends the run early knows that at least.
_DOUBTFUL = 60.0
PROGRAMS = ("execute", "coordinate", "act")


class ChaosFailed(AssertionError):
    """The world was at rest, and not as it has to be; or it did not come to rest."""


@dataclass
class ChaosRun:
    """A run, or a part of it, on one world.

    :param every: faults between two rests.
    :param at: the point at which each fault is a kill; "": faults are chosen.
    """

    world: World
    record: Record
    seed: int
    every: int = 100
    at: str = ""
    watch: LedgerWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = LedgerWatch(self.world.zookeeper.beside)
        self._first = self.record.rested
        self._random = random.Random(f"{self.seed}/{self._first}")
        self._began = time.monotonic()
        self._awaited: list[str] = []
        self._unrecovered: list[tuple[Fault, set[str], dict[str, int]]] = []

    def run(self, faults: int, seconds: float = float("inf")) -> None:
        """Go on until there have been so many faults in all, or so many seconds of this part are over.

        :raises ChaosFailed: with the seed and the history that led to it.
        """
        with ExitStack() as stack:
            stack.enter_context(self.watch)
            self.gun = Gun(self.world, self._random, self.watch.phase, self._note, self._now, self._first, self.at)
            self.person = Person(self.world, self.watch, self._random)
            self.judge = Judge(self.world, self.watch)
            self.story = Story(self.world, self.watch, self.record)
            try:
                while self.gun.count < faults and self._now() < seconds:
                    self._fire(min(faults, self.gun.count + self.every), seconds)
                    self._rest()
                self._end("all faults are done" if self.gun.count >= faults else "its time was over")
            except ChaosFailed:
                self._end("it found something")
                raise
            except BaseException as error:
                self._end(f"it was ended, or failed itself: {type(error).__name__}")
                told = f"seed {self.seed}, after {self.gun.count} faults: {error!r}; it waited for {self._awaited}"
                print(self.story.of(told, self._awaited or list(STORES), []), flush=True)
                raise

    def _end(self, why: str) -> None:
        self.record.add("end", {"faults": self.gun.count, "seconds": self._now(), "why": why})

    def _now(self) -> float:
        return time.monotonic() - self._began

    # --- under fire

    def _fire(self, faults: int, seconds: float) -> None:
        shot = acted = fed = self._now()
        while self.gun.count < faults and self._now() < seconds:
            now = self._now()
            self.world.scheduler.step()
            self.gun.step()
            self._recover(now)
            self.person.keep_up()
            if now >= shot:
                self.gun.shoot()
                shot = now + self._random.expovariate(1 / _FAULT)
            if now >= acted:
                self.person.act()
                acted = now + self._random.expovariate(1 / _ACT)
            if now >= fed:
                self._feed()
                fed = now + _FEED
            time.sleep(_TICK)

    def _feed(self) -> None:
        """Give a source more, before it has none left; what is done to its server is over by then."""
        hit = self.gun.pending.busy
        for name, stores in STORES.items():
            ahead = self.world.numbers[name] / self.world.batch(name) - self.watch.states[name].allocated
            if ahead < _AHEAD and hit.isdisjoint(stores):
                self.world.feed(name)

    def _note(self, fault: Fault) -> None:
        before = {name: self.watch.states[name].current for name in fault.topologies}
        self._unrecovered.append((fault, set(fault.topologies), before))
        told = f"{self._now():6.0f} s  fault {fault.number}: {fault.victim}, {fault.how} ({fault.moment})"
        print(told, flush=True)

    def _recover(self, now: float) -> None:
        for fault, left, before in list(self._unrecovered):
            if now < fault.ended:
                before.update({name: self.watch.states[name].current for name in left})
                continue
            left -= {name for name in left if self.watch.states[name].current > before[name]}
            if not left:
                fault.recovered = now - fault.ended
                self._write((fault, left, before))

    def _write(self, entry: tuple[Fault, set[str], dict[str, int]]) -> None:
        self._unrecovered.remove(entry)
        self.record.add("fault", entry[0])

    # --- at rest

    def _rest(self) -> None:
        began = self._now()
        self.gun.cease()
        stuck = self._wait_quiet()
        wrong = [] if stuck else self._judged()
        if not stuck and not wrong:
            stuck = self._readmit()
            wrong = [] if stuck else self._judged()
        if not stuck and not wrong:
            stuck = self._restate()
            wrong = [] if stuck else self._judged()
        for entry in list(self._unrecovered):
            entry[0].ended = min(entry[0].ended, began)
            self._write(entry)
        rest = Rest(self.gun.count, self._now() - began, **self.judge.figures(), stuck=stuck, wrong=wrong)
        self.record.add("rest", rest)
        print(
            f"{self._now():6.0f} s  at rest after {rest.faults} faults, within {rest.seconds:.0f} s: {rest.numbers} "
            f"numbers in {rest.transactions} transactions ({rest.attempts} attempts, {rest.skipped} skipped, "
            f"{rest.restated} restatements of {self.person.asked} asked for); "
            f"wrong totals {len(wrong)}, stuck topologies {len(stuck)}",
            flush=True,
        )
        if stuck or wrong:
            raise ChaosFailed(self._story(stuck, wrong))

    def _wait_quiet(self) -> list[str]:
        """Wait until nothing moves, and nothing is left to be counted; the topologies that are stuck."""
        changed: dict[str, tuple[float, int, object]] = {}
        left, counted, doubtful = set(STORES), set[str](), set[str]()
        while left:
            self._awaited = sorted(left)
            self.world.scheduler.step()
            self.gun.step()
            self._recover(self._now())
            for name in sorted(left):
                state, now, ended = self.watch.states[name], time.monotonic(), self._ended(name)
                since, before, known = changed.get(name, (now, ended, None))
                # A topology that reads another one moves with that one.
                moved = (state, self.watch.states.get(UPSTREAM.get(name, name)))
                if known != moved:
                    changed[name] = (now, ended, moved)
                    counted.discard(name)
                elif name not in counted and state.is_quiet and self._is_complete(name, left):
                    counted.add(name)
                elif name in counted and self._is_quiet(name, state):
                    left.discard(name)
                elif now - since > (_STUCK if ended - before >= _PROCESSES else _STUCK_ANYHOW):
                    return sorted(left)
                elif now - since > _DOUBTFUL and name not in doubtful:
                    doubtful.add(name)
                    print(*self.story.dump_stacks([name]), sep="\n", flush=True)
            self.person.keep_up(trigger=left - counted)
            time.sleep(_TICK)
        self._awaited = []
        # Quiet once, each may have been woken since by what a person did before.
        is_over = all(self._is_quiet(name, self.watch.look(name)) for name in STORES)
        return [] if is_over and all(map(self._is_complete, UPSTREAM)) else self._wait_quiet()

    def _is_complete(self, name: str, left: Collection[str] = ()) -> bool:
        """Whether all is counted; not before the topology whose table is read is at rest."""
        try:
            return UPSTREAM.get(name) not in left and self.judge.is_complete(name)
        except Unanswered as error:
            print(error, flush=True)
            return False

    def _ended(self, name: str) -> int:
        """How many runs of a topology, of coordinators and of a person have ended."""
        scheduler = self.world.scheduler
        return sum(not run.is_live for program in PROGRAMS for run in scheduler.of(name, program))

    def _is_quiet(self, name: str, state: LedgerState) -> bool:
        scheduler = self.world.scheduler
        return state.is_quiet and not any(run.is_live for run in (*scheduler.of(name), *scheduler.of(name, "act")))

    def _readmit(self) -> list[str]:
        """Let the person have the rows of all that was skipped; the topologies that are stuck then."""
        found = [(name, txid) for name in STORES for txid in self.watch.look(name).skipped]
        for name, txid in found:
            self.world.act(name, "readmit", txid)
        if not found:
            return []
        stuck = self._wait_quiet()
        return stuck or self._readmit()

    def _restate(self) -> list[str]:
        """Let the person have some of each topology restated; the topologies that are stuck then."""
        for name in STORES:
            self.person.restate(name)
        self._wait_ended()
        return self._wait_quiet()

    def _wait_ended(self) -> None:
        """Wait until what the person wants is noted, or refused."""
        while any(run.is_live for name in STORES for run in self.world.scheduler.of(name, "act")):
            self.world.scheduler.step()
            time.sleep(_TICK)

    def _judged(self) -> list[str]:
        return [each for name in STORES for each in self.judge.findings(name)]

    def _story(self, stuck: list[str], wrong: list[str]) -> str:
        names = stuck or sorted({each.partition(":")[0] for each in wrong})
        found = [*wrong, *(each for name in stuck for each in self._left(name))]
        return self.story.of(f"seed {self.seed}, after {self.gun.count} faults; stuck: {stuck}", names, found)

    def _left(self, name: str) -> list[str]:
        """What is still to be done by a topology that is stuck, as far as it can be found out."""
        try:
            return self.judge.findings(name)
        except Unanswered as error:
            return [str(error)]
