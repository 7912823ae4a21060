"""One moment as a model: transaction 7 with attempts 1 and 2, then 8; states A and B in one database, C in another one.

A plan says what an attempt does in which store transaction. Each is atomic, a process may stop between any two, and go
on later as a zombie. A reader looks at A and B at any time, in one transaction of their database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

STATES = "ABC"
TOGETHER = "AB"
"""The states of one database."""
NEXT = 8
"""The transaction after the one that has two attempts. As a fence: it holds the state."""
FRESH = 3
"""An attempt that nobody has made yet: what a person can still do."""

TORN = "torn"
"""A reader sees the rows of a transaction in A and not in B, or the other way round."""
INEXACT = "inexact"
"""What was marked is not what the states hold."""
DEAD_END = "dead end"
"""No later attempt can commit."""
WROTE = "wrote though refused"
"""A state has rows of an attempt that another state had refused at its raise."""

Operation = tuple[str, str]
"""What is done to a state: a raise, a write, or a write without a look at the fence."""
MARK: tuple[Operation, ...] = ()
Plan = tuple[tuple[Operation, ...], ...]
"""Store transactions of an attempt, in their order, and the mark."""


class Refused(Exception):
    """A state refuses what an attempt does: its store transaction changes nothing."""


class Store(NamedTuple):
    """One state.

    :param fence: the attempt that holds it, `NEXT`, or 0: transaction 6 is final.
    :param row: the attempt of 7 whose rows it has; of a transactional state, their output.
    :param old: whether it has what a restated transaction has contributed.
    :param output: of a transactional state, what its fence says.
    :param next: whether it has rows of 8.
    """

    fence: int = 0
    row: int = 0
    old: bool = True
    output: int = 0
    next: bool = False


class World(NamedTuple):
    """Ledger, states and attempts at one time.

    :param granted: the newest attempt of 7; `marked`: the one that is final.
    :param places: of attempts 1 and 2 and of 8, how many store transactions are done; -1: it was refused.
    """

    granted: int = 1
    marked: int = 0
    places: tuple[int, ...] = (0, 0, 0)
    stores: tuple[Store, ...] = (Store(), Store(), Store())


@dataclass(frozen=True)
class Case:
    """What transaction 7 is about.

    :param kinds: of A, B and C: value, table, or transactional.
    :param second: the states for which attempt 2 has rows; attempt 1 has some for all.
    :param restates: whether it restates another transaction.
    :param other_output: whether the output of attempt 2 is another one.
    :param refused: attempt, what and state that is refused for its value; None: nothing.
    """

    kinds: tuple[str, str, str]
    second: str = STATES
    restates: bool = False
    other_output: bool = False
    refused: tuple[int, str, str] | None = None

    def kind(self, state: str) -> str:
        return self.kinds[STATES.index(state)]

    def gives(self, attempt: int, state: str) -> bool:
        return attempt != 2 or state in self.second

    def output(self, attempt: int) -> int:
        return 2 if attempt == 2 and self.other_output else 1


@dataclass(frozen=True)
class Rules:
    """What the states themselves do; the defaults are those of the product.

    :param rolls_back: the states that a raise rolls back.
    :param table_taken_out_at: when a table loses the rows of an attempt before.
    """

    rolls_back: str = STATES
    table_taken_out_at: str = "write"


RIGHT = Rules()


def every_case() -> Iterator[Case]:
    """Give all kinds, outputs, restatements and refusals."""
    refusals = (None, (1, "write", "B"), (1, "raise", "C"), (2, "write", "B"))
    kinds = product(("value", "table", "transactional"), repeat=3)
    rest = product(("ABC", "BC", "AC"), (False, True), (False, True), refusals)
    for (one, two, three), (second, restates, other, refused) in product(kinds, tuple(rest)):
        if "transactional" not in (one, two, three) or (second == STATES and not restates):
            yield Case((one, two, three), second, restates, other, refused)


# --- plans --------------------------------------------------------------------------------------------------------


def _raises(states: str) -> tuple[Operation, ...]:
    return tuple(("raise", state) for state in states)


def _writes(states: str, what: str = "write") -> tuple[Operation, ...]:
    return tuple((what, state) for state in states)


def _one_by_one(states: str) -> Plan:
    return (*map(_raises, states), *map(_writes, states), MARK)


def _moment(states: str) -> tuple[Operation, ...]:
    return _raises(states) + _writes(states)


PLANS: Mapping[str, Plan] = {
    "one by one": _one_by_one(STATES),
    "moment": (_raises("C"), _moment("AB"), _writes("C"), MARK),
    "moment after the other database": (_raises("AB"), _raises("C"), _writes("C"), _moment("AB"), MARK),
    "raise all, then write all": (_raises("AB"), _raises("C"), _writes("AB"), _writes("C"), MARK),
}
"""One by one was the plan until states of one database were written together. A phase raises all, then writes all."""

LACKING: Mapping[str, Plan] = {
    "no raise in the other database first": (_moment("AB"), _raises("C"), _writes("C"), MARK),
    "one fence for the group": (_raises("C"), (*_moment("A"), ("unfenced", "B")), _writes("C"), MARK),
    "DDL commits in the middle": (_raises("C"), _raises("AB") + _writes("A"), _writes("B"), _writes("C"), MARK),
    "a member begins again alone": (_raises("C"), _raises("AB") + _writes("A"), _moment("B"), _writes("C"), MARK),
    "marked after the moment": (_raises("C"), _moment("AB"), MARK, _writes("C")),
    "the moment trusts an earlier raise": (_raises("AB"), _raises("C"), _writes("AB", "unfenced"), _writes("C"), MARK),
    "a member is raised alone": (
        _raises("A"),
        _raises("C"),
        _raises("B") + _writes("AB"),
        _writes("C"),
        MARK,
    ),
}
"""Plans that lack a rule."""
ONLY_WITH_ROWS = "only states with rows"


def plan_of(name: str, case: Case, attempt: int) -> Plan:
    """Give the store transactions of an attempt."""
    if name == ONLY_WITH_ROWS:
        given = "".join(state for state in STATES if case.gives(attempt, state))
        members = "".join(state for state in TOGETHER if state in given)
        return (_raises("C"), _moment(members), _writes("C"), MARK)
    return {**PLANS, **LACKING}[name]


# --- steps --------------------------------------------------------------------------------------------------------


def operate(store: Store, operation: Operation, attempt: int, case: Case, rules: Rules) -> Store:
    """Do one thing to a state.

    :raises Refused: by its fence, or for its value.
    """
    what, state = operation
    if what == "raise":
        return _raised(store, state, attempt, case, rules)
    if what == "write" and store.fence != attempt:
        raise Refused("outranked")
    if (attempt, "write", state) == case.refused:
        raise Refused("value")
    if attempt == NEXT:
        return store._replace(next=True)
    kind, gives = case.kind(state), case.gives(attempt, state)
    if kind == "transactional":
        return store._replace(row=store.row or (case.output(attempt) if gives else 0))
    kept = 0 if kind == "table" else store.row
    return store._replace(row=attempt if gives else kept, old=not case.restates)


def _raised(store: Store, state: str, attempt: int, case: Case, rules: Rules) -> Store:
    if store.fence > attempt:
        raise Refused("outranked")
    if attempt == NEXT:
        if not store.fence:
            raise Refused("it lacks transaction 7")
        return store._replace(fence=NEXT)
    kind, output = case.kind(state), case.output(attempt)
    if kind == "transactional" and store.row and store.output != output:
        raise Refused("another output")
    if (attempt, "raise", state) == case.refused:
        raise Refused("value")
    raised = store._replace(fence=attempt, output=output)
    if store.fence in (0, attempt):
        return raised
    if kind == "value" and state in rules.rolls_back:
        return raised._replace(row=0, old=True)
    if kind == "table" and rules.table_taken_out_at == "raise" and not case.restates:
        return raised._replace(row=0)
    return raised


def _stepped(world: World, attempt: int, plan: Plan, case: Case, rules: Rules) -> World | None:
    """Let an attempt do its next store transaction; None: it is over, or was refused."""
    at = {1: 0, 2: 1, NEXT: 2}[attempt]
    place = world.places[at]
    if not 0 <= place < len(plan):
        return None
    if plan[place] == MARK:
        if attempt == NEXT:
            return _placed(world, at, place + 1)
        if world.granted != attempt or world.marked:
            return _placed(world, at, -1)
        return _placed(world, at, place + 1)._replace(marked=attempt)
    stores = dict(zip(STATES, world.stores, strict=True))
    try:
        for operation in plan[place]:
            stores[operation[1]] = operate(stores[operation[1]], operation, attempt, case, rules)
    except Refused:
        return _placed(world, at, -1)
    return _placed(world, at, place + 1)._replace(stores=tuple(stores.values()))


def _placed(world: World, at: int, place: int) -> World:
    return world._replace(places=(*world.places[:at], place, *world.places[at + 1 :]))


# --- promises -----------------------------------------------------------------------------------------------------


def _content(attempt: int, state: str, case: Case) -> tuple[int, bool]:
    """Rows and what was restated of a state as of an attempt; of 0: as before transaction 7."""
    if not attempt:
        return 0, True
    transactional = case.kind(state) == "transactional"
    row = case.output(attempt) if transactional else attempt
    return row if case.gives(attempt, state) else 0, transactional or not case.restates


def _holds(world: World, state: str, attempt: int, case: Case) -> bool:
    store = world.stores[STATES.index(state)]
    return (store.row, store.old) == _content(attempt, state, case)


def is_torn(world: World, case: Case) -> bool:
    """Whether no attempt is one that A and B both show, or one of them alone shows transaction 8."""
    one, other, _ = world.stores
    together = any(all(_holds(world, state, attempt, case) for state in TOGETHER) for attempt in (0, 1, 2))
    return not together or one.next != other.next


def _is_exact(world: World, case: Case, after: Plan) -> bool:
    if world.marked and not all(_holds(world, state, world.marked, case) for state in STATES):
        return False
    marks = after.index(MARK)
    return world.places[2] <= marks or all(store.next for store in world.stores)


def _wrote_though_refused(world: World, case: Case) -> bool:
    if case.refused is None or case.refused[1] != "raise":
        return False
    attempt = case.refused[0]
    # By its output alone an attempt is not known: another one may have the same.
    own = {"transactional": case.output(attempt) if case.other_output else -1}
    pairs = zip(world.stores, case.kinds, strict=True)
    return any(store.row == own.get(kind, attempt) for store, kind in pairs)


def _can_go_on(world: World, case: Case) -> bool:
    """Whether a fresh attempt can commit from here, with one of the outputs."""
    for output in {case.output(1), case.output(2)}:
        fresh = Case(case.kinds, restates=case.restates, refused=None)
        stores = dict(zip(STATES, world.stores, strict=True))
        try:
            for operation in (each for step in PLANS["moment"] for each in step):
                state = operation[1]
                given = stores[state] if output == 1 else _swapped(stores[state])
                stores[state] = operate(given, operation, FRESH, fresh, RIGHT)
        except Refused:
            continue
        return True
    return False


def _swapped(store: Store) -> Store:
    """Let the fresh attempt, whose output is 1, find its own where 2 was written."""
    return store._replace(output=3 - store.output if store.output else 0)


# --- exploration --------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What an exploration saw.

    :param torn: the worlds in which A and B are torn.
    :param broken: by promise, the first way to break it: who took the steps.
    """

    worlds: int = 0
    torn: list[World] = field(default_factory=list)
    broken: dict[str, tuple[object, ...]] = field(default_factory=dict)


