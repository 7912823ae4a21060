"""Walks through every world that can be reached, calls of different processes in every order that can matter.

Two calls that touch nothing in common give the same world in either order. So where all next calls of one run touch
only what no other run can touch before this one moves, the others wait (a persistent set); nothing is lost, because no
process waits for ever and a disruption of another run can follow as well as precede.

A process reads as soon as its last write is answered, and may then be held up for as long as one likes before the write
that follows (`eager`). Reading later gives nothing new: every multi checks all that was read and every answer is
confirmed by such a multi, so a late reader does what an early one does whose multi is refused and which reads again.
`eager=False` takes every read as a step of its own; both end in the same worlds (test_exploration).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.model.programs import PATHS, Shape
from tests.model.world import Actor, Rules, Step, Violation, World

SHARED = (PATHS.current, PATHS.record)
TXIDS = range(1, 9)


@dataclass(frozen=True)
class Report:
    """What an exploration saw."""

    shape: Shape
    worlds: int
    steps: int
    finals: int
    seconds: float
    endings: frozenset[Any] = frozenset()

    def __str__(self) -> str:
        return (
            f"{self.shape}: {self.worlds:,} states, {self.steps:,} steps, {self.finals:,} final, {self.seconds:.1f} s"
        )


def explore(shape: Shape, *, most: int | None = None, reduce: bool = True, eager: bool = True) -> Report:
    """Visit every reachable world and check it.

    :param most: stop after so many worlds (a bounded search for mutants).
    :raises Violation: with its trail.
    """
    rules = Rules(shape, eager=eager)
    began = time.monotonic()
    first = rules.first()
    seen = {first.key}
    stack: list[tuple[World, tuple[Any, ...] | None]] = [(first, None)]
    endings: set[Any] = set()
    steps = finals = 0
    while stack and (most is None or len(seen) < most):
        world, trail = stack.pop()
        try:
            following = successors(rules, world, reduce=reduce)
            steps += len(following)
            if not world.actors:
                finals += 1
                endings.add(rules.ending(world))
            for label, reached in following:
                after = rules.settled(reached)
                if after.key not in seen:
                    seen.add(after.key)
                    stack.append((after, (label, trail)))
                    rules.check(after)
        except Violation as violation:
            violation.trail = _unroll(trail)
            raise
    return Report(shape, len(seen), steps, finals, time.monotonic() - began, frozenset(endings))


def successors(rules: Rules, world: World, *, reduce: bool = True) -> list[Step]:
    """What can happen next; of one run alone, where the others cannot notice."""
    if reduce:
        for run in range(len(world.runs)):
            if _alone(rules, world, run):
                return _moves(rules, world, run)
    moves = [step for run in range(len(world.runs)) for step in _moves(rules, world, run)]
    if not moves or not any(rules.enabled(world, actor) for actor in world.actors):
        _check_stuck(rules, world)
    return moves


def _check_stuck(rules: Rules, world: World) -> None:
    stuck = [run.number for run in world.runs if run.stage != "green"]
    if stuck:
        raise Violation(f"nothing can go on, and runs {stuck} are not final")


def _moves(rules: Rules, world: World, run: int) -> list[Step]:
    moves = []
    for actor in world.actors:
        if actor.run == run and rules.enabled(world, actor):
            call = actor.place.call
            assert call is not None
            moves.append((f"run {run} {actor.stage}#{actor.ident}: {_word(call)}", rules.act(world, actor)))
    return [*moves, *rules.disruptions(world, run)]


def _alone(rules: Rules, world: World, run: int) -> bool:
    own = [actor for actor in world.actors if actor.run == run]
    if not own or not all(rules.enabled(world, actor) for actor in own):
        return False
    others = [
        _may_touch(world, run, other, people_may_come=bool(rules.shape.people))
        for other in range(len(world.runs))
        if other != run
    ]
    return all(_apart(actor, reads, writes) for actor in own for reads, writes in others)


def _apart(actor: Actor, reads: frozenset[str], writes: frozenset[str]) -> bool:
    mine_read, mine_written = _touches(actor)
    return not (mine_read & writes or mine_written & (reads | writes))


def _touches(actor: Actor) -> tuple[set[str], set[str]]:
    call = actor.place.call
    assert call is not None
    if call[0] in ("get", "children"):
        return {call[1]}, set()
    if call[0] == "turn":
        return {PATHS.current}, set()
    if call[0] == "current":
        return set(), set()  # Airflow's answer: of the same run
    if call[0] in ("raise", "write"):
        return set(), {f"state {call[1]}"}
    return {requirement.path for requirement in call[1]}, {write.path for write in call[2]}


def _may_touch(world: World, run: int, other: int, *, people_may_come: bool) -> tuple[frozenset[str], frozenset[str]]:
    """What another run may read and write before this one moves, beyond what is its own alone."""
    mine, theirs = world.bound(run), world.bound(other)
    busy = any(actor.run == other for actor in world.actors)
    # Whoever skips, withdraws or yields writes the topology record, in or out of turn.
    people = {PATHS.record} if people_may_come else set()
    if world.runs[other].stage == "green" and not busy:
        if world.skipped(theirs) is None:
            return frozenset(SHARED), frozenset()
        theirs = None  # re-admitted, it would be allocated anew
    metas = {PATHS.meta(txid) for txid in TXIDS}
    reads = {*SHARED, PATHS.allocated, *metas}
    held_up = mine is not None and mine >= world.current and (theirs is None or theirs > mine)
    if any(actor.run == other and actor.stage == "allocate" for actor in world.actors):
        held_up = held_up and theirs is None  # which number it gets is not known
    if not held_up:
        return frozenset(reads), frozenset({*reads, "state 0", "state 1", *map(PATHS.history, TXIDS)})
    reads -= {PATHS.meta(txid) for txid in TXIDS if theirs is not None and txid not in (theirs - 1, theirs)}
    if theirs is not None:
        return frozenset(reads), frozenset({PATHS.meta(theirs), *people})
    return frozenset(reads), frozenset(
        {PATHS.allocated, *people, *(PATHS.meta(txid) for txid in TXIDS[world.allocated :])}
    )


def _word(call: tuple[Any, ...]) -> str:
    if call[0] == "multi":
        return "multi " + ", ".join(f"{type(write).__name__} {write.path}" for write in call[2])
    return " ".join(str(part) for part in call)


def _unroll(trail: tuple[Any, ...] | None) -> list[str]:
    labels = []
    while trail is not None:
        labels.append(trail[0])
        trail = trail[1]
    return labels[::-1]
