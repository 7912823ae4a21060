"""Check and convert the rows of an update in portions, in the same way for every store.

Deltas are checked before they reach the store. As a result, every store refuses the same rows with the same message.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from airflow_tx.base.errors import StateError
from airflow_tx.state.aggregators import REFUSALS, Columns, Reduced, as_delta
from airflow_tx.state.api import FencedState
from airflow_tx.state.column_types import converted, converted_keys, largest, size_of, type_of

# --- checked rows -------------------------------------------------------------------------------------------------


MAX_KEY_BYTES = 1024
_NULL_KEY = "Filter such rows, or give them a key of their own."
_TWICE = "Aggregate by key before writing."
_Rows = list[Mapping[str, Any]]


class _Seen:
    """Remembers keys, to find the first key that occurs twice."""

    def __init__(self) -> None:
        self._keys = set[Any]()
        self._portions: list[Sequence[Any]] = []

    def add(self, keys: Sequence[Any]) -> bool:
        """Add a portion of keys. For each key, return whether it is new."""
        before = len(self._keys)
        self._keys.update(keys)
        self._portions.append(keys)
        return len(self._keys) == before + len(keys)

    def repeated(self) -> int:
        """Return the number of the first key in the newest portion that has occurred before."""
        *earlier, last = self._portions
        found = set(chain.from_iterable(earlier))
        for number, key in enumerate(last):
            if key in found:
                return number
            found.add(key)
        raise AssertionError("each of them is new")


@dataclass(frozen=True)
class CheckedRows:
    """Checks that rows fit the columns of a state."""

    columns: Columns

    def key_types(self, first: Mapping[str, Any]) -> dict[str, str]:
        """Return the type of each key column, as given in the state's `types` or else determined by the first row.

        :raises StateError: the row has no usable value for a key column.
        """
        names = [*self.columns.keys, *self.columns.values]
        self._check_names(self._expanded([first], 0)[0], 0, names)
        found: dict[str, str] = {}
        for key in self.columns.keys:
            kind = self.columns.types.get(key) or type_of(first[key])
            if first[key] is None:
                raise self._refusal(0, first, f"key {key!r} is NULL", _NULL_KEY)
            if kind is None:
                problem = f"key {key!r} = {first[key]!r} has no usable type"
                raise self._refusal(0, first, problem, "Make it a text or a number.")
            found[key] = kind
        return found

    def portions(
        self, rows: Iterable[Mapping[str, Any]], key_types: Mapping[str, str], *, size: int
    ) -> Iterator[list[Sequence[Any]]]:
        """Divide the rows into portions.

        A portion is a list of converted columns: first the keys, then the deltas.

        :raises StateError: a row does not fit, or a key occurs twice. The message names the row.
        """
        iterator = iter(rows)
        seen = _Seen()
        start = 0
        keys = self.columns.keys
        kinds = [
            *(key_types[key] for key in keys),
            *(value.type for value in self.columns.values.values()),
        ]
        names = (*keys, *self.columns.values)
        while portion := list(islice(iterator, size)):
            columns = self.converted_columns(portion, dict(zip(names, kinds, strict=True)), start)
            if keys:
                self._check_key_sizes(portion, kinds, columns, start)
                # With one key column, compare plain values, because tuples are not needed.
                own = (
                    columns[0] if len(keys) == 1 else list(zip(*columns[: len(keys)], strict=True))
                )
                if not seen.add(own):
                    number = seen.repeated()
                    raise self._refusal(
                        start + number, portion[number], "its key occurs twice", _TWICE
                    )
            elif start or len(portion) > 1:
                raise self._refusal(1, {}, "a state without keys stores one row", _TWICE)
            yield columns
            start += len(portion)

    def _expanded(self, portion: _Rows, start: int) -> _Rows:
        if not self.columns.composites:
            return portion
        found = _Rows()
        for number, row in enumerate(portion, start):
            try:
                found.append(self.columns.expanded(row))
            except REFUSALS as error:
                names = ", ".join(self.columns.composites)
                raise self._refusal(
                    number, row, f"a value of {names} {error}", "Correct the value in this row."
                ) from None
        return found

    def converted_columns(
        self,
        rows: _Rows,
        kinds: Mapping[str, str | None],
        start: int,
        *,
        others: bool = False,
    ) -> list[Sequence[Any]]:
        """Convert the columns of some rows to their types.

        :param kinds: type by column; None if the values stay unchanged.
        :param start: number of the first row.
        :param others: whether the rows may have more columns.
        :raises StateError: a row does not fit. The message names the row.
        """
        portion = self._expanded(rows, start)
        try:
            given = [list(map(itemgetter(name), portion)) for name in kinds]
        except (KeyError, TypeError, IndexError):
            given = []
        # Every column has a field, and there are as many fields as columns, so no field is left
        # over.
        if not given or (not others and set(map(len, portion)) != {len(kinds)}):
            for number, row in enumerate(portion, start):
                self._check_names(row, number, list(kinds), others=others)
        columns: list[Sequence[Any]] = []
        for (name, kind), values in zip(kinds.items(), given, strict=True):
            try:
                values = values if kind is None else list(self._converted(name, kind, values))
            except REFUSALS:
                raise self._misfit(portion, name, str(kind), start) from None
            if name in self.columns.keys and None in values:
                number = values.index(None)
                raise self._refusal(
                    start + number, portion[number], f"key {name!r} is NULL", _NULL_KEY
                )
            columns.append(values)
        return columns

    def _converted(self, name: str, kind: str, values: Sequence[Any]) -> Sequence[Any]:
        if name in self.columns.keys:
            return converted_keys(kind, values)
        aggregator = self.columns.values[name]
        if hasattr(aggregator, "delta"):
            values = [as_delta(aggregator, value) for value in values]
        if isinstance(aggregator, Reduced):
            return values
        fitting = converted(kind, values)
        self.columns.check_sizes(kind, fitting)
        return (
            [0 if value is None else value for value in fitting]
            if aggregator.name == "count"
            else fitting
        )

    def _check_key_sizes(
        self, portion: _Rows, kinds: Sequence[str], columns: Sequence[Sequence[Any]], start: int
    ) -> None:
        keys = list(zip(kinds, columns[: len(self.columns.keys)], strict=False))
        if sum(largest(kind, values) for kind, values in keys) <= MAX_KEY_BYTES:
            return
        for number, row in enumerate(portion):
            size = sum(size_of(kind, values[number]) for kind, values in keys)
            if size > MAX_KEY_BYTES:
                problem = f"its key has {size} bytes, more than {MAX_KEY_BYTES}"
                raise self._refusal(
                    start + number, row, problem, "Use a shorter key, such as a hash of it."
                )

    # --- refusals -------------------------------------------------------------------------------------------------

    def _check_names(
        self, row: Any, number: int, expected: Sequence[str], *, others: bool = False
    ) -> None:
        if not isinstance(row, Mapping):
            remedy = f"Return rows as dicts with the columns {', '.join(expected)}."
            raise self._refusal(number, row, "it is not a dict", remedy)
        missing = [name for name in expected if name not in row]
        if missing or (not others and len(row) != len(expected)):
            extra = sorted(str(name) for name in row if name not in expected)
            instead = [
                f" One column {name} can replace {' and '.join(composite.parts(name))}."
                for name, composite in self.columns.composites.items()
            ]
            raise StateError(
                state=self.columns.state,
                problem=f"row {number}: expected columns {list(expected)}, missing {missing}, not expected {extra}",
                remedy=f"Select exactly these columns before writing.{''.join(instead)}",
            )

    def _misfit(self, portion: _Rows, name: str, kind: str, start: int) -> StateError:
        remedy = f"The column has the type {kind}."
        if name in self.columns.values and self.columns.values[name].name == "sum":
            remedy += " To use another type, set Sum(type=...) with a new table."
        for number, row in enumerate(portion):
            try:
                self._converted(name, kind, [row[name]])
            except REFUSALS as error:
                return self._refusal(
                    start + number, row, f"{name} = {_shown(row[name])} {error}", remedy
                )
        return self._refusal(start, portion[0], f"{name} does not fit", remedy)

    def _refusal(self, number: int, row: Any, problem: str, remedy: str) -> StateError:
        shown = row
        if isinstance(row, Mapping):
            shown = {name: row.get(name) for name in self.columns.keys}
        return StateError(
            state=self.columns.state,
            problem=f"row {number} {_shown(shown)}: {problem}",
            remedy=remedy,
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


# --- combined rows ------------------------------------------------------------------------------------------------
# Combine rows into one row per key, which is the form that a state accepts.


_Row = Mapping[str, Any]
_Key = tuple[Hashable, ...]
_ROWS_AT_ONCE = 10_000
_PLAIN = {int, str, float, bool, bytes, Decimal, dt.date}
"""Classes whose equal values are always the same key.

