"""Trident's aggregators, which combine the deltas of a batch with stored values. A store computes some of them itself.

NULL behaves as in SQL: it means no value and changes nothing. A sum, minimum or set of only NULLs is NULL.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, ClassVar, Protocol, TypeAlias, TypeGuard, TypeVar

from airflow_tx.base.errors import ConfigError, StateError
from airflow_tx.state.column_types import (
    KEY_TYPES,
    STATE_TYPES,
    converted,
    json_text,
    largest,
    size_of,
)

# --- reducers -----------------------------------------------------------------------------------------------------
# Aggregators that reduce rows. The delta of a key is the list of its rows, in order.
#
# Source: trident-state seed (persistentAggregate).


_T = TypeVar("_T")


class ReducerAggregator(Protocol[_T]):
    """Trident's ReducerAggregator, which reduces rows to a value, one after another."""

    def init(self) -> _T:
        """Return the initial value, before any row."""

    def reduce(self, current: _T, row: Any) -> _T:
        """Compute the value after one more row.

        :param current: the value so far, which you may change and return.
        """


class StoredReducer(ReducerAggregator[_T], Protocol[_T]):
    """A value column that a ReducerAggregator computes. It reduces a key's rows into the key's stored value.

    A row is a dict of all emitted fields: the key columns, the columns of other aggregators, and any other columns. The
    rows of a key come in the order of the output. The state stores the result after the last row, in the type of the
    column. It stores None as NULL, and the next update then starts from `init()`.

    If a commit is tried again, `reduce` is called again for the same rows, from the value before them.
    """

    @property
    def name(self) -> str:
        """The aggregator's name in the state's description. Stores do not use this name."""

    @property
    def type(self) -> str:
        """The column type of the value: bigint, text, json …"""


@dataclass(frozen=True)
class Reduced:
    """Wraps a reducer as an aggregator that no store computes itself. Its delta is the list of a key's rows.

    Every try of a write iterates over the delta again, so it must be a list or similar.
    """

    reducer: StoredReducer[Any]

    @property
    def name(self) -> str:
        return self.reducer.name

    @property
    def type(self) -> str:
        return self.reducer.type

    def zero(self) -> Any:
        return self.reducer.init()

    def init(self, value: Any) -> list[Any]:
        return [value]

    def delta(self, rows: Any) -> Iterable[Mapping[str, Any]] | None:
        """Check that a key's rows are a list or similar, and raise TypeError otherwise.

        Return None if there are no rows.
        """
        if rows is None:
            return None
        if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
            raise TypeError("is not a list of rows, which a reducer needs")
        if iter(rows) is rows:
            raise TypeError("can be iterated only once, and a reducer needs a list of rows")
        return rows

    def combine(self, stored: Any, rows: Any) -> Any:
        """Reduce all rows of a key to its new value. A new key starts from `init()`.

        :raises ValueError: the reducer failed. The message names the row.
        """
        # The reducer may change its copy. An opaque state stores the original as the previous value.
        value = self.reducer.init() if stored is None else copy.deepcopy(stored)
        for row in rows:
            try:
                value = self.reducer.reduce(value, row)
            except Exception as error:
                raise ValueError(
                    f"failed at row {str(row)[:200]} ({type(error).__name__}: {error})"
                ) from error
        return value


def is_reducer(aggregator: Any) -> TypeGuard[StoredReducer[Any]]:
    return hasattr(aggregator, "reduce") and not hasattr(aggregator, "combine")


# --- aggregators --------------------------------------------------------------------------------------------------


# The default context of Python's decimal module would silently round to 28 digits.
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])
# A quotient may have infinitely many digits, so it is rounded.
_QUOTIENT = Context(prec=38)

# Aggregators that a store computes itself. For other aggregators, the state reads the values,
# combines them here and writes them back, in bulk.
PUSHED_DOWN = ("sum", "count", "min", "max", "first", "last")
NUMBERS = ("bigint", "double", "numeric")


