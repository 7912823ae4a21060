"""Which cells are empty that topologies of other kinds fill, after the same life and in the same status."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.integration.kinds.topologies import Kind


@dataclass(frozen=True)
class Cells:
    """The cells of one row, or of one answer of the page, by name.

    :param where: what was asked; `status`: of the transaction or topology that it is about.
    :param part: the place in the life of the topology: its transaction, or "" for the topology itself.
    """

    kind: Kind
    where: str
    part: str
    status: str
    filled: Mapping[str, bool]


@dataclass(frozen=True, order=True)
class Gap:
    """An empty cell that other kinds fill."""

    kind: str
    where: str
    part: str
    field: str


@dataclass(frozen=True)
class Exempt:
    """Cells that may be empty.

    :param kinds: a pattern of the names of the kinds; `fields`: of `command: field`, both for the whole name.
    :param why: the reason.
    """

    kinds: str
    fields: str
    why: str

    def covers(self, gap: Gap) -> bool:
        """Whether it is about this cell."""
        name = f"{gap.where}: {gap.field}"
        return bool(re.fullmatch(self.kinds, gap.kind) and re.fullmatch(self.fields, name))


OWN_DATA = frozenset({"metadata", "position_before", "position_after", "sums", "outputs", "digests", "size", "tasks"})
"""Fields whose parts are those of a source, a state or a DAG: whether there are some is compared."""


def is_filled(value: Any) -> bool:
    """Whether a cell shows something; "?" is what a list shows of an unknown lag."""
    return value not in (None, "", [], {}, "?")


def fields_of(value: Any, name: str = "") -> Iterator[tuple[str, bool]]:
    """The fields of an answer by their paths, and whether each is filled; of a list, whether one element fills it."""
    if isinstance(value, dict) and value and name.rpartition(".")[2] not in OWN_DATA:
        for key, each in value.items():
            yield from fields_of(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        found: dict[str, bool] = defaultdict(bool)
        for each in value:
            for field, has_value in fields_of(each, f"{name}[]"):
                found[field] |= has_value
        yield from found.items()
    else:
        yield name, is_filled(value)


def gaps(cells: Sequence[Cells]) -> set[Gap]:
    """The empty cells that the same place of another kind's life fills, or that the status fills everywhere else."""
    return {*_by_life(cells), *_by_status(cells)}


def check_cells(cells: Sequence[Cells], exempt: Sequence[Exempt], *, all_reasons: bool = True) -> None:
    """Fail if there is a gap without a reason.

    :param all_reasons: fail, too, if there is a reason without a gap.
    """
    found = gaps(cells)
    told = [f"{gap.kind}: {gap.where} {gap.part}: {gap.field}" for gap in sorted(found) if not _reasons(gap, exempt)]
    assert not told, "Empty, and filled for other kinds:\n" + "\n".join(told)
    used = {each for gap in found for each in _reasons(gap, exempt)}
    assert not all_reasons or [each for each in exempt if each not in used] == []


def _reasons(gap: Gap, exempt: Sequence[Exempt]) -> list[Exempt]:
    return [each for each in exempt if each.covers(gap)]


def _by_life(cells: Sequence[Cells]) -> Iterator[Gap]:
    places: dict[tuple[str, str, str], list[Cells]] = defaultdict(list)
    for each in cells:
        places[each.kind.fate, each.where, each.part].append(each)
    for same in places.values():
        wanted = {field for each in same for field, has_value in each.filled.items() if has_value}
        yield from _missing(same, wanted)


def _by_status(cells: Sequence[Cells]) -> Iterator[Gap]:
    """What a status fills in every usual life, it fills in the others."""
    places: dict[tuple[str, str], list[Cells]] = defaultdict(list)
    for each in cells:
        if each.status:
            places[each.where, each.status].append(each)
    for same in places.values():
        usual = [each for each in same if each.kind.fate == "usual"]
        always = [{field for field, has_value in each.filled.items() if has_value} for each in usual]
        if always:
            yield from _missing(same, set.intersection(*always))


def _missing(cells: Iterable[Cells], wanted: Iterable[str]) -> Iterator[Gap]:
    for each in cells:
        for field in wanted:
            if not each.filled.get(field):
                yield Gap(each.kind.name, each.where, each.part, field)
