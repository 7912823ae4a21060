"""The world around the actors: one store, the states, and an Airflow that retries, clears and forgets the dead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from airflow_tx.errors import (
    FenceOutranked,
    OutcomeUnknown,
    Refused,
    SkippedTransaction,
    StaleAttempt,
    StaleTry,
    TxError,
)
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.opening import TopologyRequest
from airflow_tx.protocol.records import Ack, Binding, Counter, History, Metadata, Skipped, TransactionRecord, decode
from airflow_tx.protocol.requirement import Unchanged
from airflow_tx.state import Sum
from airflow_tx.state.backing.memory import MemoryDatabase, MemoryState
from airflow_tx.store.memory import MemoryStore
from tests.model.machine import EPOCH, Machine, Place, Reply
from tests.model.programs import KEYS, PATHS, PROGRAMS, Handed, Shape

ENOUGH = 30
UNBEGUN = ("new", "allocate", "recover")


class Violation(AssertionError):
    """The protocol broke a promise; `trail` is how."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.trail: list[str] = []


@dataclass(frozen=True)
class Run:
    """One DAG run, as Airflow sees it."""

    number: int
    stage: str = "new"
    live: int | None = None
    tries: int = 0
    handed: Handed | None = None


@dataclass(frozen=True)
class Actor:
    """A process: the live one of its run's stage, or a zombie."""

    ident: int
    run: int
    stage: str
    place: Place


@dataclass(frozen=True)
class Final:
    """A transaction as it was when it became final; the ledger itself forgets its rows."""

    txid: int
    skipped: bool
    rows: tuple[int, int]


class ModelStore(MemoryStore):
    """The in-memory store, swapped in and out of worlds. Its dictionary is replaced, never changed."""

    @property
    def nodes(self) -> dict[str, Any]:
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: dict[str, Any]) -> None:
        self._nodes = nodes


@dataclass(frozen=True)
class World:
    """Everything there is at one moment."""

    nodes: dict[str, Any]
    store_key: int
    states: tuple[Any, ...]
    raised: tuple[Any, ...]
    runs: tuple[Run, ...]
    actors: tuple[Actor, ...]
    budget: int
    spawned: int
    book: tuple[Final, ...] = ()

    @cached_property
    def key(self) -> int:
        places = tuple((a.run, a.stage, a.place.ident, a.ident == self.runs[a.run].live) for a in self.actors)
        runs = tuple((r.stage, r.tries, r.handed) for r in self.runs)
        people = (len(places), runs, self.budget, self.book)
        return hash((self.store_key, self.states, self.raised, frozenset(places), people))

    @cached_property
    def current(self) -> int:
        return decode(Counter, PATHS.current, self.nodes[PATHS.current].data).txid

    @cached_property
    def allocated(self) -> int:
        return decode(Counter, PATHS.allocated, self.nodes[PATHS.allocated].data).txid

    def bound(self, run: int) -> int | None:
        """The txid that a run stands for."""
        node = self.nodes.get(PATHS.run(f"r{run}")) or self.nodes.get(PATHS.run(f"tx-{run + 1}"))
        return None if node is None else decode(Binding, "", node.data).txid

    def record(self, txid: int | None) -> TransactionRecord | None:
        node = None if txid is None else self.nodes.get(PATHS.transaction(txid))
        return None if node is None else decode(TransactionRecord, "", node.data)

    def skipped(self, txid: int | None) -> Skipped | None:
        node = None if txid is None else self.nodes.get(PATHS.skipped(txid))
        return None if node is None else decode(Skipped, "", node.data)

    def counted(self) -> list[Final]:
        """What is final, without what came back under another txid."""
        found = []
        for final in self.book:
            skipped = self.skipped(final.txid)
            if skipped is None or skipped.readmitted_as is None:
                found.append(final)
        return found


Step = tuple[str, World]


