"""Whoever looks after the topologies: some of what this person does is wise, and much of it is not."""

from __future__ import annotations

import random
import time

from tests.chaos.ledger_watch import LedgerWatch
from tests.chaos.scheduler import TASKS
from tests.chaos.topology import COORDINATED, STORES
from tests.chaos.world import World, chosen

WEIGHTS = {"trigger": 5.0, "clear": 4.0, "skip": 2.0, "readmit": 2.0, "replay": 1.0, "replay --force": 2.0}
_UPKEEP = 2.0


class Person:
    """Acts at random, by a seed, and every few seconds looks whether something has failed."""

    def __init__(self, world: World, watch: LedgerWatch, random_: random.Random) -> None:
        self._world, self._watch, self._random = world, watch, random_
        self._upkept = 0.0
        self.done = 0

    def act(self) -> None:
        """Do something to a topology."""
        name, action = self._random.choice(list(STORES)), chosen(self._random, WEIGHTS)
        scheduler, state = self._world.scheduler, self._watch.states[name]
        self.done += 1
        if action == "trigger":
            self._trigger("files")
        elif action == "clear":
            runs = scheduler.of(name)[-8:]
            if runs:
                scheduler.clear(self._random.choice(runs), self._random.choice(TASKS))
        elif action == "readmit":
            if state.skipped:
                self._world.act(name, action, self._random.choice(state.skipped))
        elif state.opened:
            self._world.act(name, action, self._random.choice(sorted(state.opened)))

    def _trigger(self, name: str) -> None:
        if sum(run.is_live for run in self._world.scheduler.of(name)) < 4:
            self._world.trigger(name)

    def keep_up(self, *, trigger: bool = False) -> None:
        """See that all goes on: coordinators run, and what has failed, or has no run, is replayed.

        :param trigger: also the topologies that nobody coordinates.
        """
        if time.monotonic() - self._upkept < _UPKEEP:
            return
        self._upkept = time.monotonic()
        scheduler = self._world.scheduler
        self._world.keep_up()
        for name in COORDINATED:
            self._world.coordinate(name)
        for name, state in self._watch.states.items():
            live = {run.run_id for run in scheduler.of(name) if run.is_live}
            is_left = any(record["run_id"] not in live for record in state.opened.values())
            acting = any(run.is_live for run in scheduler.of(name, "act"))
            if is_left and not acting and (name not in COORDINATED or trigger):
                self._world.act(name, "failed")
        if trigger and not any(run.is_live for run in scheduler.of("files")):
            self._trigger("files")
