"""Chains as a model: topology D reads what topology U has committed, E what D has.

Each stage has a ledger, a book of ends and a table. U begins transactions, restates, skips and re-admits them. D
decides ranges, reads each in two halves, and follows the corrections of U. A step is one multi, or one transaction of a
store. A process may stop between any two.

From every world the stages run to rest. Each table must then be equal to a recomputation over the table before it
(`chain_promises.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

OPEN, HALF, READ, WRITTEN = "open", "half read", "read", "written"
FINAL, SKIPPED, WANTED, READMITTED = "final", "skipped", "wanted back", "re-admitted"
BLOCKED = "blocked"
"""A person has to act: it has failed though it could have waited."""
ENDED = frozenset({FINAL, SKIPPED, WANTED, READMITTED})
NAMES = "UDE"

Rows = tuple[int, int]
"""Two halves, each a multiset: the digit of base 16 at a birth of U says how often its row is there."""
NO_ROWS: Rows = (0, 0)
BIRTHS = 8
"""How many txids a life of U has at most: a row is known by the birth of its transaction."""
End = tuple[int, int, int]
"""Where a chain begins, its end, and the life of that end."""
Range = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """What the stages do; the defaults are those of the product.

    :param ends: whether each attempt decides the ends of its range; otherwise those of the first attempt stay.
    :param range: whether a replay keeps the range of its transaction.
    :param sizes: whether the size of a batch is decided with its ends.
    :param begins: what a restatement names as `first`: the transaction in which its chain begins, or its predecessor.
    :param at_own_txid: what a restatement contributes to the range that holds its own txid.
    :param counts: when the rows of each end are counted.
    :param waits_for: what an attempt waits for, rather than to fail, if rows are missing.
    :param asks_again: whether an attempt that waits has its ends decided again once they have moved.
    :param cursor_waits: which transactions the cursor does not pass a restatement for.
    :param compares: which restatements are compared after one for which the cursor waits.
    :param behind: what a request notes: the ends that it is for, nothing, or that there was one.
    :param births: what D compares with the book of U, to notice that U went back.
    :param known_by: what tells two transactions of one txid apart.
    :param empty_ranges: when a range without rows is taken.
    :param gathers: whether a follow-up waits while U restates more of its range.
    :param bounded: whether a range has at most `Shape.most` transactions.
    """

    ends: Literal["decided again", "kept"] = "decided again"
    range: Literal["kept", "decided again"] = "kept"
    sizes: Literal["decided again", "kept"] = "decided again"
    begins: Literal["chain", "predecessor"] = "chain"
    at_own_txid: Literal["nothing", "its rows"] = "nothing"
    counts: tuple[str, ...] = ("before", "after")
    waits_for: tuple[str, ...] = ("commit", "roll forward")
    asks_again: bool = True
    cursor_waits: tuple[str, ...] = ("untaken", "open", "wanted back", "restated")
    compares: Literal["all", "up to the first"] = "all"
    behind: Literal["ends", "nothing", "that there was one"] = "ends"
    births: tuple[str, ...] = ("position", "ends", "cursor")
    known_by: Literal["grant", "birth", "txid"] = "grant"
    empty_ranges: Literal["when long", "never", "at once"] = "when long"
    gathers: bool = True
    bounded: bool = True


RIGHT = Rules()


class Budget(NamedTuple):
    """How often what nobody needs happens; `up`: in U, `down`: in the stages after it.

    :param fresh: how many transactions U begins.
    :param restores: how often the table of a stage comes back from a backup, and is rolled forward.
    :param set_back: how often ledger and table of U come back from one backup.
    :param withdrawn: how often a person withdraws a request.
    """

    fresh: int = 0
    restates: int = 0
    up_skips: int = 0
    up_readmits: int = 0
    up_replays: int = 0
    skips: int = 0
    readmits: int = 0
    replays: int = 0
    withdrawn: int = 0
    restores: int = 0
    set_back: int = 0

    def __str__(self) -> str:
        """Name what may happen at all."""
        return ", ".join(f"{number} {name}" for name, number in zip(self._fields, self, strict=True) if number)


NONE_LEFT = Budget()


@dataclass(frozen=True)
class Shape:
    """One size of world.

    :param stages: how many topologies there are.
    :param sizes: how many rows each half of the transactions of U has, by txid; beyond them: one.
    :param most: `max_transactions` of a range.
    :param window: `max_pending` of each stage that reads.
    :param counted: whether the number of rows that a reading had is known; otherwise it is unproven.
    :param lane: whether D and E run in a lane, which begins nothing during follow-ups.
    :param refused: the transaction of U whose rows no restatement of D can take, such as a maximum that falls.
    :param over: the transaction of D that cannot be requested, as its journal is over.
    """

    budget: Budget
    stages: int = 2
    sizes: tuple[int, ...] = ()
    most: int = 2
    window: int = 2
    counted: bool = False
    lane: bool = False
    refused: int = 0
    over: int = 0

    def __str__(self) -> str:
        """Name the budget, and what is not the default."""
        also = [f"sizes {self.sizes}"] if self.sizes else []
        also += [f"{self.stages} stages"] if self.stages != 2 else []
        also += ["counted"] if self.counted else []
        also += ["lane"] if self.lane else []
        also += [f"{self.refused} refused"] if self.refused else []
        also += [f"{self.over} over"] if self.over else []
        return "; ".join([str(self.budget), *also])


# --- the world ----------------------------------------------------------------------------------------------------


class Transaction(NamedTuple):
    """A transaction of a stage: its record, and its line in the book once it is final.

    :param life: how often the ledger had been set back at the grant that was marked, or else when the txid was given.
    :param replaces: the transaction that it restates; 0: it begins a chain.
    :param first: where its chain begins.
    :param end: once it is final, where its chain ends, as its line says.
    :param range: which transactions of the stage before it takes; `ends`: where their chains end.
    :param size: how many rows its batch has; 0: unknown.
    """

    life: int
    first: int
    replaces: int = 0
    phase: str = OPEN
    range: Range = (0, 0)
    ends: tuple[End, ...] = ()
    size: int = 0
    rows: Rows = NO_ROWS
    end: int = 0


class Decided(NamedTuple):
    """What a `begin` has decided, before its multi has allocated a transaction.

    :param what: "new", or of which transaction it is the restatement or the re-admission.
    """

    what: str
    txid: int
    range: Range
    ends: tuple[End, ...]
    size: int
    life: int


class Stage(NamedTuple):
    """One topology.

    :param current: the transaction whose turn it is.
    :param table: the transactions whose rows are in the table.
    :param position: the last transaction that it has taken, and its life; `cursor`: see `follow`.
    :param wanted: the transactions that are requested, by the first of their chain.
    :param behind: of transactions that lack a correction, the ends that a request was for; by the first of the chain.
    :param back: the transaction up to which a table from a backup has been written; None: it is whole.
    :param rolling: whether the ledger says that it is rolled forward.
    :param life: how often the ledger was set back.
    """

    transactions: tuple[Transaction, ...] = ()
    current: int = 1
    table: frozenset[int] = frozenset()
    decided: Decided | None = None
    position: tuple[int, int] = (0, 0)
    cursor: tuple[int, int] = (0, 0)
    wanted: tuple[int, ...] = ()
    behind: tuple[tuple[int, tuple[End, ...]], ...] = ()
    back: int | None = None
    rolling: bool = False
    life: int = 0

    def of(self, txid: int) -> Transaction:
        """Give a transaction."""
        return self.transactions[txid - 1]

    def numbered(self) -> Iterator[tuple[int, Transaction]]:
        """Give each transaction with its txid."""
        return enumerate(self.transactions, 1)

    def changed(self, txid: int, **changes: Any) -> Stage:
        """Change a transaction."""
        at = txid - 1
        changed = self.transactions[at]._replace(**changes)
        return self._replace(transactions=(*self.transactions[:at], changed, *self.transactions[txid:]))

    def with_new(self, transaction: Transaction) -> Stage:
        """Allocate a transaction."""
        return self._replace(transactions=(*self.transactions, transaction))

    def open(self) -> int:
        """Count the transactions that are not final."""
        return len(self.transactions) - self.current + 1

    def restatement(self, first: int) -> int:
        """Find the open restatement of a chain; 0: none."""
        for txid in range(self.current, len(self.transactions) + 1):
            each = self.of(txid)
            if each.replaces and each.first == first and each.phase not in ENDED:
                return txid
        return 0

    def holder(self, txid: int) -> int:
        """Find the transaction whose range holds one of the stage before it; 0: it is not taken."""
        for number, each in self.numbered():
            if not each.replaces and each.phase != READMITTED and each.range[0] <= txid <= each.range[1]:
                return number
        return 0

    def counting(self) -> Iterator[tuple[int, Transaction]]:
        """Give the chains of which a transaction counts: where each begins, and the line that counts for it."""
        for txid, each in self.numbered():
            if each.phase == FINAL and not each.replaces:
                yield txid, self.of(each.end)


class World(NamedTuple):
    """All stages at one time.

    :param backup: of U: ledger and table.
    """

    stages: tuple[Stage, ...]
    left: Budget
    backup: Stage | None = None

    @classmethod
    def first(cls, shape: Shape) -> World:
        """Give the world in which nothing has happened."""
        return cls((Stage(),) * shape.stages, shape.budget)


class Step(NamedTuple):
    """What happens, and to which transaction of which stage."""

    stage: int
    what: str
    txid: int = 0

    def __str__(self) -> str:
        """Write it without the stage."""
        return f"{self.what} {self.txid}" if self.txid else self.what


Move = tuple[Step, World]


@dataclass(frozen=True)
class Place:
    """Where in a world a step is made.

    :param at: the number of the stage.
    """

    world: World
    at: int
    shape: Shape
    rules: Rules

    @property
    def stage(self) -> Stage:
        """The stage that makes the step."""
        return self.world.stages[self.at]

    @property
    def up(self) -> Stage:
        """The stage that it reads."""
        return self.world.stages[self.at - 1]

    def may(self, what: str) -> bool:
        """Whether a disruption is left."""
        return bool(getattr(self.world.left, what))

    def then(self, what: str, txid: int, stage: Stage, spent: str = "") -> Move:
        """Give a step and the world after it."""
        stages = self.world.stages
        left = self.world.left
        if spent:
            left = left._replace(**{spent: getattr(left, spent) - 1})
        after = self.world._replace(stages=(*stages[: self.at], stage, *stages[self.at + 1 :]), left=left)
        return Step(self.at, what, txid), after


def plus(some: Iterable[Rows]) -> Rows:
    """Put rows together."""
    first, second = 0, 0
    for one, other in some:
        first += one
        second += other
    return first, second


@cache
def number_of(rows: Rows) -> int:
    """Count rows."""
    return sum(int(digit, 16) for half in rows for digit in f"{half:x}")


# --- the book of ends ---------------------------------------------------------------------------------------------


def ends_of(up: Stage, taken: Range, rules: Rules) -> tuple[End, ...]:
    """Read in the book where the chains end that begin in a range."""
    found: list[End] = []
    for txid in range(taken[0], min(taken[1] + 1, up.current)):
        line = up.of(txid)
        if line.phase == FINAL and (not line.replaces or rules.at_own_txid == "its rows"):
            found.append((txid, line.end, up.of(line.end).life))
    return tuple(found)


def rows_of(up: Stage, ends: Iterable[End]) -> Rows:
    """Give the rows that the lines of ends name."""
    return plus(up.of(end).rows for _, end, _ in ends)


def end_in(ends: Iterable[End], first: int) -> int:
    """Give the end of a chain; its own first transaction, if another one is not named."""
    return next((end for each, end, _ in ends if each == first), first)


def _is_settled(up: Stage, ends: Iterable[End], rules: Rules) -> bool:
    """Whether the table has the rows of each end, as its line says."""
    for _, end, life in ends:
        if _is_another(up, end, life, rules):
            return False
        if up.of(end).rows != NO_ROWS and end not in up.table:
            return False
    return True


def has_gone_back(place: Place) -> bool:
    """Ask whether D knows of a transaction that the book of U does not have under this birth."""
    stage, up, births = place.stage, place.up, place.rules.births
    if not up.life:
        return False
    known = [stage.position] if "position" in births else []
    known += [stage.cursor] if "cursor" in births else []
    if "ends" in births:
        # A line has only those ends that are not their own: the position tells the others.
        named = [line.ends for _, line in stage.counting()] + [noted for _, noted in stage.behind]
        known += [(end, life) for ends in named for own, end, life in ends if own != end]
    return any(txid and _is_another(up, txid, life, place.rules) for txid, life in known)


def _is_another(up: Stage, txid: int, life: int, rules: Rules) -> bool:
    """Whether the book lacks a transaction that was read in it."""
    return txid >= up.current or (rules.known_by != "txid" and up.of(txid).life != life)


# --- steps --------------------------------------------------------------------------------------------------------


def steps(world: World, shape: Shape, rules: Rules) -> Iterator[Move]:
    """Give what may happen next; what brings the stages to rest comes first."""
    for at in range(len(world.stages)):
        place = Place(world, at, shape, rules)
        if at and has_gone_back(place):
            continue
        yield from _restored(place)
        yield from _turn(place)
        if at:
            yield from _readings(place)
            yield from _follow(place)
            yield from _begins(place)
        else:
            yield from _work_of_u(place)
        yield from _people(place)


def _turn(place: Place) -> Iterator[Move]:
    """Let the transaction whose turn it is be written and marked."""
    stage = place.stage
    txid = stage.current
    if txid > len(stage.transactions) or stage.back is not None:
        return
    each = stage.of(txid)
    ready = READ if place.at else OPEN
    if each.phase == ready and _is_refused(place, each):
        skipped = stage.changed(txid, phase=SKIPPED)._replace(current=txid + 1)
        yield place.then("refuse for good", txid, skipped)
    elif each.phase == ready:
        rows = each.rows if place.at else _rows_of_u(place.shape, txid, stage.life)
        table = stage.table - {each.replaces} | {txid}
        yield place.then("write", txid, stage.changed(txid, phase=WRITTEN, rows=rows)._replace(table=table))
    if each.phase == WRITTEN:
        yield place.then("mark", txid, _marked(stage, txid, place.rules))


def _is_refused(place: Place, each: Transaction) -> bool:
    refused = place.shape.refused if place.at == 1 else 0
    return bool(refused and each.replaces) and any(end == refused for _, end, _ in each.ends)


def _rows_of_u(shape: Shape, txid: int, life: int) -> Rows:
    number = shape.sizes[txid - 1] if txid <= len(shape.sizes) else 1
    row: int = number * 16 ** (life * BIRTHS + txid)
    return row, row


def _marked(stage: Stage, txid: int, rules: Rules) -> Stage:
    """Write the line of a transaction, and its txid as the end of the chain that it restates."""
    life = stage.of(txid).life if rules.known_by == "birth" else stage.life
    marked = stage.changed(txid, phase=FINAL, end=txid, life=life)._replace(current=txid + 1)
    each = marked.of(txid)
    return marked.changed(each.first, end=txid) if each.replaces else marked


def _work_of_u(place: Place) -> Iterator[Move]:
    """Let U begin and restate."""
    stage = place.stage
    if place.may("fresh"):
        new = Transaction(stage.life, len(stage.transactions) + 1)
        yield place.then("begin", new.first, stage.with_new(new), "fresh")
    if place.may("restates"):
        for first, line in stage.counting():
            if not stage.restatement(first):
                yield place.then("restate", line.first, _restating(place, first), "restates")


def _restating(place: Place, first: int) -> Stage:
    stage = place.stage
    return stage.with_new(_restatement_of(stage, first, place.rules))


def _restatement_of(stage: Stage, first: int, rules: Rules) -> Transaction:
    """Begin to restate the end of a chain."""
    end = stage.of(first).end
    return Transaction(stage.life, first if rules.begins == "chain" else end, end)


# --- reading ------------------------------------------------------------------------------------------------------


def _readings(place: Place) -> Iterator[Move]:
    """Let each open transaction read the next half of its rows."""
    stage = place.stage
    for txid in range(stage.current, len(stage.transactions) + 1):
        each = stage.of(txid)
        if each.phase not in (OPEN, HALF):
            continue
        at = "before" if each.phase == OPEN else "after"
        if at not in place.rules.counts or _is_settled(place.up, each.ends, place.rules):
            yield place.then("read", txid, _read(place, txid))
        else:
            yield from _not_settled(place, txid)


def _read(place: Place, txid: int) -> Stage:
    stage, up = place.stage, place.up
    each = stage.of(txid)
    there = plus(up.of(end).rows for _, end, _ in each.ends if end in up.table)
    if each.phase == OPEN:
        return stage.changed(txid, phase=HALF, rows=(there[0], 0))
    rows = each.rows[0], there[1]
    if place.shape.counted and number_of(rows) != each.size:
        return stage.changed(txid, phase=BLOCKED)
    return stage.changed(txid, phase=READ, rows=rows)


def _not_settled(place: Place, txid: int) -> Iterator[Move]:
    """Wait, without a step. If the ends have moved, have them decided again."""
    stage, up, rules = place.stage, place.up, place.rules
    each = stage.of(txid)
    reason = "commit" if up.back is None else "roll forward" if up.rolling else ""
    if reason and reason not in rules.waits_for:
        yield place.then("fail", txid, stage.changed(txid, phase=BLOCKED))
    elif rules.asks_again and each.ends != ends_of(up, each.range, rules):
        yield place.then("ask again", txid, _replayed(place, txid))


def _replayed(place: Place, txid: int) -> Stage:
    """Begin the next attempt of a transaction."""
    stage, up, rules = place.stage, place.up, place.rules
    each = stage.of(txid)
    taken = each.range if rules.range == "kept" or each.replaces else (each.range[0], up.current - 1)
    ends = each.ends if rules.ends == "kept" else ends_of(up, taken, rules)
    size = each.size if rules.sizes == "kept" else number_of(rows_of(up, ends))
    return stage.changed(txid, phase=OPEN, range=taken, ends=ends, size=size, rows=NO_ROWS)


# --- begin --------------------------------------------------------------------------------------------------------


def _begins(place: Place) -> Iterator[Move]:
    """Let a `begin` decide, and then allocate."""
    stage, up = place.stage, place.up
    if stage.decided is not None:
        yield place.then("allocate", stage.decided.txid, _allocated(place, stage.decided))
        return
    if stage.open() >= place.shape.window:
        return
    for txid, each in stage.numbered():
        if each.phase == WANTED:
            yield place.then("decide to re-admit", txid, _decided(place, "re-admission", txid, each.range, each.ends))
    for first in stage.wanted:
        each = stage.of(stage.of(first).end)
        yield place.then("decide to restate", first, _decided(place, "restatement", first, each.range, each.ends))
    if place.shape.lane and any(each.replaces and each.phase not in ENDED for each in stage.transactions):
        return
    begin = stage.position[0] + 1
    most = place.shape.most if place.rules.bounded else up.current
    for last in range(min(begin + most, up.current) - 1, begin - 1, -1):
        if _may_take(place, (begin, last)):
            yield place.then("decide up to", last, _decided(place, "new", 0, (begin, last), ()))


def _may_take(place: Place, taken: Range) -> bool:
    """Whether a range has rows, or is so long that it is taken without."""
    if rows_of(place.up, ends_of(place.up, taken, place.rules)) != NO_ROWS:
        return True
    when = place.rules.empty_ranges
    return when == "at once" or (when == "when long" and taken[1] - taken[0] + 1 == place.shape.most)


def _decided(place: Place, what: str, txid: int, taken: Range, old: tuple[End, ...]) -> Stage:
    up, rules = place.up, place.rules
    kept = rules.ends == "kept" and what != "new"
    ends = old if kept else ends_of(up, taken, rules)
    size = number_of(rows_of(up, ends))
    return place.stage._replace(decided=Decided(what, txid, taken, ends, size, up.of(taken[1]).life))


def _allocated(place: Place, decided: Decided) -> Stage:
    """Allocate what was decided. No requirement of this multi spans two ledgers: U may have moved."""
    stage = place.stage._replace(decided=None)
    new = Transaction(stage.life, len(stage.transactions) + 1)
    if decided.what == "new":
        stage = stage._replace(position=(decided.range[1], decided.life))
    elif decided.what == "re-admission":
        stage = stage.changed(decided.txid, phase=READMITTED)
    elif decided.txid not in stage.wanted:
        return stage
    else:
        stage = stage._replace(wanted=tuple(each for each in stage.wanted if each != decided.txid))
        new = _restatement_of(stage, decided.txid, place.rules)
    return stage.with_new(new._replace(range=decided.range, ends=decided.ends, size=decided.size))


# --- follow -------------------------------------------------------------------------------------------------------


def _follow(place: Place) -> Iterator[Move]:
    """Let the coordinator compare; where it waits for U to restate more, its time may be over."""
    followed = follow(place, patient=place.rules.gathers)
    if followed != place.stage:
        yield place.then("follow", 0, followed)
    if place.rules.gathers and any(_chains_in_restatement(place.up)):
        hasty = follow(place, patient=False)
        if hasty != followed and hasty != place.stage:
            yield place.then("follow after 10 minutes", 0, hasty)


def follow(place: Place, *, patient: bool) -> Stage:
    """Compare the restatements of U after the cursor, and what is noted, with what D has read; request what is behind.

    A request leaves a note, so that one that comes to nothing is not repeated. The cursor passes what needs no further
    look.
    """
    stage, up = place.stage, place.up
    stage = stage._replace(behind=tuple(each for each in stage.behind if not _has_caught_up(up, stage, each[0])))
    for first, _ in stage.behind:
        stage, _ = _requested(place, stage, first, patient=patient)
    passes = True
    for txid in range(stage.cursor[0] + 1, up.current):
        line = up.of(txid)
        if line.phase == FINAL and line.replaces:
            stage, seen = _compared(place, stage, txid, patient=patient)
            passes = passes and seen
        if passes:
            stage = stage._replace(cursor=(txid, line.life))
        elif place.rules.compares != "all":
            break
    return stage


def _has_caught_up(up: Stage, stage: Stage, first: int) -> bool:
    line = stage.of(stage.of(first).end)
    return line.ends == ends_of(up, line.range, RIGHT)


def _compared(place: Place, stage: Stage, txid: int, *, patient: bool) -> tuple[Stage, bool]:
    """Compare one restatement; whether the cursor may pass it, too."""
    waits = place.rules.cursor_waits
    chain = place.up.of(txid).first
    holder = stage.holder(chain)
    if not holder:
        return stage, "untaken" not in waits
    each = stage.of(holder)
    if each.phase == SKIPPED:
        return stage, True
    if each.phase == WANTED:
        return stage, "wanted back" not in waits
    if each.phase != FINAL:
        return stage, "open" not in waits
    if end_in(stage.of(each.end).ends, chain) >= txid:
        return stage, True
    return _requested(place, stage, holder, patient=patient)


def _requested(place: Place, stage: Stage, holder: int, *, patient: bool) -> tuple[Stage, bool]:
    """Request a transaction that is behind; whether it needs no further look, as that was in vain."""
    waits = "restated" in place.rules.cursor_waits
    if holder in stage.wanted or stage.restatement(holder):
        return stage, not waits
    up, taken = place.up, stage.of(holder).range
    ends = ends_of(up, taken, place.rules)
    noted = dict(stage.behind).get(holder)
    if noted is not None and (noted == ends or place.rules.behind == "that there was one"):
        return stage, True
    if patient and any(taken[0] <= first <= taken[1] for first in _chains_in_restatement(up)):
        return stage, False
    is_over = place.at == 1 and holder == place.shape.over
    if not is_over:
        stage = stage._replace(wanted=tuple(sorted((*stage.wanted, holder))))
    if is_over or place.rules.behind != "nothing":
        others = tuple(each for each in stage.behind if each[0] != holder)
        stage = stage._replace(behind=tuple(sorted((*others, (holder, ends)))))
    return stage, is_over or not waits


def _chains_in_restatement(up: Stage) -> Iterator[int]:
    for txid in range(up.current, len(up.transactions) + 1):
        if up.of(txid).replaces:
            yield up.of(txid).first


# --- people and backups -------------------------------------------------------------------------------------------


def _people(place: Place) -> Iterator[Move]:
    """Let people skip, re-admit, replay, and withdraw a request."""
    stage, prefix = place.stage, "" if place.at else "up_"
    if place.may(f"{prefix}skips") and stage.open() and _can_be_skipped(stage, stage.of(stage.current)):
        table = stage.table - {stage.current}
        skipped = stage.changed(stage.current, phase=SKIPPED)._replace(current=stage.current + 1, table=table)
        yield place.then("skip", stage.current, skipped, f"{prefix}skips")
    if place.may(f"{prefix}readmits"):
        for txid, each in stage.numbered():
            if each.phase == SKIPPED and not each.replaces:
                yield place.then("re-admit", txid, _wanted_back(place, txid), f"{prefix}readmits")
    if place.may(f"{prefix}replays"):
        yield from _replays(place, f"{prefix}replays")
    if place.may("withdrawn"):
        for first in stage.wanted:
            wanted = tuple(each for each in stage.wanted if each != first)
            yield place.then("withdraw", first, stage._replace(wanted=wanted), "withdrawn")


def _can_be_skipped(stage: Stage, each: Transaction) -> bool:
    """Whether a transaction is not written; what takes rows out cannot be undone."""
    taken_out = each.replaces and each.replaces not in stage.table and stage.of(each.replaces).rows != NO_ROWS
    return stage.back is None and each.phase in (OPEN, HALF, READ, BLOCKED) and not taken_out


def _wanted_back(place: Place, txid: int) -> Stage:
    """Note that a transaction is wanted back; U has nothing to decide, so that it allocates at once."""
    if place.at:
        return place.stage.changed(txid, phase=WANTED)
    stage = place.stage.changed(txid, phase=READMITTED)
    return stage.with_new(Transaction(stage.life, len(stage.transactions) + 1))


def _replays(place: Place, spent: str) -> Iterator[Move]:
    stage = place.stage
    for txid in range(stage.current, len(stage.transactions) + 1):
        phase = stage.of(txid).phase
        if place.at and phase in (HALF, READ, WRITTEN, BLOCKED):
            yield place.then("replay", txid, _replayed(place, txid), spent)
        elif not place.at and phase == WRITTEN:
            # The rows of the older attempt stay until the next one writes.
            yield place.then("replay", txid, stage.changed(txid, phase=OPEN), spent)


def _restored(place: Place) -> Iterator[Move]:
    """Let a table come back from a backup, and be rolled forward; let ledger and table of U come back."""
    stage = place.stage
    if stage.rolling and stage.back is not None:
        txid = stage.back + 1
        table = _table_after(stage, stage.table, txid)
        is_over = txid == stage.current - 1
        back = None if is_over else txid
        yield place.then("roll forward", txid, stage._replace(back=back, rolling=not is_over, table=table))
    elif stage.back is not None:
        yield place.then("begin to roll forward", 0, stage._replace(rolling=True))
    elif place.may("restores") and place.at < place.shape.stages - 1:
        for txid in range(stage.current - 1):
            yield place.then("restore the table of before", txid + 1, _table_as_of(stage, txid), "restores")
    if place.at == 0 and place.may("set_back"):
        yield from _set_back(place)


def _table_as_of(stage: Stage, txid: int) -> Stage:
    table: frozenset[int] = frozenset()
    for each in range(1, txid + 1):
        table = _table_after(stage, table, each)
    if stage.open() and stage.of(stage.current).phase == WRITTEN:
        # It is committed again, by the same attempt.
        stage = stage.changed(stage.current, phase=READ if stage.of(stage.current).ends else OPEN)
    return stage._replace(table=table, back=txid)


def _table_after(stage: Stage, table: frozenset[int], txid: int) -> frozenset[int]:
    each = stage.of(txid)
    return table - {each.replaces} | {txid} if each.phase == FINAL else table


def _set_back(place: Place) -> Iterator[Move]:
    if place.world.backup is None:
        step = Step(0, "back up")
        yield step, place.world._replace(backup=place.stage)
    elif place.world.backup != place.stage:
        back = place.world.backup._replace(life=place.stage.life + 1)
        step, then = place.then("set back", 0, back, "set_back")
        yield step, then