class Rules:
    """What can happen next in a world, and what it leads to."""

    def __init__(self, shape: Shape, *, eager: bool = True) -> None:
        self.shape = shape
        self.eager = eager
        self.machine = Machine(PROGRAMS)
        self.store = ModelStore()

    def first(self) -> World:
        from tests.model.machine import Env

        ids = Env("first", ())
        ledger = Ledger(self.store, PATHS, clock=ids, ids=ids)
        ledger.open(TopologyRequest("model", self.shape.source, self.shape.runs + 1))
        states = tuple(MemoryDatabase().snapshot() for _ in range(self.shape.states))
        runs = tuple(Run(number) for number in range(self.shape.runs))
        world = World(
            self.store.nodes,
            _store_key(self.store.nodes),
            states,
            (None,) * len(states),
            runs,
            (),
            self.shape.budget,
            0,
        )
        if "ahead" in self.shape.people:
            return self._coordinated(world)
        # Of three runs that all begin at once, each two do in the smaller shapes; here they begin one after another.
        for run in range(1 if self.shape.staggered else self.shape.runs):
            world = self.begin(world, run, retry=False)
        return world

    # --- Airflow ----------------------------------------------------------------------------------------------

    def begin(self, world: World, run: int, *, retry: bool) -> World:
        tries = world.runs[run].tries
        # A replay of an opaque source finds one row less than the first attempt.
        size = 2 if tries == 0 or self.shape.source == "transactional" else 1
        return self._spawn(world, run, "begin", (self.shape, run, f"{tries:04d}", retry, size))

    def process(self, world: World, run: int, *, fails: bool = False) -> World:
        handed = world.runs[run].handed
        return self._spawn(world, run, "process", (handed, f"{world.runs[run].tries:04d}", fails))

    def commit(self, world: World, run: int) -> World:
        return self._spawn(world, run, "commit", (self.shape, world.runs[run].handed))

    def _spawn(self, world: World, number: int, stage: str, arguments: tuple[Any, ...]) -> World:
        run = world.runs[number]
        if run.tries > ENOUGH:
            raise Violation(f"run {number} is started over and over")
        place = self._read_on(world, self.machine.spawn((stage, f"{number}{stage[0]}{run.tries}", *arguments)))
        actor = Actor(world.spawned, number, stage, place)
        changed = replace(run, stage=stage, live=actor.ident, tries=run.tries + 1)
        after = replace(
            world, runs=_put(world.runs, number, changed), actors=(*world.actors, actor), spawned=world.spawned + 1
        )
        return self._ended(after, actor) if place.outcome is not None else after

    def _ended(self, world: World, actor: Actor) -> World:
        """A process has ended: what Airflow does next."""
        outcome = actor.place.outcome
        assert outcome is not None
        world = replace(world, actors=tuple(other for other in world.actors if other.ident != actor.ident))
        run = world.runs[actor.run]
        if actor.stage in ("allocate", "recover"):
            return self._found(world, actor.run if actor.stage == "recover" else (outcome.result or 0) - 1)
        if actor.stage == "readmit" and outcome.error is None and run.stage == "green":
            return self.begin(world, actor.run, retry=False)
        if run.live != actor.ident:
            return world
        if outcome.error is not None:
            return self._died(world, actor, outcome.error)
        return self._went(world, actor, outcome.result)

    def _went(self, world: World, actor: Actor, result: Any) -> World:
        """The live process of a run has ended well."""
        run = world.runs[actor.run]
        if isinstance(result, Handed):
            handed = replace(run, handed=result)
            world = self._next_run(replace(world, runs=_put(world.runs, actor.run, handed)), actor.run + 1)
            return self.process(world, actor.run)
        if result == "acked":
            return self.commit(world, actor.run)
        if result == "failed":
            return self.process(world, actor.run)  # somebody clears the failed task
        if result in ("withdrawn", "back"):
            return self.begin(world, actor.run, retry=False)
        if result == "skipped":
            world = self._next_run(world, actor.run + 1)
        return replace(world, runs=_put(world.runs, actor.run, replace(run, stage="green", live=None)))

    def _found(self, world: World, number: int) -> World:
        """A coordinator has a transaction for a run that has not begun."""
        if number >= 0 and world.runs[number].stage in UNBEGUN:
            world = self.begin(world, number, retry=False)
        return self._coordinated(world)

    def _coordinated(self, world: World) -> World:
        """What a coordinator does that has just started: it goes by the records."""
        for number, run in enumerate(world.runs):
            record = world.record(number + 1)
            busy = any(actor.ident == run.live for actor in world.actors)
            if run.stage not in UNBEGUN or busy:
                continue
            if record is not None:
                world = self._spawn(world, number, "recover", (number + 1, record.attempt))
            elif world.allocated == number:
                world = self._spawn(world, number, "allocate", (self.shape,))
        return world

    def _next_run(self, world: World, run: int) -> World:
        if run < len(world.runs) and world.runs[run].stage == "new" and "ahead" not in self.shape.people:
            return self.begin(world, run, retry=False)
        return world

    def _died(self, world: World, actor: Actor, error: type[TxError]) -> World:
        if issubclass(error, (StaleAttempt, StaleTry)):
            raise Violation(f"the newest {actor.stage} of run {actor.run} was refused by {error.__name__}")
        if issubclass(error, SkippedTransaction):
            world = self._next_run(world, actor.run + 1)
            return replace(
                world, runs=_put(world.runs, actor.run, replace(world.runs[actor.run], stage="green", live=None))
            )
        if issubclass(error, Refused) and error.__name__ != "Outranked":
            return self.begin(world, actor.run, retry=False)  # somebody clears the failed run
        if actor.stage in ("commit", "yield"):
            return self.commit(world, actor.run)  # Airflow retries
        return self.begin(world, actor.run, retry=False)

    # --- what a process does ----------------------------------------------------------------------------------

    def enabled(self, world: World, actor: Actor) -> bool:
        call = actor.place.call
        assert call is not None
        return bool(call[0] != "turn" or world.current >= call[1])

    def act(self, world: World, actor: Actor, *, lost: str = "") -> World:
        """The actor's next call and its reply. `lost`: "done" or "not done", without an answer."""
        call = actor.place.call
        assert call is not None
        if call[0] == "current":
            reply = Reply(world.runs[actor.run].live == actor.ident)
        elif lost != "not done":
            world, reply = self._call(world, call)
        if lost:
            paths = ", ".join(sorted(write.path for write in call[2]))
            reply = Reply.of_error(OutcomeUnknown(paths=paths, reason="lost"))
        place = self._read_on(world, self.machine.resume(actor.place, reply))
        moved = replace(actor, place=place)
        world = replace(world, actors=tuple(moved if a.ident == actor.ident else a for a in world.actors))
        return self._ended(world, moved) if place.outcome is not None else world

    def _read_on(self, world: World, place: Place) -> Place:
        """With `eager`, a process reads as soon as it can; see the explorer for why nothing is lost."""
        while self.eager and place.call is not None and _only_reads(place.call):
            place = self.machine.resume(place, self._call(world, place.call)[1])
        return place

    def settled(self, world: World) -> World:
        """Every call that can only be refused has been: versions and fences never come back, so any time will do."""
        if not self.eager:
            return world
        for actor in world.actors:
            if actor.place.call is not None and self._doomed(world, actor.place.call):
                return self.settled(self.act(world, actor))
        return world

    def _doomed(self, world: World, call: tuple[Any, ...]) -> bool:
        if call[0] == "multi":
            nodes = world.nodes
            required = [r for r in call[1] if isinstance(r, Unchanged)]
            return any(r.path not in nodes or nodes[r.path].version != r.version for r in required)
        return call[0] in ("raise", "write") and self._call(world, call)[1].refused_by(FenceOutranked)

    def _call(self, world: World, call: tuple[Any, ...]) -> tuple[World, Reply]:
        kind = call[0]
        if kind == "get":
            return world, Reply(world.nodes.get(call[1]))
        if kind == "turn":
            return world, Reply()
        if kind in ("raise", "write"):
            return self._state_call(world, call)
        self.store.nodes = world.nodes
        if kind == "children":
            return world, Reply(self.store.children(call[1]))
        try:
            self.store.multi(call[1], call[2])
        except TxError as error:
            return world, Reply.of_error(error)
        after = replace(world, nodes=self.store.nodes, store_key=_store_key(self.store.nodes))
        if after.current not in (world.current, world.current + 1):
            raise Violation(f"current went from {world.current} to {after.current}")
        if after.current > world.current:
            after = _final(world, after)
        return after, Reply()

    def _state_call(self, world: World, call: tuple[Any, ...]) -> tuple[World, Reply]:
        kind, index, grant = call[:3]
        database = MemoryDatabase()
        database.restore(world.states[index])
        state = MemoryState(f"s{index}", keys=["key"], values={"n": Sum()}, database=database)
        raised = world.raised
        try:
            if kind == "raise":
                state.raise_fence(grant)
                raised = _put(raised, index, max(raised[index] or grant.token.rank, grant.token.rank))
            else:
                state.write(grant, [{"key": call[3], "n": call[4]}] if call[3] else [])
        except TxError as error:
            return world, Reply.of_error(error)
        if kind == "write" and raised[index] is not None and grant.token.rank < raised[index]:
            raise Violation(f"token {grant.token} wrote to s{index}, which had seen {raised[index]}")
        return replace(world, states=_put(world.states, index, database.snapshot()), raised=raised), Reply()

    # --- disruptions ------------------------------------------------------------------------------------------

    def disruptions(self, world: World, run: int) -> Iterator[Step]:
        """What people and machines may do to a run now, each for one of the budget."""
        state = world.runs[run]
        if state.stage == "new":
            return
        yield from self._readmissions(world, run)
        if not world.budget:
            return
        spent = replace(world, budget=world.budget - 1)
        if state.stage in UNBEGUN:
            yield from self._coordinators(spent, run)
            return
        yield from self._skips(spent, run)
        yield from self._yields(spent, run)
        yield f"run {run}: clear the run", self.begin(spent, run, retry=False)
        if state.handed is not None and state.stage in ("process", "commit", "green"):
            yield f"run {run}: clear p", self.process(spent, run)
        if state.handed is not None and state.stage == "green":
            yield f"run {run}: clear commit", self.commit(spent, run)
        if self.shape.clears_only or state.live is None:
            return
        yield from self._crashes(spent, run, next(a for a in world.actors if a.ident == state.live))

    def _readmissions(self, world: World, run: int) -> Iterator[Step]:
        """Without a price: who has skipped may want it back."""
        txid = world.bound(run)
        found = world.skipped(txid)
        if "skip" in self.shape.people and found is not None and world.runs[run].stage == "green":
            if not any(actor.run == run and actor.stage == "readmit" for actor in world.actors):
                yield f"run {run}: readmit {txid}", self._aside(world, run, "readmit", (txid,))

    def _skips(self, spent: World, run: int) -> Iterator[Step]:
        txid = spent.bound(run)
        record = spent.record(txid)
        if record is not None and "skip" in self.shape.people and record.skip is None:
            yield f"run {run}: skip {txid}", self._aside(spent, run, "skip", (self.shape, txid))
        if record is not None and "withdraw" in self.shape.people and record.skip is not None:
            yield f"run {run}: withdraw the skip of {txid}", self._aside(spent, run, "withdraw", (txid,))
        if self.shape.clears_only:
            return
        for actor in spent.actors:
            if actor.run == run and actor.stage in ("skip", "readmit", "withdraw"):
                without = tuple(a for a in spent.actors if a.ident != actor.ident)
                yield f"run {run}: {actor.stage} dies", replace(spent, actors=without)
                yield from self._lost(spent, run, actor)

    def _coordinators(self, spent: World, run: int) -> Iterator[Step]:
        for actor in spent.actors:
            if actor.run == run and actor.ident == spent.runs[run].live:
                without = replace(spent, actors=tuple(a for a in spent.actors if a.ident != actor.ident))
                yield f"run {run}: the coordinator dies", self._coordinated(without)
                unled = replace(spent, runs=_put(spent.runs, run, replace(spent.runs[run], live=None)))
                yield f"run {run}: another coordinator", self._coordinated(unled)
                yield from self._lost(spent, run, actor)

    def _yields(self, spent: World, run: int) -> Iterator[Step]:
        live = next((actor for actor in spent.actors if actor.ident == spent.runs[run].live), None)
        txid = spent.bound(run)
        if "yield" not in self.shape.people or live is None or live.stage != "commit" or txid is None:
            return
        if live.place.call is not None and live.place.call[0] == "turn" and not self.enabled(spent, live):
            without = replace(spent, actors=tuple(a for a in spent.actors if a.ident != live.ident))
            own = f"{spent.runs[run].tries:04d}"
            yield f"run {run}: yields", self._spawn(without, run, "yield", (run, txid, spent.current, own))

    def _aside(self, world: World, run: int, program: str, arguments: tuple[Any, ...]) -> World:
        """A process of a person, beside the tasks of the run."""
        place = self._read_on(world, self.machine.spawn((program, f"{run}{program}{world.budget}", *arguments)))
        actor = Actor(world.spawned, run, program, place)
        after = replace(world, actors=(*world.actors, actor), spawned=world.spawned + 1)
        return self._ended(after, actor) if place.outcome is not None else after

    def _lost(self, spent: World, run: int, actor: Actor) -> Iterator[Step]:
        call = actor.place.call
        if call is not None and call[0] == "multi":
            yield f"run {run}: {actor.stage} loses a reply", self.act(spent, actor, lost="done")
            yield f"run {run}: {actor.stage} loses a request", self.act(spent, actor, lost="not done")

    def _crashes(self, spent: World, run: int, actor: Actor) -> Iterator[Step]:
        if actor.stage == "begin":
            yield f"run {run}: begin is retried", self.begin(spent, run, retry=True)
        elif actor.stage == "process":
            yield f"run {run}: p is retried", self.process(spent, run)
            without = replace(spent, actors=tuple(a for a in spent.actors if a.ident != actor.ident))
            yield f"run {run}: p fails", self.process(without, run, fails=True)
        elif actor.stage == "commit":
            yield f"run {run}: commit is retried", self.commit(spent, run)
        yield from self._lost(spent, run, actor)

    # --- promises ---------------------------------------------------------------------------------------------

    def ending(self, world: World) -> Any:
        """What people would see of a world at rest: attempts and rows of every transaction, and the stored values."""
        histories = [
            decode(History, path, node.data)
            for path, node in world.nodes.items()
            if path.startswith(PATHS.histories + "/")
        ]
        values = [[(key, stored.value) for key, stored in rows if stored.value is not None] for _, rows in world.states]
        return frozenset((h.txid, h.attempts, h.rows) for h in histories), tuple(frozenset(found) for found in values)

    def check(self, world: World) -> None:
        """Whatever must hold in every world in which all runs are final, zombies about or not.

        :raises Violation: it does not.
        """
        if any(run.stage != "green" for run in world.runs):
            return
        last = world.current - 1
        if last != world.allocated or last < len(world.runs):
            raise Violation(f"all {len(world.runs)} runs are final, and {last} of {world.allocated} transactions")
        end = _position(world, last)
        counted = world.counted()
        rows = sorted(final.rows for final in counted if final.rows[0] < final.rows[1])
        if [row for low, high in rows for row in range(low, high)] != list(range(end)):
            raise Violation(f"of {end} rows these are in a committed or skipped batch: {rows}")
        found = dict.fromkeys(KEYS, 0)
        for index, snapshot in enumerate(world.states):
            database = MemoryDatabase()
            database.restore(snapshot)
            for row in MemoryState(f"s{index}", keys=["key"], values={"n": Sum()}, database=database).read():
                found[row["key"]] += row["n"]
        committed = [row for final in counted if not final.skipped for row in range(*final.rows)]
        expected = {"even": sum(row % 2 == 0 for row in committed), "odd": sum(row % 2 for row in committed)}
        if found != expected:
            raise Violation(f"rows {committed} were committed: expected {expected}, found {found}")


