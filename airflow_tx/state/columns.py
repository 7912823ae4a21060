"""The columns of a keyed state and the rows that fit them: one check of an update for every store.

A delta is checked before the store sees it, so that each store refuses the same rows with the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.aggregators import PUSHED_DOWN, Aggregator, CombinerAggregator, CompositeAggregator, as_delta
from airflow_tx.state.column_types import (
    CONVERT,
    KEY_TYPES,
    converted,
    decode_key,
    encode_key,
    largest,
    size_of,
    type_of,
)
from airflow_tx.state.reducers import Reduced, is_reducer

RESERVED = "tx_"
MAX_KEY_BYTES = 1024
_NULL_KEY = "Filter such rows, or give them a key of their own."
_TWICE = "Aggregate by key before writing."
_NOTHING = "Nothing of this update was written."
_REFUSALS = (ValueError, TypeError, ArithmeticError)
Row = tuple[Any, ...]
Rows = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Columns:
    """The columns of one state.

    :param state: its name, for messages.
    :param keys: key columns; none: one row for everything.
    :param aggregators: aggregator per value column, as the user gave them.
    :param types: key column -> type; a column without one gets the type of the first row that arrives.
    :param max_value_bytes: a longer value is refused; None: any length.
    :ivar values: aggregator per stored value column: composites such as Avg are taken apart.
    """

    state: str
    keys: tuple[str, ...]
    aggregators: Mapping[str, Aggregator]
    types: Mapping[str, str]
    max_value_bytes: int | None = None
    values: Mapping[str, CombinerAggregator] = field(init=False, repr=False, compare=False)
    composites: Mapping[str, CompositeAggregator] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values, composites, parts = dict[str, Any](), dict[str, Any](), list[str]()
        for name, aggregator in self.aggregators.items():
            if hasattr(aggregator, "parts"):
                composites[name] = aggregator
                parts += aggregator.parts(name)
                values.update(aggregator.parts(name))
            else:
                parts.append(name)
                values[name] = Reduced(aggregator) if is_reducer(aggregator) else aggregator
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "composites", composites)
        names = [*self.keys, *parts, *composites]
        problem = ""
        if not values:
            problem = "it has no value column"
        elif len({name.lower() for name in names}) < len(names):
            problem = f"a column is named twice in keys {list(self.keys)} and values {[*parts, *composites]}"
        elif reserved := [name for name in names if not name or name.lower().startswith(RESERVED)]:
            problem = f"columns named {reserved} ({RESERVED}* is reserved)"
        elif unknown := {k: t for k, t in self.types.items() if k not in self.keys or t not in KEY_TYPES}:
            problem = f"types={unknown}: not a key column, or not one of {', '.join(KEY_TYPES)}"
        else:
            problem = _unusable(values)
        if problem:
            raise ConfigError(option=f"State {self.state!r}", value=names, remedy=f"{problem[0].upper()}{problem[1:]}.")

    def key_types(self, first: Mapping[str, Any]) -> dict[str, str]:
        """The type of each key column, taken from `types`, else from the first row.

        :raises StateError: the row has no usable value for a key column.
        """
        self._check_names(self._expanded([first], 0)[0], 0)
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

    # --- rows of an update ----------------------------------------------------------------------------------------

    def portions(
        self, rows: Iterable[Mapping[str, Any]], key_types: Mapping[str, str], *, size: int
    ) -> Iterator[list[Sequence[Any]]]:
        """The rows in portions, each as columns: keys first, then deltas, converted to the types of the columns.

        :raises StateError: a row that does not fit, or a key that comes twice; it names the row.
        """
        iterator, seen, start = iter(rows), set[Row](), 0
        kinds = [*(key_types[key] for key in self.keys), *(value.type for value in self.values.values())]
        while portion := self._expanded(list(islice(iterator, size)), start):
            columns = self._columns(portion, kinds, start)
            if self.keys:
                self._check_key_sizes(portion, kinds, columns, start)
                # Of one column, the values are as good as tuples of one.
                own = columns[0] if len(self.keys) == 1 else list(zip(*columns[: len(self.keys)], strict=True))
                self._check_once(portion, own, seen, start)
            elif start or len(portion) > 1:
                raise self._refusal(1, {}, "a state without keys takes one row", _TWICE)
            yield columns
            start += len(portion)

    def expanded(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with the parts of composite columns in place of their plain values.

        :raises ValueError, TypeError: a plain value that its composite does not take.
        """
        for name, composite in self.composites.items():
            if name in row and not set(row).intersection(composite.parts(name)):
                rest = {column: value for column, value in row.items() if column != name}
                row = {**rest, **composite.deltas(name, row[name])}
        return row

    def _expanded(self, portion: Rows, start: int) -> Rows:
        if not self.composites:
            return portion
        found = Rows()
        for number, row in enumerate(portion, start):
            try:
                found.append(self.expanded(row))
            except _REFUSALS as error:
                names = ", ".join(self.composites)
                raise self._refusal(number, row, f"a value of {names} {error}", "Look at the row.") from None
        return found

    def _columns(self, portion: Rows, kinds: Sequence[str], start: int) -> list[Sequence[Any]]:
        names = (*self.keys, *self.values)
        try:
            given = [list(map(itemgetter(name), portion)) for name in names]
        except KeyError:
            given = []
        # As many fields as columns, and each column among them: there is no other.
        if not given or set(map(len, portion)) != {len(names)}:
            for number, row in enumerate(portion, start):
                self._check_names(row, number)
        columns: list[Sequence[Any]] = []
        for name, kind, values in zip(names, kinds, given, strict=True):
            try:
                values = list(self._converted(name, kind, values))
            except _REFUSALS:
                raise self._misfit(portion, name, kind, start) from None
            if name in self.keys and None in values:
                number = values.index(None)
                raise self._refusal(start + number, portion[number], f"key {name!r} is NULL", _NULL_KEY)
            columns.append(values)
        return columns

    def _converted(self, name: str, kind: str, values: Sequence[Any]) -> Sequence[Any]:
        """The column in its type.

        :raises ValueError, TypeError, ArithmeticError: one of the values does not fit.
        """
        if name in self.keys:
            fitting = converted(kind, values)
            # -0.0 and 0.0 are equal, so they are one key.
            return [value if value is None else value + 0.0 for value in fitting] if kind == "double" else fitting
        aggregator = self.values[name]
        if hasattr(aggregator, "delta"):
            values = [as_delta(aggregator, value) for value in values]
        if isinstance(aggregator, Reduced):
            return values
        fitting = converted(kind, values)
        self._check_value_sizes(kind, fitting)
        return [0 if value is None else value for value in fitting] if aggregator.name == "count" else fitting

    def _check_value_sizes(self, kind: str, values: Sequence[Any]) -> None:
        limit = self.max_value_bytes
        if limit is None or largest(kind, values) <= limit:
            return
        size = max(size_of(kind, value) for value in values)
        if size > limit:
            raise ValueError(f"has {size} bytes, more than the {limit} that this state takes")

    def _check_key_sizes(
        self, portion: Rows, kinds: Sequence[str], columns: Sequence[Sequence[Any]], start: int
    ) -> None:
        keys = list(zip(kinds, columns[: len(self.keys)], strict=False))
        if sum(largest(kind, values) for kind, values in keys) <= MAX_KEY_BYTES:
            return
        for number, row in enumerate(portion):
            size = sum(size_of(kind, values[number]) for kind, values in keys)
            if size > MAX_KEY_BYTES:
                problem = f"its key has {size} bytes, more than {MAX_KEY_BYTES}"
                raise self._refusal(start + number, row, problem, "Use a shorter key, such as a hash of it.")

    def _check_once(self, portion: Rows, keys: Sequence[Any], seen: set[Any], start: int) -> None:
        fresh = set(keys)
        if len(fresh) == len(keys) and seen.isdisjoint(fresh):
            seen |= fresh
            return
        for number, key in enumerate(keys):
            if key in seen:
                raise self._refusal(start + number, portion[number], "its key comes twice", _TWICE)
            seen.add(key)

    # --- values ---------------------------------------------------------------------------------------------------

    def combined(self, key: Row, stored: Row | None, deltas: Row) -> Row:
        """The values after an update, for a store that reads and writes them; None is NULL.

        :param key: for messages.
        :param stored: None: there is no such key yet.
        :param deltas: as `portions` gives them.
        :raises StateError: they cannot be combined, or the result does not fit into its column.
        """
        before = stored if stored is not None else (None,) * len(deltas)
        return tuple(
            self._combined(key, name, aggregator, a, b)
            for (name, aggregator), a, b in zip(self.values.items(), before, deltas, strict=True)
        )

    def _combined(self, key: Row, name: str, aggregator: CombinerAggregator, a: Any, b: Any) -> Any:
        # A reducer that has no value yet starts from one of its own.
        if b is None or (a is None and not isinstance(aggregator, Reduced)):
            return b if a is None else a
        try:
            value = aggregator.combine(a, b)
            (value,) = converted(aggregator.type, [value])
            self._check_value_sizes(aggregator.type, [value])
        except _REFUSALS as error:
            shown = dict(zip(self.keys, key, strict=False))
            problem, remedy = explained(name, aggregator, error)
            raise StateError(
                state=self.state, problem=f"key {shown}: {problem}", remedy=f"{_NOTHING}{remedy}"
            ) from error
        return value

    def completed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row that was read, with the results of composite columns."""
        results = {
            name: composite.result({part: row[part] for part in composite.parts(name)})
            for name, composite in self.composites.items()
        }
        return {**row, **results}

    # --- keys -----------------------------------------------------------------------------------------------------

    def key_bytes(self, key: Sequence[Any], key_types: Mapping[str, str] | None = None) -> bytes:
        """A key as bytes, for a store without types: equal keys, and only these, have equal bytes.

        :param key: one value a key column, in the type of the column.
        :param key_types: as `key_types()` gave them; they can be left out if `types` names all key columns.
        """
        return encode_key(self._ordered(key_types), key)

    def key_of(self, data: bytes, key_types: Mapping[str, str] | None = None) -> Row:
        """The key that `key_bytes` made `data` from."""
        return decode_key(self._ordered(key_types), data)

    def _ordered(self, key_types: Mapping[str, str] | None) -> list[str]:
        found = {**self.types, **(key_types or {})}
        if missing := [key for key in self.keys if key not in found]:
            raise ConfigError(
                option=f"State {self.state!r}, types", value=missing, remedy="Name the types of all keys."
            )
        return [found[key] for key in self.keys]

    # --- refusals -------------------------------------------------------------------------------------------------

    def _check_names(self, row: Mapping[str, Any], number: int) -> None:
        expected = [*self.keys, *self.values]
        if set(row) != set(expected):
            missing = [name for name in expected if name not in row]
            extra = sorted(str(name) for name in row if name not in expected)
            instead = [
                f" {' and '.join(composite.parts(name))} may come as one column {name}."
                for name, composite in self.composites.items()
            ]
            raise StateError(
                state=self.state,
                problem=f"row {number}: expected columns {expected}, missing {missing}, not expected {extra}",
                remedy=f"Select exactly these columns before writing.{''.join(instead)}",
            )

    def _misfit(self, portion: Rows, name: str, kind: str, start: int) -> StateError:
        remedy = f"The column is a {kind}."
        if name in self.values and self.values[name].name == "sum":
            remedy += " Another type: Sum(type=...) with a new table."
        for number, row in enumerate(portion):
            try:
                self._converted(name, kind, [row[name]])
            except _REFUSALS as error:
                return self._refusal(start + number, row, f"{name} = {_shown(row[name])} {error}", remedy)
        return self._refusal(start, portion[0], f"{name} does not fit", remedy)

    def _refusal(self, number: int, row: Mapping[str, Any], problem: str, remedy: str) -> StateError:
        shown = {name: row.get(name) for name in self.keys}
        return StateError(state=self.state, problem=f"row {number} {_shown(shown)}: {problem}", remedy=remedy)


def explained(column: str, aggregator: CombinerAggregator, error: Exception) -> tuple[str, str]:
    """Why values could not be combined, and what can be done about it."""
    if aggregator.name != "sum" or not (isinstance(error, ArithmeticError) or aggregator.type != "numeric"):
        return f"the {aggregator.name} of column {column} {error}", ""
    problem, remedy = {
        "bigint": ("leaves 64 bits", ' Use Sum("numeric") with a new table.'),
        "double": ("is larger than any double", ' Use Sum("numeric") with a new table.'),
    }.get(
        aggregator.type,
        (
            "needs more digits than can be added exactly (1000)",
            ' Round the numbers before writing, or use Sum("double") with a new table.',
        ),
    )
    return f"the sum of column {column} {problem}", remedy


def _unusable(values: Mapping[str, Any]) -> str:
    for name, aggregator in values.items():
        given = aggregator.reducer if isinstance(aggregator, Reduced) else aggregator
        if not hasattr(aggregator, "combine"):
            return f"column {name!r} has {given!r}, which is no aggregator: it has neither combine(a, b) nor reduce"
        if missing := [each for each in ("name", "type") if not hasattr(given, each)]:
            return f"column {name!r} has {given!r}, which needs attributes of its own: {' and '.join(missing)}"
        if aggregator.type not in CONVERT:
            return f"column {name!r} has type {aggregator.type!r}, not one of {', '.join(CONVERT)}"
        if aggregator.name in PUSHED_DOWN and not type(given).__module__.startswith("airflow_tx."):
            return f"column {name!r} has an aggregator of your own named {aggregator.name!r}; give it another name"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