Datetimes are excluded: when daylight saving time ends, two times that compare equal can be an hour apart.
"""


def has_reducers(state: FencedState) -> bool:
    """Return whether any value column of a state has a reducer. Such a state accepts several rows per key."""
    return bool(reducers_of(state.columns))


def reducers_of(columns: Columns | None) -> tuple[str, ...]:
    return () if columns is None else columns.reducers


def combined(rows: Iterable[_Row], state: FencedState) -> Iterator[dict[str, Any]]:
    """Combine the deltas of each key with the aggregators of the state. A reducer gets the list of the rows, in order.

    Values are converted to the types of their columns before they are combined. If the state has no columns, the rows
    stay unchanged.

    :raises StateError: a row has no key, or its deltas do not fit or cannot be combined.
    """
    if state.columns is None:
        yield from map(dict, rows)
        return
    yield from _Group(state).add_all(rows).rows()


def combined_runs(rows: Iterable[_Row], state: Any) -> Iterator[dict[str, Any]]:
    """Combine rows that are sorted by key.

    Only the rows of one key are in memory at a time. Raises the same errors as `combined`.
    """
    keys = state.columns.keys
    for _, run in groupby(rows, lambda row: tuple(row[name] for name in keys)):
        yield from combined(run, state)


def combined_at_once(rows: Iterable[_Row], state: Any) -> dict[str, Any]:
    """Combine all rows into the single row of a state without keys.

    A reducer iterates over `rows` again, so that rows do not stay in memory.
    """
    group = _Group(state, keep_rows=False).add_all(rows)
    return {**next(group.rows(), {}), **dict.fromkeys(reducers_of(state.columns), rows)}


class _Group:
    def __init__(self, state: Any, *, keep_rows: bool = True) -> None:
        self._state = state
        columns = state.columns
        self._keys: tuple[str, ...] = columns.keys
        self._reducers = reducers_of(columns)
        self._keeps_rows = bool(self._reducers) and keep_rows
        self._combiners = dict(columns.values)
        for name in self._reducers:
            del self._combiners[name]
        self._checked = CheckedRows(columns)
        self._kinds = {name: columns.types.get(name) for name in self._keys}
        for name, each in self._combiners.items():
            self._kinds[name] = each.type
        self._classes = {name: set[type]() for name, kind in self._kinds.items() if kind is None}
        self._key_types: Mapping[str, str] | None = None
        self._first: _Row = {}
        self._deltas = dict[_Key, list[Any]]()
        self._rows = dict[_Key, list[_Row]]()

    def add_all(self, rows: Iterable[_Row]) -> _Group:
        iterator = iter(rows)
        start = 0
        while portion := list(islice(iterator, _ROWS_AT_ONCE)):
            self._first = self._first or portion[0]
            self._add(portion, start)
            start += len(portion)
        return self

    def rows(self) -> Iterator[dict[str, Any]]:
        names = (*self._keys, *self._combiners)
        for key, deltas in self._deltas.items():
            row = dict(zip(names, (*key, *deltas), strict=True))
            if self._reducers:
                # Pass other columns to the reducers, which share one list of rows.
                row.update(dict.fromkeys(self._reducers, self._rows.get(key, [])))
            yield row

    def _add(self, portion: list[_Row], start: int) -> None:
        for name in self._classes:
            self._settle(name, portion)
        found = self._checked.converted_columns(
            portion, self._kinds, start, others=bool(self._reducers)
        )
        split = len(self._keys)
        nothing = [()] * len(portion)
        keys = list(zip(*found[:split], strict=True)) if split else nothing
        kept = self._deltas
        combiners = [each.combine for each in self._combiners.values()]
        deltas = zip(*found[split:], strict=True) if combiners else nothing
        for number, (key, new) in enumerate(zip(keys, deltas, strict=True), start):
            known = kept.get(key)
            if known is None:
                kept[key] = list(new)
                continue
            for at, delta in enumerate(new):
                if delta is None:
                    continue
                before = known[at]
                try:
                    known[at] = delta if before is None else combiners[at](before, delta)
                except REFUSALS as error:
                    raise self._misfit(number, portion[number - start], error) from None
        if self._keeps_rows:
            for key, row in zip(keys, portion, strict=True):
                self._rows.setdefault(key, []).append(dict(row))

    # --- keys without a declared type ----

    def _settle(self, name: str, portion: Sequence[_Row]) -> None:
        """Return the type of a key column. Return None if all of its values have the same plain class."""
        if self._kinds[name] is not None:
            return
        try:
            values = map(itemgetter(name), portion)
            classes = set(map(type, values))
        except (KeyError, TypeError, IndexError):
            return  # the conversion of the columns refuses values of other classes
        known = self._classes[name]
        known |= classes - {type(None)}
        if len(known) <= 1 and known <= _PLAIN:
            return
        if self._key_types is None:
            # Read the types only when they are needed, because this may take a request to the
            # store.
            stored = getattr(self._state, "key_types", None)
            self._key_types = (stored and stored()) or self._types_of_first()
        # A key that was combined earlier may not fit this type. The state then refuses the key.
        self._kinds[name] = self._key_types[name]

    def _types_of_first(self) -> Mapping[str, str]:
        own = {key: self._first[key] for key in self._keys}
        return self._checked.key_types({**dict.fromkeys(self._state.columns.values), **own})

    def _misfit(self, number: int, row: Any, error: Exception) -> StateError:
        columns = [*self._keys, *self._combiners]
        return StateError(
            state=self._state.name,
            problem=f"row {number} = {str(row)[:200]} cannot be used ({type(error).__name__}: {error})",
            remedy=f"Return rows as dicts with the columns {', '.join(columns)}.",
        )
