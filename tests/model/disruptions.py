"""What people and machines may do to a world at any moment, each for one of its budget."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_tx.ledger.api import Node
from airflow_tx.ledger.json_text import replace
from tests.model.machine import Reply
from tests.model.promises import begun_late
from tests.model.repairs import rebuilt
from tests.model.rules import Airflow
from tests.model.shapes import TASK
from tests.model.world import Actor, Run, World

Step = tuple[str, World]
ASIDE = ("skip", "withdraw", "readmit", "restate", "press", "coordinate", "repair", "accept")


class Rules(Airflow):
    """What can happen next in a world, and what it leads to."""

    def disruptions(self, world: World, number: int) -> Iterator[Step]:
        """To one run; −1: to none of them."""
        if number < 0:
            yield from self._coordinators(world)
            return
        run = world.runs[number]
        if run.stage == "absent":
            return
        yield from self._free(world, number)
        yield from self._set_back(world, number)
        yield from self._rebuilds(world)
        if not world.budget:
            return
        spent = replace(world, budget=world.budget - 1)
        yield from self._skips(spent, number)
        yield from self._yields(spent, number)
        yield from self._clears(spent, run)
        if not self.shape.clears_only:
            for actor in (spent.live(number, name) for name, _ in run.tasks):
                if actor is not None:
                    yield from self._crashes(spent, actor)

    def _clears(self, spent: World, run: Run) -> Iterator[Step]:
        number = run.number
        if run.stage != "yielded":
            yield f"run {number}: clear the run", self.begin(spent, number)
        if run.begun:
            for name, task in run.tasks[1:]:
                if task.state in ("success", "failed") or (name == TASK and task.state == "running"):
                    yield f"run {number}: clear {name}", self.clear(spent, number, name)

    def _free(self, world: World, number: int) -> Iterator[Step]:
        """Without a price: who has skipped may want it back, a blocked transaction is seen to by a person, and a dead
        process by Airflow in the end."""
        txid = world.bound(self.shape, number)
        skipped = world.skipped(txid)
        busy = any(actor.run == number and actor.task == "readmit" for actor in world.actors)
        wanted = skipped is not None and skipped.readmit is None and skipped.readmitted_as is None
        if "skip" in self.shape.people and wanted and not busy and world.runs[number].stage == "green":
            yield f"run {number}: readmit {txid}", self.aside(world, number, "readmit", (txid, number))
        yield from self._restatements(world, number)
        for name, task in world.runs[number].tasks:
            if task.state == "running" and world.live(number, name) is None:
                yield f"run {number}: {name} is found dead", self.retry(world, number, name)
        if number in begun_late(self.shape, world):
            yield f"run {number}: a person replays {txid}", self.begin(world, number)
        blocked = world.topology.blocked
        if blocked is not None and blocked.txid == txid and world.runs[number].stage == "failed":
            yield f"run {number}: a person replays {txid}", self.begin(world, number)

    def _restatements(self, world: World, number: int) -> Iterator[Step]:
        txid = world.bound(self.shape, number)
        counts = txid in {final.txid for final in world.counted() if not final.skipped}
        if world.wished < self.shape.restates and counts and world.runs[number].stage == "green":
            wished = replace(world, wished=world.wished + 1)
            yield f"run {number}: restate {txid}", self.aside(wished, number, "restate", (txid, number))

    def _skips(self, spent: World, number: int) -> Iterator[Step]:
        txid = spent.bound(self.shape, number)
        record = spent.record(txid)
        people = self.shape.people
        if record is not None and "skip" in people and record.skip is None:
            yield f"run {number}: skip {txid}", self.aside(spent, number, "skip", (txid,))
        if record is not None and "withdraw" in people and record.skip is not None:
            yield f"run {number}: withdraw the skip of {txid}", self.aside(spent, number, "withdraw", (txid,))
        if record is not None and "press" in people and record.skip is None:
            for other in ("skip", "replay"):
                one = self.aside(spent, number, "press", (txid, "skip", "ada"))
                two = self.aside(one, number, "press", (txid, other, "ben"))
                yield f"run {number}: one is shown the skip of {txid}, another one its {other}", two
        if self.shape.clears_only:
            return
        for actor in spent.actors:
            if actor.run == number and actor.task in ASIDE:
                yield f"run {number}: {actor.task} dies", spent.without(actor.ident)
                yield from self._lost(spent, actor)

    def _set_back(self, world: World, number: int) -> Iterator[Step]:
        """Restore a snapshot, once. Processes live on, and a record never gets a version again that one has seen."""
        record = world.record(world.current)
        if world.backup is None or record is None or not record.granted:
            return
        if not world.restored and world.bound(self.shape, number) == world.current:
            nodes = {path: _restored(node, world.nodes.get(path)) for path, node in world.backup.items()}
            yield "the ledger is set back to before the grant", replace(world, restored=True).with_nodes(nodes)

    def _rebuilds(self, world: World) -> Iterator[Step]:
        """Rebuild the ledger from the fences, once.

        Whoever does it has ended all processes, since a committer that has its grant may still raise a fence. Then the
        runs that are not green are cleared.
        """
        if "rebuild" not in self.shape.people or world.restored:
            return
        after = rebuilt(self.shape, world)
        if after is None:
            return
        after = replace(after, actors=())
        for run in after.runs:
            if run.stage not in ("absent", "green"):
                after = self.begin(after, run.number)
        yield "the ledger is rebuilt from the fences", after

    def _yields(self, spent: World, number: int) -> Iterator[Step]:
        """A waiter that finds the run whose turn it is queued gives up its run slot."""
        if "yield" not in self.shape.people:
            return
        for actor in spent.actors:
            call = actor.place.call
            live = actor.run == number and actor.task in ("begin", "commit") and spent.live(number, actor.task) == actor
            if live and call is not None and call[0] == "defer" and not self.enabled(spent, actor):
                yield f"run {number}: is to yield", self.act(spent, actor, reply=Reply("yield"))

    def _crashes(self, spent: World, actor: Actor) -> Iterator[Step]:
        number, name = actor.run, actor.task
        yield f"run {number}: {name} is retried", self.retry(spent, number, name)
        if self.shape.led and name == "commit":
            yield f"run {number}: {name} dies, and Airflow takes it for running", spent.without(actor.ident)
        if name == TASK:
            without = spent.without(actor.ident)
            yield f"run {number}: p fails", self.clear(without, number, TASK, "fails")
            if "late" in self.shape.people:
                yield f"run {number}: p will hang after its ack", self.clear(without, number, TASK, "late")
        yield from self._lost(spent, actor)
        if spent.behind is not None:
            lagging = replace(spent, lagging=True)
            yield f"run {number}: {name} is retried, and reads what lags", self.retry(lagging, number, name)

    def _lost(self, spent: World, actor: Actor) -> Iterator[Step]:
        call = actor.place.call
        if call is None or call[0] not in ("multi", "write", "clear"):
            return
        what = f"run {actor.run}: {actor.task} loses"
        yield f"{what} a reply", self.act(spent, actor, lost="done")
        yield f"{what} a request", self.act(spent, actor, lost="not done")

    def marked(self, world: World, number: int) -> Iterator[Step]:
        """A task that hangs after its ack is marked success; its process may fail at any time after that."""
        for actor in world.actors:
            if actor.run != number or actor.place.call is None or actor.place.call[0] != "marked":
                continue
            if world.runs[number].task(TASK).live == actor.ident:
                yield f"run {number}: p is marked success", self._mark_success(world, actor)
            else:
                yield f"run {number}: the hanging p fails", self.act(world, actor, reply=Reply())

    def _mark_success(self, world: World, actor: Actor) -> World:
        from tests.model.programs import xcoms_of

        run = world.runs[actor.run]
        assert run.handed is not None
        told = xcoms_of(self.shape, run.handed, self.machine.spec(actor.place)[-2])
        world = world.with_run(run.with_task(TASK, state="success", live=None, xcoms=told))
        return self.follow(world, actor.run)

    # --- coordinators

    def _coordinators(self, world: World) -> Iterator[Step]:
        yield from self._lanes(world)
        if not self.shape.led:
            return
        running = [actor for actor in world.actors if actor.task == "coordinate"]
        if not running:
            after = self.aside(world, -1, "coordinate", ())
            if any(actor.task == "coordinate" for actor in after.actors) or after.key != world.key:
                yield "the coordinator looks", after
        if not world.budget or self.shape.clears_only:
            return
        spent = replace(world, budget=world.budget - 1)
        for actor in running:
            yield "the coordinator dies", spent.without(actor.ident)
            yield from self._lost(spent, actor)
        if len(running) == 1:
            yield "another coordinator looks", self.aside(spent, -1, "coordinate", ())

    def _lanes(self, world: World) -> Iterator[Step]:
        """A lane begins the next transaction; a run of it may begin at any time, as if the lane were dead."""
        lanes = [actor for actor in world.actors if actor.task == "lane"]
        if "lane" in self.shape.people and not lanes and world.allocated < self.shape.runs:
            yield "a lane works", self.aside(world, -1, "lane", ())
        if not world.budget:
            return
        spent = replace(world, budget=world.budget - 1)
        for actor in lanes:
            yield "the lane dies", spent.without(actor.ident)
            yield from self._lost(spent, actor)


def _restored(node: Node, now: Node | None) -> Node:
    return node if now is None or now == node else replace(node, version=now.version + 1)
