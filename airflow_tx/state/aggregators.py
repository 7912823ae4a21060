"""How the deltas of a batch go into stored values: Trident's aggregators, with names that stores push down.

NULL follows SQL: it is no value and changes nothing; a sum, minimum, set … of nothing but NULL is NULL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, ClassVar, Protocol, TypeAlias

from airflow_tx.errors import ConfigError
from airflow_tx.state.column_types import CONVERT, KEY_TYPES, json_text
from airflow_tx.state.reducers import StoredReducer

# The default context would round to 28 digits without a word.
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])
# A quotient has no last digit: as many as anyone needs.
_QUOTIENT = Context(prec=38)

# Aggregators that a store computes by itself. For others, values are read, combined here and written back, in bulk.
PUSHED_DOWN = ("sum", "count", "min", "max", "first", "last")
NUMBERS = ("bigint", "double", "numeric")


def add(a: Any, b: Any) -> Any:
    """Add two numbers of one type or NULL; exact for int and Decimal."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return _EXACT.add(a, b)
    return a + b


def as_delta(aggregator: Any, value: Any) -> Any:
    """Bring what a row holds into the form that `combine` takes."""
    return aggregator.delta(value) if hasattr(aggregator, "delta") else value


def can_invert(aggregator: Any) -> bool:
    """Ask whether an aggregator takes any value back; of others, a value can only be replaced as a whole."""
    return getattr(aggregator, "invert", None) is not None


def difference(aggregator: Any, old: Any, new: Any) -> Any:
    """Compute the delta that replaces `old` by `new` in a stored value, with any other content.

    :param aggregator: of a stored column. `old` and `new` are in its type; None is NULL, and no value.
    :raises ValueError: the aggregator cannot take `old` back. `invert` may raise more of its own.
    """
    invert = getattr(aggregator, "invert", None)
    if invert is not None:
        taken = None if old is None else invert(old)
        return new if taken is None else taken if new is None else aggregator.combine(new, taken)
    if is_same(aggregator.type, old, new):
        return None
    # The stored value holds `old` already: a value that absorbs `old` makes it what `new` alone would have made it.
    if getattr(aggregator, "idempotent", False) and new is not None:
        if old is None or is_same(aggregator.type, aggregator.combine(old, new), new):
            return new
    raise ValueError("cannot be taken back")


def is_same(kind: str, one: Any, other: Any) -> bool:
    """Compare two values of a column type, or two lists of them: as JSON, 1, 1.0 and true are three values."""
    return json_text(one) == json_text(other) if kind == "json" else bool(one == other)


class CombinerAggregator(Protocol):
    """Trident's CombinerAggregator: values that can be combined in any grouping, in the order of the rows.

    `name` is what a store that can express it knows it by; `type` is the column type of the stored value. One of your
    own needs a name that is not in `PUSHED_DOWN`; states never call its `combine` with None.

    For a restatement it may have one of two more attributes. ``invert(value)`` makes the value that takes `value` back:
    ``combine(combine(a, b), invert(b))`` is `a`. ``idempotent = True`` says that ``combine(a, a)`` is `a`. With either,
    the order of the rows is nothing.
    """

    @property
    def name(self) -> str:
        """What stores that push the aggregation down know it by."""

    @property
    def type(self) -> str:
        """The column type of the stored value: bigint, text, json …"""

    def zero(self) -> Any:
        """Make the value of no rows at all."""

    def init(self, value: Any) -> Any:
        """Make the value of one row."""

    def combine(self, a: Any, b: Any) -> Any:
        """Make the value of the rows of both, the rows of `a` before the rows of `b`.

        Each of these errors makes the state refuse the whole update, with the text of the error:

        :raises ValueError: the values cannot be combined.
        :raises TypeError: the types of the values cannot be combined.
        :raises ArithmeticError: the result cannot be computed.
        """


class CompositeAggregator(Protocol):
    """An aggregator that is kept in columns of its own, from which the result is made when it is read."""

    @property
    def name(self) -> str:
        """For messages."""

    def parts(self, column: str) -> dict[str, CombinerAggregator]:
        """Name the columns that are stored for the value column `column`."""

    def deltas(self, column: str, value: Any) -> dict[str, Any]:
        """Compute what one row with this value adds to the parts."""

    def result(self, row: Mapping[str, Any]) -> Any:
        """Compute the result from the stored values of the parts, in their order.

        Its column type is the attribute `result_type`; without one, new values of a commit have only the parts.
        """


