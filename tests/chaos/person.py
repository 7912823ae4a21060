"""Whoever looks after the topologies: some of what this person does is wise, and much of it is not."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection

from tests.chaos.bug import CHANGING
from tests.chaos.dates import PER_DAY
from tests.chaos.ledger_watch import LedgerWatch
from tests.chaos.scheduler import TASKS
from tests.chaos.topology import COORDINATED, DATED, STORES, UNRESTATED
from tests.chaos.world import World, chosen

WEIGHTS = {
    "trigger": 5.0,
    "backfill": 3.0,
    "clear": 4.0,
    "skip": 2.0,
    "readmit": 2.0,
    "replay": 1.0,
    "replay --force": 2.0,
    "restate": 4.0,
    "withdraw": 0.7,
}
_UPKEEP = 2.0
_NOW_AND_THEN = 8.0
# As many does a person give at once.
_COMMANDS = 2
# So many transactions back a person looks for one to restate, and so often, in each look, withdraws what is refused.
_LATELY = 15
_WITHDRAWN = 0.2
# So many restatements are skipped while they are open, and the earlier transactions count.
_GIVEN_UP = 0.3
_LOOKS = 30


def triggered() -> list[str]:
    """The topologies whose runs a person triggers."""
    return [name for name in STORES if name not in COORDINATED and name != DATED]


class Person:
    """Acts at random, by a seed, and every few seconds looks whether something has failed."""

    def __init__(self, world: World, watch: LedgerWatch, random_: random.Random) -> None:
        self._world, self._watch, self._random = world, watch, random_
        self._upkept = 0.0
        self._went = dict[str, float]()
        self.deeds = Counter[str]()
        self.asked = 0
        self._looks = Counter[tuple[str, int]]()

    def act(self) -> None:
        """Do something to a topology."""
        name, action = self._random.choice(list(STORES)), chosen(self._random, WEIGHTS)
        scheduler, state = self._world.scheduler, self._watch.states[name]
        self.deeds[action] += 1
        if action == "trigger":
            self._trigger(self._random.choice(triggered()))
        elif action == "backfill":
            self._backfill()
        elif action == "clear":
            runs = scheduler.of(name)[-8:]
            if runs:
                scheduler.clear(self._random.choice(runs), self._random.choice(TASKS))
        elif action == "restate":
            self.restate(name)
        elif action == "withdraw":
            self._world.act(name, action, txids=list(state.wanted))
        else:
            self._act_on_one(name, action)

    def _act_on_one(self, name: str, action: str) -> None:
        """Do something to a transaction, if there is one to which that can be done."""
        state = self._watch.states[name]
        found = list(state.skipped if action == "readmit" else sorted(state.opened))
        if found:
            self._world.act(name, action, self._random.choice(found))

    def restate(self, name: str) -> None:
        """Want some of the last transactions restated, whatever became of them: the same one again and again, too."""
        last = self._watch.states[name].current - 1
        if last and not any(run.is_live for run in self._world.scheduler.of(name, "act")):
            txids = {self._random.randint(max(last - _LATELY, 1), last) for _ in range(self._random.randint(1, 3))}
            self._world.act(name, "restate", txids=sorted(txids), corrects=self._random.random() < 0.5)
            self.asked += len(txids)

    def _trigger(self, name: str) -> None:
        if sum(run.is_live for run in self._world.scheduler.of(name)) < 4:
            self._world.trigger(name)

    def _backfill(self) -> None:
        """Backfill what is left, and some dates before it."""
        if DATED in STORES and sum(run.is_live for run in self._world.scheduler.of(DATED, "act")) < _COMMANDS:
            days = max(self._watch.states[DATED].current - self._random.randrange(2, 12), 0)
            self._world.backfill(min(days * PER_DAY, self._world.numbers[DATED] - 1))

    def keep_up(self, *, trigger: Collection[str] = ()) -> None:
        """See that all goes on: coordinators run, and what has failed, or has no run, is replayed.

        :param trigger: topologies that nobody coordinates, and that have to go on now.
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
            elif name in trigger and not live and name in triggered() and self._goes_on(name):
                self._trigger(name)
            elif name == DATED and not acting:
                self._keep_dates(name in trigger)
            self._skip_some(name, state.restating)
            if state.behind and not acting and not state.wanted and not state.restating:
                self._world.act(name, "follow")
            if state.wanted and not acting:
                self._keep_wishes(name, state.wanted, at_rest=name in trigger)

    def _skip_some(self, name: str, restating: Collection[int]) -> None:
        """Think again of some restatements, and give those up whose files were changed behind their back."""
        for txid in restating:
            self._looks[name, txid] += 1
            if name == CHANGING and self._looks[name, txid] % _LOOKS == 0:
                self._world.act(name, "skip", txid)
            if self._looks[name, txid] == 1 and self._random.random() < _GIVEN_UP:
                self._world.act(name, "skip", txid)

    def _keep_wishes(self, name: str, wanted: Collection[int], *, at_rest: bool) -> None:
        """Let the runs of wishes start that no coordinator starts; withdraw what was refused."""
        if name in UNRESTATED:
            if at_rest or self._random.random() < _WITHDRAWN:
                self._world.act(name, "withdraw", txids=list(wanted))
        elif name not in COORDINATED:
            self._world.act(name, "restate", txids=[], corrects=False)

    def _goes_on(self, name: str) -> bool:
        """Whether rows are left for certain; if that cannot be said, now and then."""
        if self._watch.states[name].allocated * self._world.batch(name) < self._world.numbers[name]:
            return True
        now = time.monotonic()
        if now - self._went.get(name, 0.0) < _NOW_AND_THEN:
            return False
        self._went[name] = now
        return True

    def _keep_dates(self, go_on: bool) -> None:
        """A run that failed before it had a transaction nobody replays, and later dates wait for it: it is cleared."""
        failed = [run for run in self._world.scheduler.of(DATED) if run.state == "failed"]
        for run in failed:
            self._world.scheduler.clear(run)
        if go_on and not failed and self._goes_on(DATED):
            self._world.backfill()
