"""The rules of a `SqlTable` as a model: a transaction n, two attempts of it, and a skip of it, in every order.

Before n, a transaction c has committed one row. If n restates c, the rows of c leave the table with those of n coming.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

SKIP = 9
"""Who holds the fence if no attempt does."""


@dataclass(frozen=True)
class Rules:
    """The rules that were chosen from; the defaults are those of the product.

    :param taken_out_at: when rows of c, and of attempts before, leave the table.
    :param skip_refused_by: what tells that rows of c are gone, so that a skip of n would lose them.
    :param own_rows: when a write takes out the rows that its own transaction has in the table.
    """

    taken_out_at: Literal["write", "raise"] = "write"
    skip_refused_by: Literal["receipts", "rows", "never"] = "receipts"
    own_rows: Literal["always", "other token"] = "always"


@dataclass(frozen=True)
class Sizes:
    """What n is.

    :param rows: how many rows each of its writes has.
    """

    restates: bool
    rows: int


@dataclass(frozen=True)
class Moment:
    """Ledger, table and committers at one moment.

    :param c: how many rows of c the table has; `n`: the attempts that have written its rows of n.
    :param fence: the attempt that holds it, `SKIP`, or 0: it is still that of c.
    :param has_receipt: whether the table has a receipt of n.
    :param committers: of each attempt: new, granted, raised, written, or dead.
    :param final: the attempt that was marked, `SKIP`, or 0: n is open.
    :param skip: no, granted, raised, or over: it was refused and withdrawn.
    :param writes: how many are left.
    """

    c: int = 1
    n: tuple[int, ...] = ()
    fence: int = 0
    has_receipt: bool = False
    attempt: int = 1
    committers: tuple[str, str] = ("new", "new")
    final: int = 0
    skip: str = "no"
    writes: int = 2

    def says(self, attempt: int, phase: str, **changes: Any) -> Moment:
        """Give the moment after a step of the committer of an attempt."""
        first, second = self.committers
        return replace(self, committers=(phase, second) if attempt == 1 else (first, phase), **changes)

    def wrong(self, sizes: Sizes) -> str:
        """Say what is wrong at the end; "": nothing, or it is not the end."""
        if not self.final:
            return ""
        wanted = (1, ()) if self.final == SKIP else (int(not sizes.restates), (self.final,) * sizes.rows)
        return "" if (self.c, self.n) == wanted else f"{self.final} is final, the table has {self.c} and {self.n}"


Step = tuple[str, int]
"""What happens, and the attempt whose committer does it; 0: none."""


def steps(now: Moment, sizes: Sizes, rules: Rules) -> Iterator[tuple[Step, Moment]]:
    """Give what may happen next."""
    if now.final:
        return
    for attempt in (1, 2):
        yield from _of_a_committer(now, attempt, sizes, rules)
    if now.attempt == 1:
        yield ("replay", 0), replace(now, attempt=2)
    if now.skip == "no":
        yield ("grant a skip", 0), replace(now, skip="granted")
    if now.skip == "granted":
        told = {"never": False, "rows": bool(now.n), "receipts": now.has_receipt}
        if sizes.restates and told[rules.skip_refused_by]:
            withdrawn = replace(now, skip="over", attempt=2)
            # Attempt 2 may have been granted its turn before the skip: it has to be granted anew.
            yield ("skip, refused", 0), withdrawn.says(2, "new" if now.attempt == 1 else "dead")
        else:
            yield ("skip", 0), replace(now, skip="raised", n=(), fence=SKIP)
    if now.skip == "raised":
        yield ("mark the skip", 0), replace(now, final=SKIP)


def _of_a_committer(now: Moment, attempt: int, sizes: Sizes, rules: Rules) -> Iterator[tuple[Step, Moment]]:
    phase = now.committers[attempt - 1]
    if phase == "new" and attempt == now.attempt and now.skip in ("no", "over"):
        yield ("acquire", attempt), now.says(attempt, "granted")
    may_write = now.fence == attempt and phase in ("raised", "written")
    if phase == "granted" and now.fence < attempt:
        raised = _raised(now, attempt, sizes, rules)
        yield ("raise", attempt), raised
        if now.writes:
            yield ("raise and write", attempt), _written(raised, attempt, sizes, rules)
    if may_write:
        # The first committer of a phase was cleared.
        yield ("raise", attempt), now
    if may_write and now.writes:
        yield ("write", attempt), _written(now, attempt, sizes, rules)
        yield ("raise and write", attempt), _written(now, attempt, sizes, rules)
    withdrawn = now.skip == "over" and attempt == 2
    if phase == "written" and attempt == now.attempt and (now.skip == "no" or withdrawn):
        yield ("mark", attempt), replace(now, final=attempt)


def _raised(now: Moment, attempt: int, sizes: Sizes, rules: Rules) -> Moment:
    raised = now.says(attempt, "raised", fence=attempt)
    if rules.taken_out_at == "write":
        return raised
    return replace(raised, n=(), c=0 if sizes.restates else now.c)


def _written(now: Moment, attempt: int, sizes: Sizes, rules: Rules) -> Moment:
    kept = now.n if rules.own_rows == "other token" and now.committers[attempt - 1] == "written" else ()
    c = 0 if sizes.restates else now.c
    rows = (*kept, *(attempt,) * sizes.rows)
    return now.says(attempt, "written", c=c, n=rows, has_receipt=True, writes=now.writes - 1)


def refusals(now: Moment) -> Iterator[Step]:
    """Give what a committer may try that has lost the fence: each has to be refused."""
    for attempt, phase in enumerate(now.committers, 1):
        if phase == "granted" and now.fence > attempt:
            yield "raise", attempt
            yield "raise and write", attempt
        if phase in ("raised", "written") and now.fence != attempt:
            yield "write", attempt
            yield "raise", attempt


def first_wrong_end(sizes: Sizes, rules: Rules) -> str:
    """Explore all orders; "": each ends right."""
    seen = {Moment()}
    to_do = deque([(Moment(), list[Step]())])
    while to_do:
        now, before = to_do.popleft()
        if wrong := now.wrong(sizes):
            return f"{wrong}: {before}"
        for step, then in steps(now, sizes, rules):
            if then not in seen:
                seen.add(then)
                to_do.append((then, [*before, step]))
    return ""
