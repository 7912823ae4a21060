"""How the deltas of a batch go into stored values: Trident's combiner aggregators, with a name that stores push down.

NULL follows SQL: it is no number, it changes nothing, and a sum of nothing but NULL is NULL.
Source: trident-state seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, ClassVar, Protocol

from airflow_tx.errors import ConfigError

# The default context would round to 28 digits without a word.
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])


def add(a: Any, b: Any) -> Any:
    """a + b for two numbers of one type or NULL; exact for int and Decimal."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return _EXACT.add(a, b)
    return a + b


class CombinerAggregator(Protocol):
    """Trident's CombinerAggregator: values that can be combined in any grouping.

    `name` is what a store that can express it knows it by; `type` is the column type of the stored value.
    """

    @property
    def name(self) -> str:
        """What stores that push the aggregation down know it by."""

    @property
    def type(self) -> str:
        """The column type of the stored value: bigint, double or numeric."""

    def zero(self) -> Any:
        """The value of no rows at all."""

    def init(self, value: Any) -> Any:
        """The value of one row."""

    def combine(self, a: Any, b: Any) -> Any:
        """The value of the rows of both; None, an absent value, changes nothing."""


@dataclass(frozen=True)
class Sum:
    """Adds numbers up.

    The type is fixed, never guessed from a batch, because the first batch may hold only NULL. With the default, whole
    numbers are exact up to 64 bits, a float such as 2.0 counts as 2, and 2.5 is refused.

    :param type: "bigint"; "double" for floats (as inexact as floats are); "numeric" for Decimal, exact.
    """

    type: str = "bigint"
    name: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        if self.type not in ("bigint", "double", "numeric"):
            raise ConfigError(option="Sum(type=)", value=self.type, remedy='Use "bigint", "double" or "numeric".')

    def zero(self) -> int:
        """0, as in Trident."""
        return 0

    def init(self, value: Any) -> Any:
        """The number itself."""
        return value

    def combine(self, a: Any, b: Any) -> Any:
        """The sum; exact for int and Decimal."""
        return add(a, b)


@dataclass(frozen=True)
class Count:
    """Counts rows whose value is not NULL; as a delta it takes a count, which Spark or Python made of the batch."""

    name: ClassVar[str] = "count"
    type: ClassVar[str] = "bigint"

    def zero(self) -> int:
        """0."""
        return 0

    def init(self, value: Any) -> int:
        """1, or 0 for NULL, as SQL's COUNT(column)."""
        return 0 if value is None else 1

    def combine(self, a: Any, b: Any) -> Any:
        """The sum of two counts."""
        return add(a, b)
