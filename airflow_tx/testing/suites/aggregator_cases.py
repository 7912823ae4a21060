"""Test cases for aggregators of every kind, with deltas of every type."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from airflow_tx.state.aggregators import (
    Aggregator,
    Avg,
    CollectSet,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)
from airflow_tx.state.column_types import KEY_TYPES
from airflow_tx.state.sketches import ApproxCountDistinct

UTC = dt.timezone.utc
# Values of every type, in ascending order.
EXAMPLES: dict[str, list[Any]] = {
    "bigint": [-(2**63), -1, 0, 7, 2**63 - 1],
    "double": [-1.7e308, -0.1, 5e-324, 1.5, 1.7e308],
    "numeric": [
        Decimal("-12345678901234567890.123456789"),
        Decimal("0.1"),
        Decimal("0.3"),
        Decimal(10) ** 30,
    ],
    "text": ["", " ", "A", "B", "a", "a\tb\n", "z", "{\"'\\,%s", "ä", "日本"],
    "boolean": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(1999, 12, 31), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1970, 1, 1),
        dt.datetime(2026, 3, 29, 2, 30),
        dt.datetime(2026, 3, 29, 2, 30, 0, 1),
    ],
    "timestamptz": [
        dt.datetime(1970, 1, 1, tzinfo=UTC),
        dt.datetime(2026, 3, 29, 1, 0, 0, 1, tzinfo=UTC),
    ],
    "bytes": [b"", b"\x00", b"\x00\xff", b"'", b"a", b"\xff"],
    "json": [[1, 2.5, None], {"b": [True], "a": "ä\n"}, "text", 7, False, {}],
}


@dataclass(frozen=True)
class Product:
    """An aggregator that no store supports."""

    name: ClassVar[str] = "product"
    type: ClassVar[str] = "bigint"

    def zero(self) -> int:
        return 1

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        return a * b


@dataclass(frozen=True)
class Balance:
    """A reducer without partial values, whose value is a balance that never falls below zero."""

    name: ClassVar[str] = "balance"
    type: ClassVar[str] = "bigint"

    def init(self) -> int:
        return 0

    def reduce(self, current: int, row: Mapping[str, Any]) -> int:
        return max(0, current + int(row["step"]))


@dataclass(frozen=True)
class LastTwo:
    """A reducer whose value is a list, which it changes in place."""

    name: ClassVar[str] = "last_two"
    type: ClassVar[str] = "json"

    def init(self) -> list[int]:
        return []

    def reduce(self, current: list[int], row: Mapping[str, Any]) -> list[int]:
        current.append(row["step"])
        return current[-2:]


def steps(*values: int) -> list[dict[str, int]]:
    return [{"step": value} for value in values]


@dataclass(frozen=True)
class Case:
    """A test case of an aggregator.

    :param aggregator: the aggregator.
    :param deltas: the delta of each transaction.
    :param expected: the value after all transactions.
    :param wrong: the deltas of earlier attempts, which replays replace.
    """

    aggregator: Aggregator
    deltas: list[Any]
    expected: Any
    wrong: list[Any]


def _chosen(kind: str) -> dict[str, Case]:
    values = EXAMPLES[kind]
    deltas = [None, *values[1:], values[0], None]
    wrong = [values[0], values[-1]]
    cases = {
        f"first {kind}": Case(First(kind), deltas, values[1], wrong),
        f"last {kind}": Case(Last(kind), deltas, values[0], wrong),
    }
    if kind in KEY_TYPES:
        inner = [None, *values[-2:0:-1], None] if len(values) > 2 else [None, values[0]]
        cases[f"min {kind}"] = Case(
            Min(kind), inner, inner[-2] if len(values) > 2 else values[0], wrong
        )
        cases[f"max {kind}"] = Case(Max(kind), inner, inner[1], wrong)
    return cases


CASES: dict[str, Case] = {
    "sum bigint": Case(Sum(), [None, 1, -5, None, 7.0], 3, [100, -100]),
    "sum double": Case(Sum("double"), [None, 0.5, 0.25, -2], -1.25, [1e9]),
    "sum numeric": Case(
        Sum("numeric"), [None, *[Decimal("0.1")] * 3], Decimal("0.3"), [Decimal("1e9")]
    ),
    "count": Case(Count(), [None, 2, 0, 3], 5, [100]),
    "avg": Case(Avg(), [None, 1.0, 4.0, None], 2.5, [100.0]),
    "collect_set": Case(
        CollectSet(), [None, "b", ["a", "b", None], [], 7], [7, "a", "b"], ["wrong", ["x", "a"]]
    ),
    "approx_count_distinct": Case(
        ApproxCountDistinct(), [None, "a", "b", None, "a"], 2, ["wrong", "b"]
    ),
    "product": Case(Product(), [None, 2, 3, None, -7], -42, [100, 0]),
    "balance": Case(
        Balance(),
        [None, steps(3), steps(-5, 2, 7), None, steps(-1)],
        8,
        [steps(100), steps(-100, 3)],
    ),
    "last_two": Case(
        LastTwo(), [None, steps(1), steps(2, 3), None, steps(4)], [3, 4], [steps(7, 8), steps(9)]
    ),
    **{name: case for kind in EXAMPLES for name, case in _chosen(kind).items()},
}
every_case = pytest.mark.parametrize("case", CASES)
key_types = pytest.mark.parametrize("key_type", KEY_TYPES)