def explore(case: Case, older: str, newer: str, rules: Rules = RIGHT) -> Found:
    """Let attempt 1 follow one plan, and attempt 2 and transaction 8 another, in every order."""
    plans = {1: plan_of(older, case, 1), 2: plan_of(newer, case, 2), NEXT: plan_of(newer, case, NEXT)}
    found = Found()
    known: dict[World, tuple[object, ...]] = {World(): ()}
    to_do = deque(known)
    while to_do:
        world = to_do.popleft()
        if is_torn(world, case):
            found.torn.append(world)
        for promise, holds in _PROMISES.items():
            if promise not in found.broken and not holds(world, case, plans[NEXT]):
                found.broken[promise] = known[world]
        for who, then in _moves(world, plans, case, rules):
            if then not in known:
                known[then] = (*known[world], who)
                to_do.append(then)
    found.worlds = len(known)
    return found


_PROMISES: Mapping[str, Callable[[World, Case, Plan], bool]] = {
    TORN: lambda world, case, _: not is_torn(world, case),
    INEXACT: _is_exact,
    WROTE: lambda world, case, _: not _wrote_though_refused(world, case),
    DEAD_END: lambda world, case, _: bool(world.marked) or _can_go_on(world, case),
}


def _moves(world: World, plans: Mapping[int, Plan], case: Case, rules: Rules) -> Iterator[tuple[object, World]]:
    may = {1: True, 2: world.granted == 2, NEXT: bool(world.marked)}
    for attempt, plan in plans.items():
        then = _stepped(world, attempt, plan, case, rules) if may[attempt] else None
        if then is not None:
            yield attempt, then
    if world.granted == 1 and not world.marked:
        yield "replay", world._replace(granted=2)