def _final(before: World, after: World) -> World:
    """One transaction more is final: whoever reads the book later does not ask the ledger."""
    txid = before.current
    rows = decode(Metadata, "", before.nodes[PATHS.meta(txid)].data).rows
    final = Final(txid, PATHS.skipped(txid) in after.nodes, (0, 0) if rows is None else (rows[0], rows[1]))
    if not final.skipped:
        _check_mark(before)
    elif (record := before.record(txid)) is None or record.skip is None:
        raise Violation(f"transaction {txid} was skipped, and nobody wanted it")
    taken = [row for other in after.counted() for row in range(*other.rows)]
    if set(taken) & set(range(*final.rows)):
        raise Violation(f"transaction {txid} has rows {final.rows}, of which others were final before")
    return replace(after, book=(*before.book, final))


def _check_mark(world: World) -> None:
    """What is being committed is what the newest try of every task has acked."""
    record = world.record(world.current)
    assert record is not None
    folder = PATHS.acks(world.current, record.acks) + "/"
    for path, node in world.nodes.items():
        if path.startswith(folder):
            entry = decode(Ack, path, node.data)
            if not entry.done or entry.outputs[-1] != entry.task_try:
                raise Violation(f"transaction {world.current} commits, and {path} has not acked")


def _only_reads(call: tuple[Any, ...]) -> bool:
    return call[0] in ("get", "children") or (call[0] == "multi" and not call[2])


def _position(world: World, txid: int) -> int:
    return int(decode(Metadata, PATHS.meta(txid), world.nodes[PATHS.meta(txid)].data).position)


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _store_key(nodes: dict[str, Any]) -> int:
    return hash(frozenset(nodes.items()))


__all__ = ["EPOCH", "Actor", "Rules", "Run", "Step", "Violation", "World"]