def add(a: Any, b: Any) -> Any:
    """Add two numbers of one type, or NULL. The sum is exact for int and Decimal."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return _EXACT.add(a, b)
    return a + b


def as_delta(aggregator: Any, value: Any) -> Any:
    """Convert the value of a row to the form that `combine` expects."""
    return aggregator.delta(value) if hasattr(aggregator, "delta") else value


def can_invert(aggregator: Any) -> bool:
    """Return whether an aggregator can subtract any value.

    Otherwise, a stored value can only be replaced completely.
    """
    return getattr(aggregator, "invert", None) is not None


def difference(aggregator: Any, old: Any, new: Any) -> Any:
    """Compute the delta that replaces `old` by `new` in a stored value that may also contain other values.

    :param aggregator: the aggregator of the stored column. `old` and `new` have the type of the column; None is NULL,
        which means no value.
    :raises ValueError: the aggregator cannot subtract `old`. Its `invert` may raise other errors.
    """
    invert = getattr(aggregator, "invert", None)
    if invert is not None:
        taken = None if old is None else invert(old)
        return new if taken is None else taken if new is None else aggregator.combine(new, taken)
    if is_same(aggregator.type, old, new):
        return None
    # The stored value already contains `old`. If combining `old` with `new` gives `new`, the delta
    # `new` alone replaces `old`.
    if getattr(aggregator, "idempotent", False) and new is not None:
        if old is None or is_same(aggregator.type, aggregator.combine(old, new), new):
            return new
    raise ValueError("cannot be taken back")


def is_same(kind: str, one: Any, other: Any) -> bool:
    """Compare two values, or two lists of values, of a column type.

    In JSON, 1, 1.0 and true are three different values.
    """
    return json_text(one) == json_text(other) if kind == "json" else bool(one == other)


class CombinerAggregator(Protocol):
    """Trident's CombinerAggregator: values that can be combined in any grouping, in the order of the rows.

    `name` identifies the aggregation to stores that compute it themselves. `type` is the column type of the stored
    value. The name of your own aggregator must not be in `PUSHED_DOWN`. States never call its `combine` with None.

    For restatements, an aggregator may have one more attribute. The method ``invert(value)`` returns the value that
    removes `value`: ``combine(combine(a, b), invert(b))`` is `a`. ``idempotent = True`` means that ``combine(a, a)`` is
    `a`. With either attribute, the result must not depend on the order of the rows.
    """

    @property
    def name(self) -> str:
        """The name of the aggregation, for stores that compute it themselves."""

    @property
    def type(self) -> str:
        """The column type of the stored value: bigint, text, json …"""

    def zero(self) -> Any:
        """Return the value for an empty set of rows."""

    def init(self, value: Any) -> Any:
        """Return the value of a single row."""

    def combine(self, a: Any, b: Any) -> Any:
        """Combine two values. The rows of `a` come before the rows of `b`.

        If `combine` raises one of the following errors, the state refuses the whole update. The message includes the
        text of the error.

        :raises ValueError: the values cannot be combined.
        :raises TypeError: the types of the values cannot be combined.
        :raises ArithmeticError: the result cannot be computed.
        """


class CompositeAggregator(Protocol):
    """An aggregator that stores its value in several columns.

    Reading a value computes the result from these columns.
    """

    @property
    def name(self) -> str:
        """The name of the aggregator in messages."""

    def parts(self, column: str) -> dict[str, CombinerAggregator]:
        """Return the names of the stored columns for the value column `column`."""

    def deltas(self, column: str, value: Any) -> dict[str, Any]:
        """Return the contribution of one row with this value to each part."""

    def result(self, row: Mapping[str, Any]) -> Any:
        """Compute the result from the stored values of the parts, in their order.

        The attribute `result_type` is its column type. Without it, the commit's new values contain only the parts.
        """


Aggregator: TypeAlias = CombinerAggregator | CompositeAggregator | StoredReducer[Any]


@dataclass(frozen=True)
class _Typed:
    # All aggregators share this dataclass, because each dataclass adds half a millisecond to the
    # parsing of a DAG file.
    type: str = "bigint"
    allowed: ClassVar[tuple[str, ...]] = NUMBERS

    def __post_init__(self) -> None:
        if self.type not in self.allowed:
            *most, last = (f'"{kind}"' for kind in self.allowed)
            remedy = f"Use {', '.join(most)} or {last}."
            raise ConfigError(
                option=f"{type(self).__name__}(type=)", value=self.type, remedy=remedy
            )


class Sum(_Typed):
    """Adds up numbers.

    You choose the type, because the first batch may contain only NULLs. The default adds whole numbers exactly, up to
    64 bits. A float such as 2.0 counts as 2, and 2.5 is refused.

    :param type: "bigint"; "double" for floats, with their rounding errors; "numeric" for exact Decimals.
    """

    name: ClassVar[str] = "sum"

    def zero(self) -> int:
        return 0

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        return add(a, b)

    def invert(self, value: Any) -> Any:
        """Return the number that removes `value` from a total."""
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("is not finite, so it cannot be taken back")
        # The minus operator would round a Decimal to 28 digits.
        return value.copy_negate() if isinstance(value, Decimal) else -value


@dataclass(frozen=True)
class Count:
    """Counts rows whose value is not NULL. Its delta is the batch's count, which Spark or Python has computed."""

    name: ClassVar[str] = "count"
    type: ClassVar[str] = "bigint"

    def zero(self) -> int:
        return 0

    def init(self, value: Any) -> int:
        return 0 if value is None else 1

    def combine(self, a: Any, b: Any) -> Any:
        return add(a, b)

    def invert(self, value: int) -> int:
        """Return the count that removes `value` from a total."""
        return -value