Aggregator: TypeAlias = CombinerAggregator | CompositeAggregator | StoredReducer[Any]


@dataclass(frozen=True)
class _Typed:
    # One dataclass for all of them: each costs a DAG file half a millisecond when it is parsed.
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
    """Adds numbers up.

    The type is fixed, never guessed from a batch, because the first batch may hold only NULL. With the default, whole
    numbers are exact up to 64 bits, a float such as 2.0 counts as 2, and 2.5 is refused.

    :param type: "bigint"; "double" for floats (as inexact as floats are); "numeric" for Decimal, exact.
    """

    name: ClassVar[str] = "sum"

    def zero(self) -> int:
        return 0

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        return add(a, b)

    def invert(self, value: Any) -> Any:
        """Make the number that takes `value` back."""
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("is not finite, so that no number takes it back")
        # A minus would round a Decimal to 28 digits.
        return value.copy_negate() if isinstance(value, Decimal) else -value


@dataclass(frozen=True)
class Count:
    """Counts rows whose value is not NULL; as a delta it takes a count, which Spark or Python made of the batch."""

    name: ClassVar[str] = "count"
    type: ClassVar[str] = "bigint"

    def zero(self) -> int:
        return 0

    def init(self, value: Any) -> int:
        return 0 if value is None else 1

    def combine(self, a: Any, b: Any) -> Any:
        return add(a, b)

    def invert(self, value: int) -> int:
        """Make the count that takes `value` back."""
        return -value


class _Chosen(_Typed):
    """Of two values one is kept; NULL never is, if there is another."""

    allowed: ClassVar[tuple[str, ...]] = tuple(CONVERT)

    def zero(self) -> None:
        return None

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        return b if a is None else a if b is None else self._choose(a, b)

    def _choose(self, a: Any, b: Any) -> Any:
        raise NotImplementedError


class Min(_Chosen):
    """The smallest value, of any column type but json. Texts are compared character by character, as Python does.

    :param type: any column type but json.
    """

    name: ClassVar[str] = "min"
    idempotent: ClassVar[bool] = True
    allowed: ClassVar[tuple[str, ...]] = KEY_TYPES

    def _choose(self, a: Any, b: Any) -> Any:
        return min(a, b)


class Max(_Chosen):
    """The largest value, of any column type but json; compared as for `Min`.

    :param type: any column type but json.
    """

    name: ClassVar[str] = "max"
    idempotent: ClassVar[bool] = True
    allowed: ClassVar[tuple[str, ...]] = KEY_TYPES

    def _choose(self, a: Any, b: Any) -> Any:
        return max(a, b)


class First(_Chosen):
    """The first value that is not NULL, in the order of the transactions; of any column type.

    :param type: any column type.
    """

    name: ClassVar[str] = "first"

    def _choose(self, a: Any, b: Any) -> Any:
        return a


class Last(_Chosen):
    """The last value that is not NULL, in the order of the transactions; of any column type.

    :param type: any column type.
    """

    name: ClassVar[str] = "last"

    def _choose(self, a: Any, b: Any) -> Any:
        return b


@dataclass(frozen=True)
class CollectSet:
    """The distinct values, as a sorted list of plain JSON: false, true, then numbers, then texts.

    A delta is one value or a list of values (Spark's collect_set); NULL in it is left out. 1 and 1.0 are two values.

    :param bound: a set of more values is refused, and with it the whole update: it would be read and written
        back by every transaction.
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
        raise TypeError("holds a value that is no text, number or boolean")
    plain = CONVERT["json"](value)
    # -0.0 and 0.0 are one number with two texts.
    return plain + 0.0 if type(plain) is float else plain


def _place(value: Any) -> tuple[int, Any, str]:
    rank = 0 if isinstance(value, bool) else 2 if isinstance(value, str) else 1
    return rank, value, json_text(value)


class Avg(_Typed):
    """The average, kept as sum and count in the columns `<column>_sum` and `<column>_count`.

    A row may bring these two columns, as Spark makes them (sum(x), count(x)), or the column itself with one number,
    which counts as one row. Reading the state gives all three; NULL as long as there is no number.

    :param type: of the sum: "double", "numeric" or "bigint". A numeric average has 38 digits, others are floats.
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
