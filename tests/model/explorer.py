"""Walks through every world that can be reached, calls of different processes in every order that can matter.

Two calls that touch nothing in common give the same world in either order. So where all next calls of one run touch
only what no other run can touch before this one moves, the others wait (a persistent set); nothing is lost, because no
process waits for ever and a disruption of another run can follow as well as precede.

A process reads as soon as its last write is answered, and may then be held up for as long as one likes before the write
that follows (`eager`). Reading later gives nothing new: every multi checks all that was read and every answer is
confirmed by such a multi, so a late reader does what an early one does whose multi is refused and which reads again.
What is read of an output is compared with what was acked, and how a committer waits for its turn does not tell what it
does then. `eager=False` takes every read as a step of its own; both end in the same worlds (test_exploration).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.model import product, promises
from tests.model.disruptions import Rules, Step
from tests.model.shapes import PATHS, Shape
from tests.model.world import Actor, Violation, World

SHARED = (PATHS.current, PATHS.record)
TXIDS = range(1, 9)
COMMITTERS = ("commit", "acquire")


@dataclass(frozen=True)
class Report:
    """What an exploration saw.

    :param torn: in how many worlds a reader sees a transaction in one state and not in another one.
    """

    shape: Shape
    worlds: int
    steps: int
    finals: int
    seconds: float
    endings: frozenset[Any] = frozenset()
    torn: int = 0

    def __str__(self) -> str:
        return (
            f"{self.shape}: {self.worlds:,} states, {self.torn:,} torn, {self.steps:,} steps, {self.finals:,} final, "
            f"{self.seconds:.1f} s"
        )


def explore(shape: Shape, *, most: int | None = None, reduce: bool = True, eager: bool = True) -> Report:
    """Visit every reachable world and check it.

    :param most: stop after so many worlds (a bounded search for mutants).
    :raises Violation: with its trail.
    """
    with product.installed():
        return _explore(Rules(shape, eager=eager), most, reduce)


def _explore(rules: Rules, most: int | None, reduce: bool) -> Report:
    began = time.process_time()
    first = rules.first()
    seen = {first.key}
    stack: list[tuple[World, tuple[Any, ...] | None]] = [(first, None)]
    endings: set[Any] = set()
    before: dict[int, list[int]] = {}
    ends: list[int] = []
    steps = torn = 0
    while stack and (most is None or len(seen) < most):
        world, trail = stack.pop()
        try:
            following = successors(rules, world, reduce=reduce)
            steps += len(following)
            refused = any(run.stage == "refused" for run in world.runs)
            if not world.actors and (refused or world.allocated < world.current):
                ends.append(world.key)
                endings.add(promises.ending(world))
            for label, reached in following:
                after = rules.settled(reached)
                before.setdefault(after.key, []).append(world.key)
                if after.key not in seen:
                    seen.add(after.key)
                    stack.append((after, (label, trail)))
                    torn += promises.is_torn(rules.shape, after)
                    promises.check_together(rules.shape, after)
                    promises.check_outputs(rules.shape, after)
                    promises.check(rules.shape, after)
        except Violation as violation:
            violation.trail = _unroll(trail)
            raise
    if not stack:
        _check_ends(seen, before, ends)
    return Report(rules.shape, len(seen), steps, len(ends), time.process_time() - began, frozenset(endings), torn)


def _check_ends(seen: set[int], before: dict[int, list[int]], ends: list[int]) -> None:
    """Wherever one is, an end can be reached: nobody goes in circles for ever."""
    reached, left = set(ends), list(ends)
    while left:
        for each in before.get(left.pop(), ()):
            if each not in reached:
                reached.add(each)
                left.append(each)
    if len(reached) < len(seen):
        raise Violation(f"from {len(seen) - len(reached)} of {len(seen)} worlds no end can be reached")


def successors(rules: Rules, world: World, *, reduce: bool = True) -> list[Step]:
    """What can happen next; of one run alone, where the others cannot notice."""
    runs = range(len(world.runs))
    # A run whose transaction is committed may have another one: what it can touch then is not worked out.
    alone = not rules.shape.led and "lane" not in rules.shape.people
    if reduce and alone and (len(runs) == 1 or not rules.shape.restates):
        for run in runs:
            if _alone(rules, world, run):
                return _moves(rules, world, run)
    moves = [step for run in (-1, *runs) for step in _moves(rules, world, run)]
    if not any(rules.enabled(world, actor) for actor in world.actors):
        _check_stuck(rules, world, moves)
    return moves


def _check_stuck(rules: Rules, world: World, moves: list[Step]) -> None:
    """What goes on by itself, or by the hands of people who see to what has failed, is not stuck."""
    stuck = [run.number for run in world.runs if run.stage not in ("green", "refused")]
    if stuck and not any(each.budget == world.budget for _, each in moves):
        raise Violation(f"nothing can go on, and runs {stuck} are not final")


def _moves(rules: Rules, world: World, run: int) -> list[Step]:
    moves = []
    for actor in world.actors:
        if actor.run == run and rules.enabled(world, actor):
            call = actor.place.call
            assert call is not None
            moves.append((f"run {run} {actor.task}#{actor.ident}: {_word(call)}", rules.act(world, actor)))
    return [*moves, *rules.marked(world, run), *rules.disruptions(world, run)]


def _alone(rules: Rules, world: World, run: int) -> bool:
    own = [actor for actor in world.actors if actor.run == run]
    if not own or not all(rules.enabled(world, actor) for actor in own):
        return False
    others = [_may_touch(rules.shape, world, run, other) for other in range(len(world.runs)) if other != run]
    return all(_apart(world, actor, reads, writes) for actor in own for reads, writes in others)


def _apart(world: World, actor: Actor, reads: frozenset[str], writes: frozenset[str]) -> bool:
    mine_read, mine_written = _touches(world, actor)
    return not (mine_read & writes or mine_written & (reads | writes))


def _touches(world: World, actor: Actor) -> tuple[set[str], set[str]]:
    call = actor.place.call
    assert call is not None
    kind = call[0]
    if kind in ("get", "children"):
        return {call[1]}, set()
    if kind in ("versions", "wait"):
        return set(call[1]), set()
    if kind == "defer":
        before = range(max(call[2] - 2, 1), call[2] + 1) if call[1] == "turn" else ()
        lines = {path(txid) for txid in before for path in (PATHS.transaction, world.acks)}
        return {PATHS.current, PATHS.allocated, *lines}, set()
    if kind == "write":
        return set(), {f"state {work.number}" for work in call[1]}
    if kind in ("fence", "holds", "multi_get", "clear"):
        return set(), {f"state {call[1]}"}
    if kind == "multi":
        return {requirement.path for requirement in call[1]}, {write.path for write in call[2]}
    return ({"airflow"}, {"airflow"}) if kind in ("run", "start_run") else (set(), set())


def _may_touch(shape: Shape, world: World, run: int, other: int) -> tuple[frozenset[str], frozenset[str]]:
    """What another run may read and write before this one moves, beyond what is its own alone."""
    mine, theirs = world.bound(shape, run), world.bound(shape, other)
    acting = [actor for actor in world.actors if actor.run == other]
    # Whoever skips, withdraws or yields writes the topology record, in or out of turn, and may start runs.
    people = {PATHS.record, "airflow"} if shape.people else set()
    if world.runs[other].stage == "green" and not acting:
        if world.skipped(theirs) is None:
            return frozenset(SHARED), frozenset()
        theirs = None  # re-admitted, it would be allocated anew
    reads = {*SHARED, PATHS.allocated, *map(PATHS.meta, TXIDS)}
    if mine is not None and any(actor.task in COMMITTERS for actor in acting):
        reads |= {PATHS.transaction(mine), world.acks(mine)}
    own = set() if theirs is None else {PATHS.transaction(theirs), world.acks(theirs)}
    held_up = mine is not None and mine >= world.current and (theirs is None or theirs > mine)
    if not held_up:
        states = {f"state {index}" for index in range(shape.states)}
        return frozenset(reads), frozenset({*reads, *states, *people, *own, *map(PATHS.history, TXIDS)})
    reads -= {PATHS.meta(txid) for txid in TXIDS if theirs is not None and txid not in (theirs - 1, theirs)}
    if theirs is not None:
        return frozenset(reads), frozenset({PATHS.meta(theirs), *people, *own})
    new = {PATHS.meta(txid) for txid in TXIDS[world.allocated :]}
    return frozenset(reads), frozenset({PATHS.allocated, *people, *new})


def _word(call: tuple[Any, ...]) -> str:
    if call[0] == "multi":
        return "multi " + ", ".join(f"{type(write).__name__} {write.path}" for write in call[2])
    if call[0] == "write":
        return "write " + ", ".join(map(str, call[1]))
    return " ".join(str(part) for part in call)


def _unroll(trail: tuple[Any, ...] | None) -> list[str]:
    labels = []
    while trail is not None:
        labels.append(trail[0])
        trail = trail[1]
    return labels[::-1]
