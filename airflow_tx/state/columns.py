"""The columns of a keyed state and the rows that fit them: one check of an update for every store.

A delta is checked before the store sees it, so that each store refuses the same rows with the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.aggregators import CombinerAggregator
from airflow_tx.state.api import StateKind
from airflow_tx.state.column_types import CONVERT, converted, type_of

RESERVED = "tx_"
_NULL_KEY = "Filter such rows, or give them a key of their own."
_TWICE = "Aggregate by key before writing."
Row = tuple[Any, ...]
Rows = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Columns:
    """The columns of one state.

    :param state: its name, for messages.
    :param keys: key columns; none: one row for everything.
    :param values: aggregator per value column.
    :param types: key column -> type; a column without one gets the type of the first row that arrives.
    """

    state: str
    keys: tuple[str, ...]
    values: Mapping[str, CombinerAggregator]
    types: Mapping[str, str]

    def __post_init__(self) -> None:
        names = [*self.keys, *self.values]
        problem = ""
        if not self.values:
            problem = "it has no value column"
        elif len({name.lower() for name in names}) < len(names):
            problem = f"a column is named twice in keys {list(self.keys)} and values {list(self.values)}"
        elif reserved := [name for name in names if not name or name.lower().startswith(RESERVED)]:
            problem = f"columns named {reserved} ({RESERVED}* is reserved)"
        elif unknown := {k: t for k, t in self.types.items() if k not in self.keys or t not in CONVERT}:
            problem = f"types={unknown}: not a key column, or not one of {', '.join(CONVERT)}"
        if problem:
            raise ConfigError(option=f"State {self.state!r}", value=names, remedy=f"{problem[0].upper()}{problem[1:]}.")

    def key_types(self, first: Mapping[str, Any]) -> dict[str, str]:
        """The type of each key column, taken from `types`, else from the first row.

        :raises StateError: the row has no usable value for a key column.
        """
        self._check_names(first, 0)
        found: dict[str, str] = {}
        for key in self.keys:
            kind = self.types.get(key) or type_of(first[key])
            if first[key] is None:
                raise self._refusal(0, first, f"key {key!r} is NULL", _NULL_KEY)
            if kind is None:
                raise self._refusal(
                    0, first, f"key {key!r} = {first[key]!r} has no usable type", "Make it a text or a number."
                )
            found[key] = kind
        return found

    def portions(
        self, rows: Iterable[Mapping[str, Any]], key_types: Mapping[str, str], *, size: int
    ) -> Iterator[list[Sequence[Any]]]:
        """The rows in portions, each as columns: keys first, then deltas, converted to the types of the columns.

        :raises StateError: a row that does not fit, or a key that comes twice; it names the row.
        """
        iterator, seen, start = iter(rows), set[Row](), 0
        kinds = [*(key_types[key] for key in self.keys), *(value.type for value in self.values.values())]
        while portion := list(islice(iterator, size)):
            columns = self._columns(portion, kinds, start)
            if self.keys:
                self._check_once(portion, list(zip(*columns[: len(self.keys)], strict=True)), seen, start)
            elif start or len(portion) > 1:
                raise self._refusal(1, {}, "a state without keys takes one row", _TWICE)
            yield columns
            start += len(portion)

    def _columns(self, portion: Rows, kinds: Sequence[str], start: int) -> list[Sequence[Any]]:
        names = (*self.keys, *self.values)
        if set(map(len, portion)) != {len(names)} or not all(map(set(names).issubset, portion)):
            for number, row in enumerate(portion, start):
                self._check_names(row, number)
        columns: list[Sequence[Any]] = []
        for name, kind in zip(names, kinds, strict=True):
            values = list(map(itemgetter(name), portion))
            try:
                values = list(converted(kind, values))
            except (ValueError, TypeError, OverflowError):
                raise self._misfit(portion, name, kind, start) from None
            if name in self.keys and None in values:
                number = values.index(None)
                raise self._refusal(start + number, portion[number], f"key {name!r} is NULL", _NULL_KEY)
            if name in self.values and self.values[name].name == "count":
                values = [0 if value is None else value for value in values]
            columns.append(values)
        return columns

    def _check_once(self, portion: Rows, keys: list[Row], seen: set[Row], start: int) -> None:
        if len(set(keys)) == len(keys) and seen.isdisjoint(keys):
            seen.update(keys)
            return
        for number, key in enumerate(keys):
            if key in seen:
                raise self._refusal(start + number, portion[number], "its key comes twice", _TWICE)
            seen.add(key)

    def _check_names(self, row: Mapping[str, Any], number: int) -> None:
        expected = [*self.keys, *self.values]
        if set(row) != set(expected):
            missing = [name for name in expected if name not in row]
            extra = sorted(str(name) for name in row if name not in expected)
            raise StateError(
                state=self.state,
                problem=f"row {number}: expected columns {expected}, missing {missing}, not expected {extra}",
                remedy="Select exactly these columns before writing.",
            )

    def _misfit(self, portion: Rows, name: str, kind: str, start: int) -> StateError:
        remedy = f"The column is a {kind}."
        if name in self.values:
            remedy += " Another type: Sum(type=...) with a new table."
        for number, row in enumerate(portion):
            try:
                converted(kind, [row[name]])
            except (ValueError, TypeError, OverflowError) as error:
                return self._refusal(start + number, row, f"{name} = {row[name]!r} {error}", remedy)
        return self._refusal(start, portion[0], f"{name} does not fit", remedy)

    def _refusal(self, number: int, row: Mapping[str, Any], problem: str, remedy: str) -> StateError:
        shown = {name: row[name] for name in self.keys}
        return StateError(state=self.state, problem=f"row {number} {shown}: {problem}", remedy=remedy)


def fenced_kind(kind: StateKind | str, *, state: str) -> StateKind:
    """The kind of a fenced state.

    :raises ConfigError: it is no kind that a fence can make exact.
    """
    if kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
        raise ConfigError(option=f"kind of state {state!r}", value=str(kind), remedy='Use "opaque" or "transactional".')
    return StateKind(kind)
