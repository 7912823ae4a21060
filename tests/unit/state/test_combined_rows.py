"""Rows of one key are combined as values of their columns: a column refuses what it does not take before it adds."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_tx.base.errors import StateError
from airflow_tx.state import Avg, First, Max, MemoryState, Min, SqlState, Sum
from airflow_tx.state.rows import combined
from airflow_tx.testing.suites.state_tools import Grants

BERLIN = ZoneInfo("Europe/Berlin")
AUTUMN = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
NAN = float("nan")


class Steps:
    """Adds up the steps of the rows of a key."""

    name, type = "steps", "bigint"

    def init(self) -> int:
        return 0

    def reduce(self, current: int, row: Any) -> int:
        return current + int(row["step"])


def totals(values: list[Any], aggregator: Any = None) -> list[Any]:
    state = MemoryState("t", keys=["k"], values={"n": aggregator or Sum()})
    return [row["n"] for row in combined([{"k": "a", "n": value} for value in values], state)]


def keys(given: list[Any], kind: str | None = None) -> list[Any]:
    state = MemoryState("t", keys=["k"], values={"n": Sum()}, types={"k": kind} if kind else None)
    return [(row["k"], row["n"]) for row in combined([{"k": key, "n": 1} for key in given], state)]


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([2**60, *[1.0] * 100], 2**60 + 100),
        ([2**53 + 1, 1.0], 2**53 + 2),
        ([None, 1.0, None], 1),
    ],
)
def test_floats_that_are_whole_numbers_are_added_to_a_bigint_as_integers(values: list[Any], total: int) -> None:
    (found,) = totals(values)
    assert (found, type(found)) == (total, int)


@pytest.mark.parametrize(
    ("values", "kind", "row"),
    [
        ([0.5, 0.5], "bigint", 0),
        ([1, True], "bigint", 1),
        (["1", "2"], "bigint", 0),
        ([Decimal(1), 1], "bigint", 0),
        ([1.5, Decimal("1.5")], "double", 1),
        ([2**53 + 1, 1.0], "double", 0),
        ([Decimal("1.5"), 1.5], "numeric", 1),
        ([1.0, True], "double", 1),
    ],
)
def test_a_value_that_does_not_fit_the_type_of_its_column_is_refused_before_it_is_added(
    values: list[Any], kind: str, row: int
) -> None:
    with pytest.raises(StateError, match=rf"row {row} .*: n = .*The column has the type {kind}"):
        totals(values, Sum(kind))


@pytest.mark.parametrize("values", [[5.0, NAN], [NAN, 5.0], [5.0, NAN, 1.0]])
@pytest.mark.parametrize("aggregator", [Min("double"), Max("double"), First("double"), Avg()])
def test_not_a_number_is_refused_at_any_position_among_the_values(values: list[float], aggregator: Any) -> None:
    state = MemoryState("t", keys=["k"], values={"n": aggregator})
    with pytest.raises(StateError, match=rf"row {values.index(NAN)} .* = nan is not finite"):
        list(combined([{"k": "a", "n": value} for value in values], state))


def test_an_unknown_column_is_refused_even_in_a_later_row_of_a_key() -> None:
    state = MemoryState("t", keys=["k"], values={"n": Sum()})
    with pytest.raises(StateError, match=r"row 1: expected columns .* not expected \['m'\]"):
        list(combined([{"k": "a", "n": 1}, {"k": "a", "n": 2, "m": 7}], state))


def test_strings_that_only_look_equal_are_different_keys() -> None:
    assert keys(["é", "e\u0301", "é"]) == [("é", 2), ("e\u0301", 1)]


@pytest.mark.parametrize(
    ("given", "kind", "found"),
    [
        ([1, 1.0], None, [(1, 2)]),
        ([1.0, 1], None, [(1.0, 2)]),
        ([-0.0, 0.0], None, [(0.0, 2)]),
        ([Decimal("1.0"), 1, Decimal("1.00")], None, [(Decimal(1), 3)]),
        ([1.5, 1], "double", [(1.5, 1), (1.0, 1)]),
        ([b"a", bytearray(b"a")], None, [(b"a", 2)]),
    ],
    ids=str,
)
def test_keys_that_are_equal_after_conversion_to_the_type_of_their_column_are_combined(
    given: list[Any], kind: str | None, found: list[Any]
) -> None:
    assert keys(given, kind) == found


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ([1, True], None),
        ([True, 1], None),
        ([1, Decimal(1)], None),
        ([1, True], "bigint"),
        ([1, 1.5], None),
        (["1", 1], None),
        ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)], None),
        ([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)], None),
        ([1, None], None),
    ],
    ids=str,
)
def test_a_key_that_does_not_fit_its_column_is_not_combined_with_an_equal_key(
    given: list[Any], kind: str | None
) -> None:
    with pytest.raises(StateError, match=r"row 1 .*k"):
        keys(given, kind)


def test_the_repeated_hour_at_the_end_of_daylight_saving_time_is_two_keys() -> None:
    given = [AUTUMN, AUTUMN.replace(fold=1), AUTUMN.astimezone(dt.timezone.utc)]
    utc = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.timezone.utc)
    assert keys(given) == [(utc, 2), (utc + dt.timedelta(hours=1), 1)]


def test_keys_of_several_python_classes_get_the_type_that_the_state_has_stored(tmp_path: Path) -> None:
    state = SqlState.from_url(f"sqlite:///{tmp_path}/t.db", table="t", keys=["k"], values={"n": Sum()})
    grants = Grants()
    grants.commit_rows(1, state, combined([{"k": 1.5, "n": 1}], state))
    grants.commit_rows(2, state, combined([{"k": key, "n": 1} for key in (1, 1.5, 1.0)], state))
    assert sorted((row["k"], row["n"]) for row in state.read()) == [(1.0, 2), (1.5, 2)]


def test_a_boolean_key_is_refused_although_it_equals_an_integer_key(tmp_path: Path) -> None:
    state = SqlState.from_url(f"sqlite:///{tmp_path}/t.db", table="t", keys=["k"], values={"n": Sum()})
    grants = Grants()
    grants.commit_rows(1, state, combined([{"k": 1, "n": 1}], state))
    # Of two portions, of which the first has one class alone.
    rows = [{"k": True, "n": 1}] * 10_000 + [{"k": 1, "n": 1}]
    with pytest.raises(StateError, match="k = True is not an integer"):
        grants.commit_rows(2, state, combined(rows, state))


def test_equal_keys_of_several_python_classes_are_one_key_for_a_reducer() -> None:
    state = MemoryState("t", keys=["k"], values={"n": Sum(), "steps": Steps()})
    rows = [{"k": key, "n": 1, "step": step} for step, key in enumerate([1, 1.0, 2])]
    found = [(row["k"], row["n"], [each["step"] for each in row["steps"]]) for row in combined(rows, state)]
    assert found == [(1, 2, [0, 1]), (2, 1, [2])]
