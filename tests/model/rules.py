"""An Airflow in small around the processes: it starts, retries and clears tasks, and forgets the dead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.base.errors import (
    FenceOutranked,
    OutcomeUnknown,
    OutputChanged,
    Outranked,
    StaleAttempt,
    StaleBegin,
    StaleTry,
    StateUnavailable,
    UnknownTransaction,
)
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.state.memory import MemoryDatabase
from tests.model import product
from tests.model.calls import Calls
from tests.model.machine import Env, Machine, Outcome, Place, Reply
from tests.model.programs import PROGRAMS, Size
from tests.model.shapes import PATHS, TASK, UPSTREAM, Shape, downstream
from tests.model.world import Actor, ModelStore, Run, Task, Violation, World, store_key

ENOUGH = 40
AGAIN = (FenceOutranked, Outranked, StateUnavailable, OutcomeUnknown)
"""Airflow tries a task again after these. Its other errors would come back, so its run fails."""
NOWHERE = Place(-1, None, None)
STALE = (StaleAttempt, StaleTry, StaleBegin, UnknownTransaction)


class Airflow(Calls):
    """What happens by itself in a world: tasks of runs follow each other, and processes go on."""

    def __init__(self, shape: Shape, *, eager: bool = True) -> None:
        self.shape = shape
        self.eager = eager
        self.machine = Machine(PROGRAMS, product.running)
        self.store = ModelStore()

    def first(self) -> World:
        shape, ids = self.shape, Env("first", ())
        ledger = Ledger(self.store, PATHS, clock=ids, ids=ids)
        self.store.ensure(PATHS.root)
        ledger.open(TopologyRequest("model", shape.source, shape.window or shape.runs + 1, shape.partitions))
        tasks = tuple((name, Task()) for name in shape.tasks)
        world = World(
            self.store.nodes,
            store_key(self.store.nodes),
            tuple(MemoryDatabase().snapshot() for _ in range(shape.states)),
            (None,) * shape.states,
            tuple(Run(number, tasks) for number in range(shape.runs)),
            (),
            shape.budget,
            0,
        )
        if "ahead" in shape.people:
            return world
        # Of three runs that all begin at once, each two do in the smaller shapes; here they begin one after another.
        for run in range(1 if shape.staggered else shape.runs):
            world = self.begin(world, run)
        return world

    # --- tasks ------------------------------------------------------------------------------------------------

    def begin(self, world: World, number: int, *, retry: bool = False) -> World:
        """A run from its first task on; what it was doing goes on without anybody waiting for it."""
        run = world.runs[number]
        if not retry:
            run = replace(run, stage="running", tasks=tuple((name, Task()) for name, _ in run.tasks))
        return self._spawn(world.with_run(run), number, "begin", (f"{run.tries:04d}", retry, self._size(run)))

    def _size(self, run: Run) -> Size:
        """How many rows the source has for it: a replay of an opaque one finds others."""
        shape = self.shape
        replayed = run.tries > 0 and shape.source != "transactional"
        if not shape.partitions:
            return (("", 2 - shape.shrinks if replayed else 2),)
        # One partition takes part always; another one leaves in a replay of some, and joins in that of others.
        return (("a", 1), ("b", 1)) if replayed == bool(run.number % 2) else (("a", 1),)

    def clear(self, world: World, number: int, task: str, how: str = "") -> World:
        """A task and all after it, and then the task again."""
        if task == "begin":
            return self.begin(world, number)
        run = replace(world.runs[number], stage="running")
        for each in downstream(self.shape, task):
            run = run.with_task(each, state=None, live=None, xcoms=())
        return self.start(world.with_run(run), number, task, how)

    def start(self, world: World, number: int, task: str, how: str = "") -> World:
        run = world.runs[number]
        own = f"{run.tries:04d}"
        if task == TASK:
            return self._spawn(world, number, task, (number, run.handed, own, how))
        if task in ("w0", "w1"):
            return self._spawn(world, number, task, (number, run.handed, own, task))
        return self._spawn(world, number, task, (number, run.handed, own))

    def retry(self, world: World, number: int, task: str) -> World:
        """Airflow runs a task again whose process it takes for dead."""
        return self.begin(world, number, retry=True) if task == "begin" else self.start(world, number, task)

    def _spawn(self, world: World, number: int, task: str, arguments: tuple[Any, ...]) -> World:
        run = world.runs[number]
        if run.tries > ENOUGH:
            raise Violation(f"run {number} is started over and over")
        if task == "begin":
            arguments = (number, *arguments)
        program = "write" if task in ("w0", "w1") else task
        label = f"{number}{task}{run.tries}"
        run = replace(run.with_task(task, state="running", live=world.spawned), tries=run.tries + 1)
        return self._added(world.with_run(run), number, task, (program, label, self.shape, *arguments))

    def aside(self, world: World, number: int, program: str, arguments: tuple[Any, ...]) -> World:
        """A process of a person, or a coordinator, beside the tasks of the runs."""
        label = f"{number}{program}{world.budget}"
        if program == "press":
            label += arguments[-1]
        if program == "restate":
            label += f".{world.wished}"
        if program in ("coordinate", "lane"):
            label += f".{world.allocated}.{world.current}"
        return self._added(world, number, program, (program, label, self.shape, *arguments))

    def _added(self, world: World, number: int, task: str, spec: tuple[Any, ...]) -> World:
        view = world.behind if world.lagging else None
        world = replace(world, lagging=False)
        actor = self.spawned(world, Actor(world.spawned, number, task, NOWHERE, view), spec)
        world = world.with_actor(actor)
        return self.ended(world, actor) if actor.place.outcome is not None else world

    def act(self, world: World, actor: Actor, *, lost: str = "", reply: Reply | None = None) -> World:
        """The actor's next call and its reply."""
        world, moved = self.answered(world, actor, lost=lost, reply=reply)
        world = world.with_actor(moved)
        return self.ended(world, moved) if moved.place.outcome is not None else world

    def settled(self, world: World) -> World:
        """Every call that can only be refused has been: versions and fences never come back, so any time will do.

        What is read after that may differ; in worlds of one run it is read at any time.
        """
        if not self.eager or len(world.runs) == 1:
            return world
        for actor in world.actors:
            if actor.place.call is not None and actor.view is None and self.doomed(world, actor.place.call):
                return self.settled(self.act(world, actor))
        return world

    # --- how they end -----------------------------------------------------------------------------------------

    def ended(self, world: World, actor: Actor) -> World:
        """A process has ended: what Airflow does next."""
        outcome = actor.place.outcome
        assert outcome is not None
        world = world.without(actor.ident)
        if actor.run < 0 or actor.task not in UPSTREAM:
            return self.person_ended(world, actor, outcome)
        if world.runs[actor.run].task(actor.task).live != actor.ident:
            return world
        if outcome.error is None:
            return self._went(world, actor, outcome.result)
        return self._died(world, actor, outcome)

    def person_ended(self, world: World, actor: Actor, outcome: Outcome) -> World:
        return world

    def _went(self, world: World, actor: Actor, result: Any) -> World:
        """The live process of a task has ended well."""
        number, task = actor.run, actor.task
        run = world.runs[number]
        if result in ("skipped", "no data"):
            return self._skipped(world, number)
        xcoms = (("return_value", result),) if task == "begin" else result
        world = world.with_run(run.with_task(task, state="success", live=None, xcoms=xcoms))
        if task == "begin":
            world = self._next_run(world, number + 1)
        return self.follow(world, number)

    def follow(self, world: World, number: int) -> World:
        """Start the tasks whose turn it is in a run."""
        for name, task in world.runs[number].tasks:
            states = [world.runs[number].task(before).state for before in UPSTREAM[name]]
            if task.state is None and task.live is None and all(state == "success" for state in states):
                world = self.start(world, number, name)
        run = world.runs[number]
        if run.stage == "running" and all(task.state == "success" for _, task in run.tasks):
            return world.with_run(replace(run, stage="green"))
        return world

    def _skipped(self, world: World, number: int) -> World:
        run = world.runs[number]
        for name, task in run.tasks:
            if task.state != "success":
                run = run.with_task(name, state="skipped", live=None)
        return self._next_run(world.with_run(replace(run, stage="green")), number + 1)

    def _next_run(self, world: World, number: int) -> World:
        if number < len(world.runs) and world.runs[number].stage == "absent" and "ahead" not in self.shape.people:
            return self.begin(world, number)
        return world

    def _died(self, world: World, actor: Actor, outcome: Outcome) -> World:
        number, task = actor.run, actor.task
        error, cause = outcome.error, outcome.cause
        assert error is not None
        assert cause is not None
        if issubclass(cause, STALE) and not self.goes_back:
            raise Violation(f"the newest {task} of run {number} was refused by {cause.__name__}")
        if issubclass(error, AirflowSkipException):
            return self._skipped(world, number)
        # A task that writes under the grant of another one is outranked for good: its last retry fails, too.
        if issubclass(error, AGAIN) and not (task in ("w0", "w1", "mark") and "utranked" in error.__name__):
            return self.retry(world, number, task)
        run = world.runs[number].with_task(task, state="failed", live=None)
        yields = error is AirflowFailException and cause is AirflowFailException
        world = world.with_run(replace(run, stage="yielded" if yields else "failed"))
        return world if yields or self.shape.led else self.failed(world, number, task, cause)

    def failed(self, world: World, number: int, task: str, cause: type[BaseException]) -> World:
        """Nobody but people sees to a run that has failed; another output is refused for good."""
        if cause is OutputChanged:
            return world.with_run(replace(world.runs[number], stage="refused"))
        return self.begin(world, number)

    @property
    def goes_back(self) -> bool:
        return bool({"set back", "rebuild"}.intersection(self.shape.people))

    def start_run(self, world: World, number: int, *, reset: bool) -> tuple[World, Reply]:
        if number >= len(world.runs):
            raise Violation(f"run {number} is started, which nobody needs")
        if world.runs[number].stage != "absent" and not reset:
            return world, Reply(False)
        return self.begin(world, number), Reply(True)
