"""Two contributions to one state, compared by key: what a state that holds the old one needs to hold the new one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import NotTakenBack, StateError
from airflow_tx.state.aggregators import can_invert, difference, is_same
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.column_types import converted
from airflow_tx.state.columns import REFUSALS, Cells, Columns
from airflow_tx.state.keys import canonical_number, encode_key

if TYPE_CHECKING:
    from airflow_tx.journal.entry import Contribution
    from airflow_tx.state.api import QueryableState

Sole = Callable[[Sequence[Cells]], Sequence["Cells | None"]]
_ROWS_AT_ONCE = 10_000
LOST = 2.0**-53
"""The part of a double that its last digit may be wrong by."""
VISIBLE = 1e6
"""From how many times the new value on an old one leaves a visible error in the sum."""


# --- the two sides ----


@dataclass(frozen=True)
class Side:
    """One of the two contributions, in the types of the state.

    :param columns: of the state, without the value columns that the rows lack.
    :param gone: names of keys, as `key_name` gives them, that are left out.
    """

    columns: Columns
    key_types: Mapping[str, str]
    rows: Iterable[Mapping[str, Any]]
    whose: str
    gone: Set[str] = frozenset()

    def portions(self) -> Iterator[list[Cells]]:
        """Read the rows as cells: keys first, then values.

        :raises StateError: a row that does not fit the state.
        """
        rows = iter(self.rows)
        checked = CheckedRows(self.columns)
        try:
            while portion := list(islice(rows, _ROWS_AT_ONCE)):
                # Each portion alone: the check for keys that come twice would keep all of them.
                for columns in checked.portions(portion, self.key_types, size=_ROWS_AT_ONCE):
                    cells = self._cells(columns)
                    yield (
                        [each for each in cells if not self._is_gone(each)] if self.gone else cells
                    )
        except StateError as error:
            problem = f"{self.whose}: {error.fields['problem']}"
            raise type(error)(**{**error.fields, "problem": problem}) from None

    def keys(self) -> Iterator[list[Cells]]:
        """Read the keys."""
        split = len(self.columns.keys)
        for portion in self.portions():
            yield [cells[:split] for cells in portion]

    def by_key(self, portions: Iterable[Iterable[Cells]]) -> dict[Cells, Cells]:
        """Give the values of each key.

        :raises StateError: a key comes twice.
        """
        split = len(self.columns.keys)
        found = dict[Cells, Cells]()
        for portion in portions:
            for cells in portion:
                key = cells[:split]
                if key in found:
                    raise StateError(
                        state=self.columns.state,
                        problem=f"{self.whose}: key {shown_key(self.columns, key)} comes twice",
                        remedy="Aggregate by key before writing.",
                    )
                found[key] = cells[split:]
        return found

    def key_name(self, key: Cells) -> str:
        """Name a key by a digest: a record may outlive the right to keep the key itself."""
        types = [self.key_types[name] for name in self.columns.keys]
        return hashlib.sha256(encode_key(types, key)).hexdigest()[:16]

    def _is_gone(self, cells: Cells) -> bool:
        return self.key_name(cells[: len(self.columns.keys)]) in self.gone

    def _cells(self, columns: list[Sequence[Any]]) -> list[Cells]:
        for at, name in enumerate(self.columns.keys):
            if self.key_types[name] == "numeric":
                # 1.0 and 1.00 are one key, and have to come into one portion.
                columns[at] = list(map(canonical_number, columns[at]))
        return list(zip(*columns, strict=True))


def old_side(state: QueryableState, old: Contribution, gone: Set[str] = frozenset()) -> Side:
    """Give the earlier contribution; value columns that it lacks are new.

    :param gone: the keys of it that the state has lost since.
    """
    columns = state.columns
    key_types = {**old.keys, **columns.types, **(state.key_types() or {})}
    known = {
        name: each
        for name, each in columns.aggregators.items()
        if set(columns.composites[name].parts(name) if name in columns.composites else [name])
        <= old.values.keys()
    }
    own = replace(columns, aggregators=known)
    rows = _Again(old.rows, frozenset((*own.keys, *own.values, *known)))
    return Side(own, key_types, rows, "what the earlier transaction contributed", gone)


@dataclass(frozen=True)
class _Again(Iterable[Mapping[str, Any]]):
    """Rows that can be read again.

    :param names: of the columns that are taken: a state may have lost others since.
    """

    read: Callable[[], Iterator[Mapping[str, Any]]]
    names: Set[str]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self.read():
            yield row if row.keys() <= self.names else self._taken(row)

    def _taken(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: each for name, each in row.items() if name in self.names}


# --- one portion --------------------------------------------------------------------------------------------------


class DifferenceRows:
    """Compares the values of keys, portion by portion.

    :param known: the value columns that the earlier transaction knew.
    :param remedy: what to do about a value that cannot be taken back.
    :param sole: reads the values of keys to which no transaction but the earlier one has contributed; None: of none.
    :ivar equal: whether all values of all keys are the same, to the last digit. Another rule would leave out a small
        correction beside large values, and the journal would say that the state has it.
    :ivar lost: see `Difference`.
    """

    def __init__(
        self, columns: Columns, known: Sequence[str], remedy: str, sole: Sole | None = None
    ) -> None:
        self.columns = columns
        self._sole = sole
        self._remedy = remedy
        self.lost: dict[str, float] = {}
        self._at = [known.index(name) if name in known else None for name in columns.values]
        self.equal = True

    def rows(
        self, old: Mapping[Cells, Cells], new: Mapping[Cells, Cells]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Give the row of each key of either side, and apart from these the rows that replace values as a whole.

        :raises NotTakenBack: a value cannot be taken back.
        """
        keys = list(dict.fromkeys((*old, *new)))
        self.equal = self.equal and old.keys() == new.keys()
        alone = self._alone(keys, old)
        added = [key for key in keys if key not in alone]
        replaced = [key for key in keys if key in alone]
        return self._rows(added, old, new), self._rows(replaced, old, new, replacing=True)

    def _alone(self, keys: list[Cells], old: Mapping[Cells, Cells]) -> set[Cells]:
        """Find the keys that hold the earlier contribution and no other."""
        if self._sole is None or not keys:
            return set()
        found = zip(keys, self._sole(keys), strict=True)
        return {
            key for key, values in found if values is not None and self._holds(values, old.get(key))
        }

    def _holds(self, values: Cells, old: Cells | None) -> bool:
        """Compare: a person may have changed a value, and what came since is not to be lost."""
        pairs = zip(self.columns.values.values(), self._at, values, strict=True)
        return all(
            can_invert(each)
            or is_same(each.type, value, None if old is None or at is None else old[at])
            for each, at, value in pairs
        )

    def _rows(
        self,
        keys: list[Cells],
        old: Mapping[Cells, Cells],
        new: Mapping[Cells, Cells],
        *,
        replacing: bool = False,
    ) -> list[dict[str, Any]]:
        if not keys:
            return []
        nothing = (None,) * len(self.columns.values)
        before = [old.get(key, nothing) for key in keys]
        after = [new.get(key, nothing) for key in keys]
        columns = list(map(list, zip(*keys, strict=True)))
        for number, (name, at) in enumerate(zip(self.columns.values, self._at, strict=True)):
            values = list(map(itemgetter(number), after))
            if at is None:
                # A column that the earlier transaction did not know: the state gets the whole.
                self.equal = False
                columns.append(values)
            else:
                earlier = list(map(itemgetter(at), before))
                columns.append(self._deltas(name, keys, earlier, values, replacing=replacing))
        names = (*self.columns.keys, *self.columns.values)
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]

    def _deltas(
        self, name: str, keys: list[Cells], old: list[Any], new: list[Any], *, replacing: bool
    ) -> list[Any]:
        aggregator = self.columns.values[name]
        self.equal = self.equal and is_same(aggregator.type, old, new)
        if replacing and not can_invert(aggregator):
            return new
        if aggregator.type == "double" and hasattr(aggregator, "invert"):
            self._note_lost(name, old, new)
        try:
            deltas = list(map(partial(difference, aggregator), old, new))
            return list(converted(aggregator.type, deltas))
        except REFUSALS:
            raise self._refusal(name, keys, old, new) from None

    def _note_lost(self, name: str, old: list[Any], new: list[Any]) -> None:
        visible = [
            abs(one)
            for one, other in zip(old, new, strict=True)
            if one is not None and abs(one) > VISIBLE * abs(other or 0.0)
        ]
        if visible:
            self.lost[name] = max(self.lost.get(name, 0.0), LOST * max(visible))

    def _refusal(
        self, name: str, keys: list[Cells], old: list[Any], new: list[Any]
    ) -> NotTakenBack:
        aggregator = self.columns.values[name]
        for key, one, other in zip(keys, old, new, strict=True):
            try:
                converted(aggregator.type, [difference(aggregator, one, other)])
            except REFUSALS as error:
                values = f"was {str(one)[:200]} and is {str(other)[:200]} now"
                shown = shown_key(self.columns, key)
                problem = (
                    f"key {shown}: the {aggregator.name} of column {name} {values}; this {error}"
                )
                return NotTakenBack(state=self.columns.state, problem=problem, remedy=self._remedy)
        raise AssertionError("one of them was refused")


def shown_key(columns: Columns, key: Sequence[Any]) -> dict[str, Any]:
    """Name the columns of a key, for messages."""
    return dict(zip(columns.keys, key, strict=True))
