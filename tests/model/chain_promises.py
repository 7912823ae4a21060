"""The promises of chains, in every order: at rest a table equals a recomputation; a commit has the rows of its ends."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from tests.model.chains import (
    FINAL,
    NAMES,
    NONE_LEFT,
    RIGHT,
    SKIPPED,
    Place,
    Range,
    Rows,
    Rules,
    Shape,
    Stage,
    Step,
    World,
    ends_of,
    has_gone_back,
    plus,
    rows_of,
    steps,
)

# --- promises -----------------------------------------------------------------------------------------------------

MANY = 12
"""More transactions than any stage needs."""


def wrong_commit(step: Step, world: World) -> str:
    """Say what is wrong with what a step has written; "": nothing."""
    if step.what != "write" or not step.stage:
        return ""
    each = world.stages[step.stage].of(step.txid)
    up = world.stages[step.stage - 1]
    if up.life:
        # D may have read what U has lost since.
        return ""
    wanted = rows_of(up, each.ends)
    return "" if each.rows == wanted else f"{step} has rows that its ends never had together"


class Rest:
    """Runs worlds to rest and judges them; what it has judged it remembers."""

    def __init__(self, shape: Shape, rules: Rules) -> None:
        self._shape, self._rules = shape, rules
        self._known: dict[tuple[Stage, ...], str] = {}

    def wrong(self, world: World) -> str:
        """Say what is wrong once nothing disturbs the stages any more; "": nothing."""
        passed: dict[tuple[Stage, ...], None] = {}
        at = world._replace(left=NONE_LEFT, backup=None)
        while (found := self._known.get(at.stages)) is None:
            if at.stages in passed:
                found = "it never comes to rest"
                break
            passed[at.stages] = None
            move = next(steps(at, self._shape, self._rules), None)
            if move is None:
                found = self._at_rest(at)
                break
            step, at = move
            if found := wrong_commit(step, at):
                break
            if any(len(stage.transactions) > MANY for stage in at.stages):
                found = "it restates again and again"
                break
        self._known.update(dict.fromkeys(passed, found))
        return found

    def _at_rest(self, world: World) -> str:
        for at in range(1, len(world.stages)):
            if has_gone_back(Place(world, at, self._shape, self._rules)):
                return ""
            if found := _differs(world.stages[at - 1], world.stages[at], self._shape):
                return f"{NAMES[at]}: {found}"
        return ""


def _differs(up: Stage, stage: Stage, shape: Shape) -> str:
    """Compare a stage at rest with a recomputation over the table of the one before it, without the book of ends."""
    if stage.open():
        return f"{stage.current} stands still"
    wanted = plus(up.of(txid).rows for txid in up.table)
    for each in stage.transactions:
        truth = _truth(up, each.range)
        if each.phase == SKIPPED and not each.replaces:
            wanted = _without(wanted, truth)
    for first, noted in stage.behind:
        line = stage.of(stage.of(first).end)
        if noted != ends_of(up, line.range, RIGHT):
            return f"{first} lacks other corrections than those that are noted"
        if not _is_in_vain(stage, first, shape):
            return f"{first} is noted as behind, and nothing was tried"
        wanted = plus((_without(wanted, _truth(up, line.range)), line.rows))
    rows = plus(stage.of(txid).rows for txid in stage.table)
    if rows != wanted:
        return f"it has {_shown(rows)} instead of {_shown(wanted)}"
    return ""


def _is_in_vain(stage: Stage, first: int, shape: Shape) -> bool:
    """Whether a restatement was skipped, or its request withdrawn, or refused."""
    tried = any(each.first == first and each.phase == SKIPPED for each in stage.transactions)
    return tried or first == shape.over or shape.budget.withdrawn > 0


def _without(some: Rows, others: Rows) -> Rows:
    return some[0] - others[0], some[1] - others[1]


def _truth(up: Stage, taken: Range) -> Rows:
    """Give what a range contributes, by what each transaction replaces."""
    found: list[Rows] = []
    for txid in range(taken[0], min(taken[1] + 1, up.current)):
        if up.of(txid).phase != FINAL or up.of(txid).replaces:
            continue
        end = txid
        for later, each in up.numbered():
            if each.phase == FINAL and each.replaces == end:
                end = later
        found.append(up.of(end).rows)
    return plus(found)


def _shown(rows: Rows) -> str:
    return " and ".join(f"{half:x}"[::-1] if half >= 0 else f"-{-half:x}"[::-1] for half in rows)


# --- exploration --------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What an exploration saw.

    :param wrong: what ends wrong; "": nothing. `path`: the shortest way there.
    """

    worlds: int = 0
    wrong: str = ""
    path: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        """Write the way and what it leads to."""
        return f"{self.worlds} worlds: {spelled(self.path)} -> {self.wrong or 'none ends wrong'}"