class _Chosen(_Typed):
    """Combines two values by choosing one of them. The result is NULL only if both values are NULL."""

    allowed: ClassVar[tuple[str, ...]] = tuple(STATE_TYPES)

    def zero(self) -> None:
        return None

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        return b if a is None else a if b is None else self._choose(a, b)

    def _choose(self, a: Any, b: Any) -> Any:
        raise NotImplementedError


class Min(_Chosen):
    """The smallest value, of any column type but json. Texts are compared character by character, as in Python.

    :param type: any column type but json.
    """

    name: ClassVar[str] = "min"
    idempotent: ClassVar[bool] = True
    allowed: ClassVar[tuple[str, ...]] = KEY_TYPES

    def _choose(self, a: Any, b: Any) -> Any:
        return min(a, b)


class Max(_Chosen):
    """The largest value, of any column type but json. Texts are compared as in `Min`.

    :param type: any column type but json.
    """

    name: ClassVar[str] = "max"
    idempotent: ClassVar[bool] = True
    allowed: ClassVar[tuple[str, ...]] = KEY_TYPES

    def _choose(self, a: Any, b: Any) -> Any:
        return max(a, b)


class First(_Chosen):
    """The first value that is not NULL, in the order of the transactions.

    :param type: any column type.
    """

    name: ClassVar[str] = "first"

    def _choose(self, a: Any, b: Any) -> Any:
        return a


class Last(_Chosen):
    """The last value that is not NULL, in the order of the transactions.

    :param type: any column type.
    """

    name: ClassVar[str] = "last"

    def _choose(self, a: Any, b: Any) -> Any:
        return b


@dataclass(frozen=True)
class CollectSet:
    """The distinct values, as a sorted list of plain JSON: false, true, then numbers, then texts.

    A delta is one value or a list of values, as from Spark's collect_set. NULLs are ignored. 1 and 1.0 are different
    values.

    :param bound: maximum number of values. If a set would be larger, the state refuses the whole update. Every
        transaction reads the whole set and writes it back.
    """

    bound: int = 1000
    name: ClassVar[str] = "collect_set"
    type: ClassVar[str] = "json"
    idempotent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or self.bound < 1:
            raise ConfigError(
                option="CollectSet(bound=)", value=self.bound, remedy="Use a whole number from 1."
            )

    def zero(self) -> list[Any]:
        return []

    def init(self, value: Any) -> list[Any] | None:
        return None if value is None else self.delta([value])

    def delta(self, value: Any) -> list[Any] | None:
        if value is None:
            return None
        items = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        return self._bounded(
            {json_text(plain): plain for plain in map(_scalar, items) if plain is not None}
        )

    def combine(self, a: Any, b: Any) -> list[Any] | None:
        both = [self.delta(value) for value in (a, b) if value is not None]
        if not both:
            return None
        return self._bounded({json_text(item): item for items in both if items for item in items})

    def _bounded(self, items: Mapping[str, Any]) -> list[Any]:
        if len(items) > self.bound:
            raise ValueError(
                f"has {len(items)} distinct values, more than CollectSet(bound={self.bound})"
            )
        return sorted(items.values(), key=_place)


def _scalar(value: Any) -> Any:
    if isinstance(value, (list, dict, tuple, set, frozenset)):
        raise TypeError("contains a value that is not a text, number or boolean")
    plain = STATE_TYPES["json"].convert(value)
    # -0.0 and 0.0 are equal, but JSON writes them differently.
    return plain + 0.0 if type(plain) is float else plain


def _place(value: Any) -> tuple[int, Any, str]:
    rank = 0 if isinstance(value, bool) else 2 if isinstance(value, str) else 1
    return rank, value, json_text(value)


class Avg(_Typed):
    """The average, stored as a sum and a count in the columns `<column>_sum` and `<column>_count`.

    A row may have these two columns, for example computed by Spark as sum(x) and count(x). Or it may have the column
    itself with a single number, which counts as one row. Reading the state returns all three. The average of no numbers
    is NULL.

    :param type: type of the sum: "double", "numeric" or "bigint". A numeric average has 38 digits. Other averages are
        floats.
    """

    name: ClassVar[str] = "avg"

    def __init__(self, type: str = "double") -> None:
        super().__init__(type)

    @property
    def result_type(self) -> str:
        return "numeric" if self.type == "numeric" else "double"

    def parts(self, column: str) -> dict[str, CombinerAggregator]:
        return {f"{column}_sum": Sum(self.type), f"{column}_count": Count()}

    def deltas(self, column: str, value: Any) -> dict[str, Any]:
        return {f"{column}_sum": value, f"{column}_count": 0 if value is None else 1}

    def result(self, row: Mapping[str, Any]) -> Any:
        total, count = row.values()
        if total is None or not count:
            return None
        return _QUOTIENT.divide(total, count) if isinstance(total, Decimal) else total / count


