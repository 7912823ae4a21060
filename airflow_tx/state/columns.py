"""The columns of a keyed state: defined in a DAG file and checked there, shown in its repr and serialized form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.aggregators import (
    PUSHED_DOWN,
    Aggregator,
    CombinerAggregator,
    CompositeAggregator,
    can_invert,
)
from airflow_tx.state.column_types import CONVERT, KEY_TYPES, converted, largest, size_of
from airflow_tx.state.reducers import Reduced, is_reducer

RESERVED = "tx_"
_NOTHING = "No row of this update was written."
# Errors with which a conversion or an aggregator refuses a value.
REFUSALS = (ValueError, TypeError, ArithmeticError)
Cells = tuple[Any, ...]


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
        values = dict[str, Any]()
        composites = dict[str, Any]()
        parts = list[str]()
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
        elif unknown := {
            k: t for k, t in self.types.items() if k not in self.keys or t not in KEY_TYPES
        }:
            problem = f"types={unknown}: not a key column, or not one of {', '.join(KEY_TYPES)}"
        else:
            problem = _unusable(values)
        if problem:
            raise ConfigError(
                option=f"State {self.state!r}",
                value=names,
                remedy=f"{problem[0].upper()}{problem[1:]}.",
            )

    @property
    def added_up(self) -> tuple[str, ...]:
        """Name the value columns whose total over all keys is exactly the sum of all added values."""
        exact = {"sum", "count"}
        return tuple(
            name
            for name, each in self.values.items()
            if each.name in exact and each.type == "bigint"
        )

    def expanded(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the parts of composite columns in place of their plain values; raises what the composite raises."""
        for name, composite in self.composites.items():
            if name in row and not set(row).intersection(composite.parts(name)):
                rest = {column: value for column, value in row.items() if column != name}
                row = {**rest, **composite.deltas(name, row[name])}
        return row

    # --- values ---------------------------------------------------------------------------------------------------

    def combined(
        self, key: Cells, stored: Cells | None, deltas: Cells, *, replacing: bool = False
    ) -> Cells:
        """Update values, for a store that reads and writes them; None is NULL.

        :param stored: None: there is no such key yet.
        :param deltas: as `portions` gives them.
        :param replacing: whether a value that no number takes back becomes what its delta is.
        :raises StateError: they cannot be combined, or the result does not fit into its column.
        """
        before = stored if stored is not None else (None,) * len(deltas)
        return tuple(
            b
            if replacing and not can_invert(aggregator)
            else self._combined(key, name, aggregator, a, b)
            for (name, aggregator), a, b in zip(self.values.items(), before, deltas, strict=True)
        )

    def _combined(
        self, key: Cells, name: str, aggregator: CombinerAggregator, a: Any, b: Any
    ) -> Any:
        # A reducer that has no value yet starts from one of its own.
        if b is None or (a is None and not isinstance(aggregator, Reduced)):
            return b if a is None else a
        try:
            value = aggregator.combine(a, b)
            (value,) = converted(aggregator.type, [value])
            self.check_sizes(aggregator.type, [value])
        except REFUSALS as error:
            problem, remedy = explained(name, aggregator, error)
            problem = f"key {dict(zip(self.keys, key, strict=False))}: {problem}"
            raise StateError(
                state=self.state, problem=problem, remedy=f"{_NOTHING}{remedy}"
            ) from error
        return value

    def check_sizes(self, kind: str, values: Sequence[Any]) -> None:
        """Refuse, by a ValueError, values that are longer than this state takes."""
        limit = self.max_value_bytes
        if limit is None or largest(kind, values) <= limit:
            return
        size = max(size_of(kind, value) for value in values)
        if size > limit:
            raise ValueError(f"has {size} bytes, more than the {limit} that this state takes")

    def completed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Add the results of composite columns to a row that was read."""
        results = {
            name: composite.result({part: row[part] for part in composite.parts(name)})
            for name, composite in self.composites.items()
        }
        return {**row, **results}

    # --- shown ----------------------------------------------------------------------------------------------------

    def serialized(self) -> dict[str, Any]:
        return {
            "keys": list(self.keys),
            "values": {
                name: {"aggregator": each.name, "type": each.type}
                for name, each in self.values.items()
            },
            "types": dict(self.types),
        }


def checked_columns(
    state: Any,
    keys: Iterable[str],
    values: Any,
    types: Any = None,
    max_value_bytes: int | None = None,
    *,
    option: str | None = None,
) -> Columns:
    """Check what the user of a keyed state gave as its columns.

    :param option: where they were given; None: to its class.
    :raises ConfigError: such as for one text as keys, whose letters would be taken for columns.
    """

    def refused(name: str, value: Any, remedy: str) -> ConfigError:
        return ConfigError(
            option=f"{option or type(state).__name__}({name}=)", value=value, remedy=remedy
        )

    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise refused("keys", keys, f"Give a list: keys=[{keys or 'day'!r}].")
    if not isinstance(values, Mapping):
        raise refused(
            "values", values, 'Give an aggregator for each value column: values={"n": Count()}.'
        )
    if classes := {name: made.__name__ for name, made in values.items() if isinstance(made, type)}:
        name, made = next(iter(classes.items()))
        raise refused(
            "values", values, f"Column {name!r} has a class, and needs an object of it: {made}()."
        )
    if types is not None and not isinstance(types, Mapping):
        raise refused("types", types, 'Give the types of key columns: types={"day": "text"}.')
    return Columns(state.name, tuple(keys), dict(values), dict(types or {}), max_value_bytes)


def explained(column: str, aggregator: CombinerAggregator, error: Exception) -> tuple[str, str]:
    """Say why values could not be combined, and what can be done about it."""
    if aggregator.name != "sum" or not (
        isinstance(error, ArithmeticError) or aggregator.type != "numeric"
    ):
        return f"the {aggregator.name} of column {column} {error}", ""
    remedy = ' Use Sum("numeric") with a new table.'
    problem = "leaves 64 bits" if aggregator.type == "bigint" else "is larger than any double"
    if aggregator.type == "numeric":
        problem = "needs more digits than can be added exactly (1000)"
        remedy = ' Round the numbers before writing, or use Sum("double") with a new table.'
    return f"the sum of column {column} {problem}", remedy


def _unusable(values: Mapping[str, Any]) -> str:
    for name, aggregator in values.items():
        given = aggregator.reducer if isinstance(aggregator, Reduced) else aggregator
        if not hasattr(aggregator, "combine"):
            return f"column {name!r} has {given!r}, which is no aggregator: it has no combine(a, b) and no reduce"
        if missing := [each for each in ("name", "type") if not hasattr(given, each)]:
            return f"column {name!r} has {given!r}, which needs attributes of its own: {' and '.join(missing)}"
        if aggregator.type not in CONVERT:
            return f"column {name!r} has type {aggregator.type!r}, not one of {', '.join(CONVERT)}"
        if aggregator.name in PUSHED_DOWN and not type(given).__module__.startswith("airflow_tx."):
            return f"column {name!r} has an aggregator of your own named {aggregator.name!r}; give it another name"
    return ""