def spelled(path: Iterable[Step]) -> str:
    """Write steps as a person reads them: `U: begin 1, write 1; D: follow`."""
    by_stage = groupby(path, key=lambda step: step.stage)
    return "; ".join(f"{NAMES[at]}: {', '.join(map(str, some))}" for at, some in by_stage)


def spelled_out(path: str) -> Iterator[Step]:
    """Read steps that are written as `spelled` writes them."""
    for part in filter(None, path.split("; ")):
        name, _, some = part.partition(": ")
        for named in some.split(", "):
            what, _, txid = named.rpartition(" ")
            has_txid = bool(what) and txid.isdecimal()
            yield Step(NAMES.index(name), what if has_txid else named, int(txid) if has_txid else 0)


def explore(shape: Shape, rules: Rules = RIGHT) -> Found:
    """Let everything happen in every order, until a world ends wrong."""
    start = World.first(shape)
    rest = Rest(shape, rules)
    known: dict[World, tuple[World, Step] | None] = {start: None}
    to_do = deque([start])
    while to_do:
        world = to_do.popleft()
        for step, then in steps(world, shape, rules):
            if then in known:
                continue
            known[then] = (world, step)
            if wrong := wrong_commit(step, then) or rest.wrong(then):
                return Found(len(known), wrong, [*_path(known, then), *_to_rest(then, shape, rules)])
            to_do.append(then)
    return Found(len(known))


def _path(known: dict[World, tuple[World, Step] | None], world: World) -> list[Step]:
    path: list[Step] = []
    while (before := known[world]) is not None:
        world, step = before
        path.append(step)
    return path[::-1]


def _to_rest(world: World, shape: Shape, rules: Rules) -> list[Step]:
    """Give the steps that bring a world to rest, up to what is wrong."""
    path: list[Step] = []
    world = world._replace(left=NONE_LEFT, backup=None)
    while len(path) < MANY and (move := next(steps(world, shape, rules), None)):
        step, world = move
        path.append(step)
        if wrong_commit(step, world):
            break
    return path


def ways(shape: Shape) -> Iterator[list[Step]]:
    """Give the shortest way to each world, apart from those that a longer one passes."""
    known: dict[World, tuple[World, Step] | None] = {World.first(shape): None}
    to_do = deque(known)
    while to_do:
        world = to_do.popleft()
        is_last = True
        for step, then in steps(world, shape, RIGHT):
            if then not in known:
                known[then] = (world, step)
                to_do.append(then)
                is_last = False
        if is_last:
            yield _path(known, world)


def walk(shape: Shape, rules: Rules, seed: int, length: int) -> Found:
    """Let things happen in an order that the seed decides, and then run to rest."""
    choice = random.Random(seed)
    world = World.first(shape)
    found = Found()
    for _ in range(length):
        moves = list(steps(world, shape, rules))
        if not moves:
            break
        step, world = choice.choice(moves)
        found.path.append(step)
        if wrong := wrong_commit(step, world):
            found.wrong = wrong
            return found
    found.worlds = len(found.path)
    found.wrong = Rest(shape, rules).wrong(world)
    return found


def after(shape: Shape, path: str, rules: Rules = RIGHT) -> World:
    """Give the world after steps that are written as `spelled` writes them.

    :raises LookupError: a step cannot be made.
    """
    world = World.first(shape)
    for step in spelled_out(path):
        possible = dict(steps(world, shape, rules))
        if step not in possible:
            raise LookupError(f"{spelled([step])!r} is none of {spelled(possible)}")
        world = possible[step]
    return world


def possible_in(world: World, shape: Shape, rules: Rules = RIGHT) -> dict[str, World]:
    """Give the next steps, as they are written alone, with the world after each."""
    return {spelled([step]): then for step, then in steps(world, shape, rules)}