# --- columns ------------------------------------------------------------------------------------------------------
# The columns of a keyed state. The DAG file defines them. They are checked when Airflow parses the
# file, and are part of the state's repr and serialized form.


RESERVED = "tx_"
_NOTHING = "No row of this update was written."
# Errors that a conversion or an aggregator raises to refuse a value.
REFUSALS = (ValueError, TypeError, ArithmeticError)
Cells = tuple[Any, ...]


@dataclass(frozen=True)
class Columns:
    """The columns of one state.

    :param state: name of the state, for messages.
    :param keys: key columns; if empty, the state has one row.
    :param aggregators: aggregator by value column, as the user gave them.
    :param types: type by key column. Other columns get the type of their value in the first row.
    :param max_value_bytes: maximum size of a value in bytes; None for any size.
    :ivar values: aggregator by stored value column. A composite such as Avg is replaced by its parts.
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
            problem = f"types={unknown}: each must name a key column and have one of the types {', '.join(KEY_TYPES)}"
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
        """Return the names of the columns of exact sums. Their total over all keys is the sum of all deltas."""
        exact = {"sum", "count"}
        return tuple(
            name
            for name, each in self.values.items()
            if each.name in exact and each.type == "bigint"
        )

    @property
    def reducers(self) -> tuple[str, ...]:
        """Return the names of the value columns that have a reducer. Their updates cannot be subtracted again."""
        return tuple(name for name, each in self.values.items() if isinstance(each, Reduced))

    def expanded(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """In deltas, replace plain values of composite columns with their parts.

        Raises the errors of the composites.
        """
        for name, composite in self.composites.items():
            if name in row and not set(row).intersection(composite.parts(name)):
                rest = {column: value for column, value in row.items() if column != name}
                row = {**rest, **composite.deltas(name, row[name])}
        return row

    # --- values ---------------------------------------------------------------------------------------------------

    def combined(
        self, key: Cells, stored: Cells | None, deltas: Cells, *, replacing: bool = False
    ) -> Cells:
        """Combine stored values with deltas if the store cannot combine them itself. None represents NULL.

        :param stored: the stored values; None if there is no such key yet.
        :param deltas: deltas as `portions` yields them.
        :param replacing: whether the delta replaces the stored value if the aggregator cannot subtract an old
            contribution.
        :raises StateError: the values cannot be combined, or the result does not fit into its column.
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
        # A reducer starts from `init()` if no value is stored.
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
        """Raise ValueError if a value is larger than the maximum of this state."""
        limit = self.max_value_bytes
        if limit is None or largest(kind, values) <= limit:
            return
        size = max(size_of(kind, value) for value in values)
        if size > limit:
            raise ValueError(f"has {size} bytes, more than the {limit} that this state can store")

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
    """Check the arguments that a user gave for the columns of a keyed state.

    :param option: the function that got the arguments; None for the class of the state.
    :raises ConfigError: an argument is invalid. For example, `keys` is a single string, whose letters would become
        columns.
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
    """Return the problem and the remedy if values cannot be combined."""
    if aggregator.name != "sum" or not (
        isinstance(error, ArithmeticError) or aggregator.type != "numeric"
    ):
        return f"the {aggregator.name} of column {column} {error}", ""
    remedy = ' Use Sum("numeric") with a new table.'
    problem = (
        "does not fit into 64 bits" if aggregator.type == "bigint" else "is larger than any double"
    )
    if aggregator.type == "numeric":
        problem = "needs more digits than can be added exactly (1000)"
        remedy = ' Round the numbers before writing, or use Sum("double") with a new table.'
    return f"the sum of column {column} {problem}", remedy


def _unusable(values: Mapping[str, Any]) -> str:
    for name, aggregator in values.items():
        given = aggregator.reducer if isinstance(aggregator, Reduced) else aggregator
        if not hasattr(aggregator, "combine"):
            return f"column {name!r} has {given!r}, which is not an aggregator: it has no combine(a, b) and no reduce"
        if missing := [each for each in ("name", "type") if not hasattr(given, each)]:
            return f"column {name!r} has {given!r}, which needs attributes of its own: {' and '.join(missing)}"
        if aggregator.type not in STATE_TYPES:
            return (
                f"column {name!r} has type {aggregator.type!r}, not one of {', '.join(STATE_TYPES)}"
            )
        if aggregator.name in PUSHED_DOWN and not type(given).__module__.startswith("airflow_tx."):
            return f"column {name!r} has an aggregator of your own named {aggregator.name!r}; give it another name"
    return ""
