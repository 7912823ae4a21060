"""Reading as of a transaction, as a model: two states in two databases, transaction 7 with two attempts, then 8.

A reader wants both states as of M, the last transaction that is final. It reads fence and rows of a state in one
transaction of its database, in either order and at any time, and begins again where a state cannot be read at M.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

FIRST, OWN, NEXT = 6, 7, 8
"""The transaction that is final at the start, the one with two attempts, and the one after it."""
MARK = ()
Rows = tuple[int, int]
"""The attempt of 7 whose rows are there (0: none), and whether rows of 8 are."""
GONE: Rows = (-1, 0)
"""What nobody can read: the rows that a restatement has taken out."""

Plan = tuple[tuple[tuple[str, int], ...], ...]
PLANS: Mapping[str, Plan] = {
    "moment": ((("raise", 1),), (("raise", 0), ("write", 0)), (("write", 1),), MARK),
    "one by one": ((("raise", 0),), (("raise", 1),), (("write", 0),), (("write", 1),), MARK),
}


@dataclass(frozen=True)
class Rule:
    """How a reader finds M, and of what it makes an answer; the defaults are those of the product.

    :param proof: what tells M. By the ledger or the fences it is known before a row is read.
    :param trusts: what is read though it is not of before: anything, a restatement, a transactional state.
    """

    proof: Literal["ledger", "fences", "rows first", "rows first, then the fences again"] = "ledger"
    trusts: str = ""


RIGHT = {"ledger": Rule("ledger"), "fences": Rule("fences")}
LACKING = {
    "rows are read before M is known": Rule("rows first"),
    "rows are read between two looks at the fences": Rule("rows first, then the fences again"),
    "rows are read as they are": Rule(trusts="anything"),
    "a table is read while it is restated": Rule(trusts="restatement"),
    "a transactional state is read at the fence of M + 1": Rule(trusts="transactional"),
}


@dataclass(frozen=True)
class Case:
    """What is read.

    :param restates: whether 8 restates 7.
    """

    plan: str
    kinds: tuple[str, str]
    restates: bool


def every_case() -> Iterator[Case]:
    """Give all plans and kinds, with a restatement and without one."""
    for plan, kinds, restates in product(PLANS, product(("value", "table", "transactional"), repeat=2), (False, True)):
        yield Case(plan, kinds, restates)  # type: ignore[arg-type]


class State(NamedTuple):
    """One state.

    :param fence: its txid and attempt.
    :param before: the rows as they were before the transaction `by`, which wrote last.
    """

    fence: tuple[int, int] = (FIRST, 1)
    rows: Rows = (0, 0)
    before: Rows = (0, 0)
    by: int = FIRST


class Reader(NamedTuple):
    """What a reader knows.

    :param txid: M, once it is known; -1: not yet.
    :param seen: the state that it has read, with its number.
    :param both: the states that it has read, if it looks at their fences again.
    """

    txid: int = -1
    seen: tuple[int, State] | None = None
    both: tuple[State, State] | None = None


class Answer(NamedTuple):
    """What a reader takes for both states as of M."""

    txid: int
    rows: tuple[Rows, Rows]


class World(NamedTuple):
    """Ledger, states, committers and the reader at one time.

    :param granted: the newest attempt of 7, which is the final one once that is marked.
    :param places: of 7.1, 7.2 and 8.1, how many store transactions are done; -1: it was refused.
    """

    granted: int = 1
    marked: int = FIRST
    states: tuple[State, State] = (State(), State())
    places: tuple[int, ...] = (0, 0, 0)
    reader: Reader = Reader()


# --- committers ---------------------------------------------------------------------------------------------------


def _operated(state: State, what: str, grant: tuple[int, int], kind: str) -> State | None:
    """Raise or write; None: it is outranked."""
    txid, attempt = grant
    if what == "raise":
        if state.fence > grant:
            return None
        if kind == "value" and state.by == txid and state.fence != grant:
            return state._replace(fence=grant, rows=state.before, by=0)
        return state._replace(fence=grant)
    if state.fence != grant:
        return None
    if kind == "transactional" and state.by == txid:
        return state
    before = state.before if state.by == txid else state.rows
    own = 1 if kind == "transactional" else attempt
    return State(grant, (own, 0) if txid == OWN else (before[0], 1), before, txid)


def _committers(world: World, case: Case) -> Iterator[World]:
    plan = PLANS[case.plan]
    for at, grant in enumerate(((OWN, 1), (OWN, 2), (NEXT, 1))):
        place = world.places[at]
        waits = (grant == (OWN, 2) and world.granted < 2) or (grant[0] == NEXT and world.marked < OWN)
        if waits or not 0 <= place < len(plan):
            continue
        if plan[place] == MARK:
            final = grant[0] == NEXT or (world.granted == grant[1] and world.marked == FIRST)
            then = _placed(world, at, place + 1 if final else -1)
            yield then._replace(marked=grant[0]) if final else then
            continue
        states: list[State] | None = list(world.states)
        for what, number in plan[place]:
            new = _operated(states[number], what, grant, case.kinds[number]) if states else None
            if new is None or states is None:
                states = None
                break
            states[number] = new
        if states is None:
            yield _placed(world, at, -1)
        else:
            yield _placed(world, at, place + 1)._replace(states=(states[0], states[1]))
    if world.granted == 1 and world.marked == FIRST:
        yield world._replace(granted=2)


def _placed(world: World, at: int, place: int) -> World:
    return world._replace(places=(*world.places[:at], place, *world.places[at + 1 :]))


# --- reader -------------------------------------------------------------------------------------------------------


def _looks(world: World, case: Case, rule: Rule) -> Iterator[Reader | Answer]:
    """Give what a reader may know after its next look, or what it then says."""
    reader = world.reader
    if reader.both is not None:
        if all(seen.fence == now.fence for seen, now in zip(reader.both, world.states, strict=True)):
            yield from _answered(reader.txid, reader.both, case, rule)
        return
    if reader.txid < 0 and rule.proof == "ledger":
        yield Reader(world.marked)
        return
    if reader.seen is None:
        yield from (reader._replace(seen=(number, state)) for number, state in enumerate(world.states))
        return
    number, mine = reader.seen
    other = world.states[1 - number]
    both = (mine, other) if number == 0 else (other, mine)
    if reader.txid >= 0:
        yield from _answered(reader.txid, both, case, rule)
    elif (proven := max(state.fence[0] for state in both) - 1) < FIRST:
        return
    elif rule.proof == "fences":
        # A fence of a transaction proves that the one before it is final.
        yield Reader(proven)
    elif rule.proof == "rows first":
        yield from _answered(proven, both, case, rule)
    else:
        yield Reader(proven, both=both)


def _answered(txid: int, both: tuple[State, State], case: Case, rule: Rule) -> Iterator[Answer]:
    """Give what a reader takes for the states as of M; nothing: it begins again."""
    one, other = (_as_of(state, txid, kind, case, rule) for state, kind in zip(both, case.kinds, strict=True))
    if one is not None and other is not None:
        yield Answer(txid, (one, other))


def _as_of(state: State, txid: int, kind: str, case: Case, rule: Rule) -> Rows | None:
    """The rows of a state as of M, by its fence; None: begin again."""
    if rule.trusts == "anything" or state.fence[0] == txid:
        return state.rows
    if state.fence[0] != txid + 1:
        return None
    if kind == "transactional":
        return state.rows if rule.trusts == "transactional" else None
    if kind == "value":
        return state.before if state.by == txid + 1 else state.rows
    if txid + 1 == OWN:
        return (0, 0)
    if not case.restates:
        return (state.rows[0], 0)
    if rule.trusts != "restatement":
        return None
    return GONE if state.rows[1] else (state.rows[0], 0)


def _is_right(world: World, answer: Answer, case: Case) -> bool:
    final = world.granted if answer.txid >= OWN else 0
    later = int(answer.txid == NEXT)
    wanted = ((min(final, 1) if kind == "transactional" else final, later) for kind in case.kinds)
    return answer.rows == tuple(wanted)


# --- exploration --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What an exploration saw.

    :param answers: how often a reader had one; `wrong`: how many of them are.
    """

    worlds: int
    answers: int
    wrong: int


def explore(case: Case, rule: Rule) -> Found:
    """Let a reader look at any time while the transactions commit in every order."""
    answers = wrong = 0
    known = {World()}
    to_do = deque(known)
    while to_do:
        world = to_do.popleft()
        following = list(_committers(world, case))
        for look in _looks(world, case, rule):
            if isinstance(look, Reader):
                following.append(world._replace(reader=look))
            else:
                answers += 1
                wrong += not _is_right(world, look, case)
        for then in following:
            if then not in known:
                known.add(then)
                to_do.append(then)
    return Found(len(known), answers, wrong)
