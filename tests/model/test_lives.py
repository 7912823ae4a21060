"""The rules of the lives of states hold in every short history, and each is needed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest

from tests.model.lives import REFUSED, WRONG, Model, Trace, World


class Family(NamedTuple):
    """The events that are mixed.

    :param depth: of all histories that are explored; `quick`: of those on every change.
    :param sums: whether the values of the first state add up.
    """

    events: str
    depth: int
    quick: int
    sums: bool = True


FAMILIES = {
    "backups and changes": Family("backup V roll hand loss", 8, 6),
    "the same without sums": Family("backup V roll hand loss", 8, 6, sums=False),
    "values alone": Family("backup V v roll loss kill", 7, 4),
    "values alone, no sums": Family("backup V v roll loss kill", 7, 4, sums=False),
    "names": Family("names roll lose hand backup V", 9, 5),
    "restate, kills, ledger": Family("restate kill skip ledger", 8, 5),
    "restate and restore": Family("restate skip kill backup V T VT roll loss", 7, 3),
    "two changes": Family("backup V roll hand", 11, 7),
    "journal gone": Family("restate kill skip backup V loss nojournal", 6, 4),
    "changes, ledger": Family("backup V hand ledger roll loss", 9, 5),
    "tables": Family("backup T roll lose", 6, 6),
    "all": Family("restate skip backup V T VT roll loss hand names lose ledger", 7, 3),
}
WITHOUT = {
    # Rules that are left out together, since each holds where the other is gone; what happens then, and where.
    "look putback": ("a refused roll forward leaves a look that the open one passes", "values alone, no sums", 8),
    "birth_gives_way putback": ("its birth is not passed by an accepted loss", "values alone, no sums", 8),
    "loss_names_fence": ("an accepted loss accepts any fence that comes", "all", 6),
    "mark": ("the fence has no mark of accepted changes", "backups and changes", 8),
    "mark sure ask": ("the smallest number of changes that fits", "backups and changes", 8),
    "ask": ("changes that the totals do not tell are taken for missing", "the same without sums", 8),
    "kept": ("a lost ledger loses accepted changes, too", "changes, ledger", 8),
    "changes": ("it does not stop for changes", "backups and changes", 9),
    "losses": ("accepted losses are not known", "all", 6),
    "renames": ("by the name of now alone", "names", 7),
    "forgotten": ("what a forgotten name got counts for the next of that name", "names", 8),
    "for_good": ("a skip does not ask", "restate, kills, ledger", 6),
    "remake last": ("tables first, and a rebuild drops the restatement", "restate, kills, ledger", 7),
    "birth remake last": ("final by txid alone", "restate, kills, ledger", 7),
    "after": ("a change is noted at its acceptance, not where it was made", "backups and changes", 8),
    "leave": ("a state that may lack a transaction stops its restatement", "journal gone", 6),
    "last leave": ("the same, tables first", "journal gone", 6),
    "tables": ("tables are not rolled forward", "tables", 6),
}


def _is_plain(model: Model, events: list[str], world: World) -> bool:
    """Nothing was torn apart or accepted, and the journal is there: a way on must need no accepted loss."""
    no_loss = not any(each[0] == "loss" for each in world.led.repairs)
    return "v" not in events and model.journal and no_loss and not world.led.rebuilt


def _ends(model: Model, events: list[str], world: World) -> str:
    """Say whether a refusal is the end; "": a way leads on."""
    if model.stuck(world):
        return "dead end"
    model.no_loss = _is_plain(model, events, world)
    try:
        return "needless loss" if model.no_loss and model.stuck(world) else ""
    finally:
        model.no_loss = False


def explore(family: Family, depth: int, *without: str) -> tuple[str, Trace]:
    """Explore every history of these events.

    :return: what ends wrong, and the shortest history of it; "": nothing does.
    """
    model = Model(without, family.sums)
    model.journal = "nojournal" not in family.events
    events = family.events.split()
    start = World()
    before: dict[World, tuple[World, str] | None] = {start: None}
    todo = deque([(start, 0)])

    def trace(world: World) -> Trace:
        found = []
        step = before[world]
        while step is not None:
            found.append(step[1])
            step = before[step[0]]
        return found[::-1]

    while todo:
        world, steps = todo.popleft()
        if steps == depth:
            continue
        for name, (after, said) in model.events(world, events):
            if after is None or after == world:
                continue
            if said == WRONG:
                return "wrong", [*trace(world), name]
            if after in before:
                continue
            before[after] = world, name
            ends = _ends(model, events, after) if said == REFUSED else ""
            if ends:
                return ends, trace(after)
            todo.append((after, steps + 1))
    return "", []


@pytest.mark.parametrize("family", FAMILIES)
def test_no_short_history_of_states_ends_with_wrong_values_or_stuck(family: str) -> None:
    assert explore(FAMILIES[family], FAMILIES[family].quick) == ("", [])


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_no_long_history_of_states_ends_with_wrong_values_or_stuck(family: str) -> None:
    assert explore(FAMILIES[family], FAMILIES[family].depth) == ("", [])


@pytest.mark.parametrize("rules", WITHOUT)
def test_the_model_finds_a_wrong_history_for_each_missing_rule(rules: str) -> None:
    told, family, depth = WITHOUT[rules]
    what, history = explore(FAMILIES[family], depth, *rules.split())
    assert what, told
    assert history
