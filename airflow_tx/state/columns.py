"""The columns of a keyed state and the rows that fit them: one check of an update for every store.

A delta is checked before the store sees it, so that each store refuses the same rows with the same words.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import index, itemgetter
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.aggregators import CombinerAggregator
from airflow_tx.state.api import StateKind

RESERVED = "tx_"
_BIGINT = 2**63
_NULL_KEY = "Filter such rows, or give them a key of their own."
Row = tuple[Any, ...]


def _bigint(value: Any) -> int:
    if type(value) is not int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError("is not an integer")
        value = index(value)
    if not -_BIGINT <= value < _BIGINT:
        raise ValueError("does not fit into 64 bits")
    return int(value)


def _double(value: Any) -> float:
    if isinstance(value, (str, bool, Decimal)) or not hasattr(value, "__float__"):
        raise TypeError("is not a float")
    value = float(value)
    if not math.isfinite(value):
        raise ValueError("is not finite (a missing value is None)")
    return float(value)


def _numeric(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise TypeError("is not a Decimal")
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("is not finite (a missing value is None)")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("is not a text")
    if "\x00" in value:
        raise ValueError("holds a NUL character")
    return str(value)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"is not a {kind.__name__}")
        return value

    return check


def _timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise TypeError("is not a datetime without time zone")
    return value


def _timestamptz(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise TypeError("is not a datetime with time zone")
    return value.astimezone(dt.timezone.utc)


CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "bigint": _bigint,
    "double": _double,
    "numeric": _numeric,
    "text": _text,
    "boolean": _exactly(bool),
    "date": _exactly(dt.date),
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
}


def type_of(value: Any) -> str | None:
    """The column type that fits a key value; None if there is none."""
    if isinstance(value, dt.datetime):
        return "timestamp" if value.tzinfo is None else "timestamptz"
    for kind, name in ((bool, "boolean"), (str, "text"), (Decimal, "numeric"), (dt.date, "date"), (float, "double")):
        if isinstance(value, kind):
            return name
    return "bigint" if hasattr(value, "__index__") else None


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

    def checked(
        self, rows: Iterable[Mapping[str, Any]], key_types: Mapping[str, str], *, seen: set[Row]
    ) -> Iterator[Row]:
        """Each row as a tuple, keys first, then deltas, converted to the types of the columns.

        :param seen: keys of earlier rows of this update; grows.
        :raises StateError: a row that does not fit; it names the row.
        """
        names = (*self.keys, *self.values)
        convert = [CONVERT[key_types[key]] for key in self.keys] + [
            CONVERT[value.type] for value in self.values.values()
        ]
        absent: Sequence[Any] = [0 if agg.name == "count" else None for agg in self.values.values()]
        width, split = len(names), len(self.keys)
        pick: Callable[[Mapping[str, Any]], Row] = itemgetter(*names) if width > 1 else lambda row: (row[names[0]],)
        for number, row in enumerate(rows):
            if len(row) != width or not all(name in row for name in names):
                self._check_names(row, number)
            picked = pick(row)
            try:
                key = tuple([fit(value) for fit, value in zip(convert[:split], picked[:split])])
                deltas = [
                    none if value is None else fit(value)
                    for fit, value, none in zip(convert[split:], picked[split:], absent)
                ]
            except (ValueError, TypeError, OverflowError):
                raise self._misfit(number, row, picked, convert, names) from None
            if key in seen:
                raise self._refusal(
                    number, row, f"key {self._show(key)} comes twice", "Aggregate by key before writing."
                )
            seen.add(key)
            yield (*key, *deltas)

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

    def _misfit(
        self, number: int, row: Mapping[str, Any], picked: Row, convert: Sequence[Callable[[Any], Any]], names: Row
    ) -> StateError:
        for position, (name, value, fit) in enumerate(zip(names, picked, convert)):
            if value is None and position >= len(self.keys):
                continue
            if value is None:
                return self._refusal(number, row, f"key {name!r} is NULL", _NULL_KEY)
            try:
                fit(value)
            except (ValueError, TypeError, OverflowError) as error:
                remedy = f"The column is a {self._type(name, fit)}."
                if name in self.values:
                    remedy += " Another type: Sum(type=...) with a new table."
                return self._refusal(number, row, f"{name} = {value!r} {error}", remedy)
        return self._refusal(number, row, "it does not fit", "Compare it with the columns of the state.")

    def _type(self, name: str, fit: Callable[[Any], Any]) -> str:
        return next((kind for kind, convert in CONVERT.items() if convert is fit), name)

    def _refusal(self, number: int, row: Mapping[str, Any], problem: str, remedy: str) -> StateError:
        shown = {name: row[name] for name in self.keys}
        return StateError(state=self.state, problem=f"row {number} {shown}: {problem}", remedy=remedy)

    def _show(self, key: Row) -> str:
        return str(dict(zip(self.keys, key)))


def fenced_kind(kind: StateKind | str, *, state: str) -> StateKind:
    """The kind of a fenced state.

    :raises ConfigError: it is no kind that a fence can make exact.
    """
    if kind not in (StateKind.OPAQUE, StateKind.TRANSACTIONAL):
        raise ConfigError(option=f"kind of state {state!r}", value=str(kind), remedy='Use "opaque" or "transactional".')
    return StateKind(kind)
