"""The difference of two contributions: what it holds, what it refuses, and that a state has the new one afterwards."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import NotTakenBack, StateError
from airflow_tx.ledger.output import same_output
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Avg, CollectSet, Count, First, Max, MemoryState, Sum
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import contributions
from airflow_tx.transaction.commit import contributions as forming
from airflow_tx.transaction.commit.contributions import difference_of
from airflow_tx.transaction.commit.write import StagedRows, output_digest
from tests.contributions import contribution, place, restate, values_of
from tests.stage import update
from tests.unit.commit.staged import ATTEMPT, ref

Rows = list[dict[str, Any]]


def sums(*, kind: str = "opaque", keys: Sequence[str] = ("key",), **values: Any) -> MemoryState:
    return MemoryState("sums", keys=keys, values=values or {"n": Sum()}, kind=kind)


def rows(**values: Any) -> Rows:
    return [{"key": key, "n": value} for key, value in values.items()]


def formed(state: MemoryState, old: Rows, new: Any, area: StagingArea, **how: Any) -> Any:
    return difference_of(state, contribution(state, old), new, place(area), **how).rows


def by_key(found: Any) -> dict[Any, Any]:
    return {row["key"]: row["n"] for row in found}


@pytest.fixture(params=["few rows", "in portions"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Once in memory, once as if there were many rows."""
    if request.param == "in portions":
        monkeypatch.setattr(forming, "FEW", 0)
        monkeypatch.setattr(forming, "PORTION", 2)
        monkeypatch.setattr(contributions, "_ROWS_AT_ONCE", 1)
    return str(request.param)


# --- what it holds


def test_a_difference_has_a_row_for_each_key_of_the_old_and_the_new_contribution(size: str, area: StagingArea) -> None:
    found = formed(sums(), rows(a=1, b=2, c=3), rows(a=1, b=5, d=4), area)
    assert by_key(found) == {"a": 0, "b": 3, "c": -3, "d": 4}
    assert isinstance(found, StagedRows) is (size == "in portions")


def test_the_difference_of_two_equal_contributions_has_no_rows(size: str, area: StagingArea) -> None:
    assert len(formed(sums(), rows(a=1, b=2), rows(b=2, a=1), area)) == 0


def test_a_new_key_whose_sum_is_zero_or_null_is_part_of_the_difference(size: str, area: StagingArea) -> None:
    assert by_key(formed(sums(), rows(a=1), rows(a=1, b=0), area)) == {"a": 0, "b": 0}
    assert by_key(formed(sums(), rows(a=1), rows(a=1, b=None), area)) == {"a": 0, "b": None}


def test_sums_of_floats_in_another_order_of_rows_may_differ_in_their_last_digits(size: str, area: StagingArea) -> None:
    parts = [0.1 * number for number in range(40)]
    old: Rows = [{"key": str(key), "n": math.fsum(parts[key:])} for key in range(30)]
    new: Rows = [{"key": str(key), "n": reduce(add, reversed(parts[key:]))} for key in range(30)]
    state = sums(n=Sum("double"))
    assert old != new
    assert same_output(output_digest(old, update(state).state), output_digest(new, update(state).state))
    deltas = by_key(formed(state, old, new, area))
    assert len(deltas) == 30
    assert 0 < max(map(abs, deltas.values())) < 1e-13


def test_a_small_correction_of_a_large_value_is_part_of_the_difference(size: str, area: StagingArea) -> None:
    state = sums(n=Sum("double"))
    assert by_key(formed(state, rows(a=1e10, b=5.0), rows(a=1e10, b=4.99), area)) == {"a": 0.0, "b": 4.99 - 5.0}
    assert by_key(formed(state, rows(a=1e7), rows(a=1e7 + 0.01), area))["a"] == pytest.approx(0.01, rel=1e-6)


@pytest.mark.usefixtures("size")
def test_the_difference_to_an_empty_contribution_is_the_new_contribution(area: StagingArea) -> None:
    new = rows(a=1)
    assert formed(sums(), [], new, area) is new
    assert by_key(formed(sums(), new, [], area)) == {"a": -1}


@pytest.mark.usefixtures("size")
def test_the_difference_for_a_state_without_keys_has_one_row(area: StagingArea) -> None:
    state = sums(keys=())
    found = formed(state, [{"n": 3}], [{"n": 5}], area)
    assert list(found) == [{"n": 2}]
    assert list(formed(state, [{"n": 3}], [], area)) == [{"n": -3}]


@pytest.mark.usefixtures("size")
def test_both_contributions_are_converted_to_the_column_types_of_the_state(area: StagingArea) -> None:
    state = MemoryState("sums", keys=["key"], values={"n": Sum("numeric")}, types={"key": "numeric"})
    old: Rows = [{"key": Decimal(f"{number}.50"), "n": 3} for number in range(9)] + [{"key": 9, "n": 3}]
    new: Rows = [{"key": Decimal(f"{number}.5"), "n": 4} for number in range(9)] + [{"key": Decimal("9.0"), "n": 4}]
    found = list(formed(state, old, new, area))
    assert [row["n"] for row in found] == [1] * 10


@pytest.mark.usefixtures("size")
def test_the_difference_of_an_average_has_a_row_with_the_differences_of_its_sum_and_its_count(
    area: StagingArea,
) -> None:
    state = sums(delay=Avg("bigint"))
    found = formed(state, [{"key": "a", "delay": 7}], [{"key": "a", "delay_sum": 9, "delay_count": 2}], area)
    assert list(found) == [{"key": "a", "delay_sum": 2, "delay_count": 1}]


@pytest.mark.usefixtures("size")
def test_a_column_without_an_old_contribution_is_written_with_its_complete_new_value(area: StagingArea) -> None:
    state = sums(n=Sum(), first=First("text"), delay=Avg("bigint"))
    old = contribution(state, rows(a=1, b=2), without=["first", "delay_sum", "delay_count"])
    new = [{"key": "a", "n": 1, "first": "x", "delay": 3}]
    found = difference_of(state, old, new, place(area)).rows
    assert sorted(map(str, found)) == sorted(
        map(
            str,
            [
                {"key": "a", "n": 0, "first": "x", "delay_sum": 3, "delay_count": 1},
                {"key": "b", "n": -2, "first": None, "delay_sum": None, "delay_count": None},
            ],
        )
    )


@pytest.mark.usefixtures("size")
def test_a_new_column_is_written_although_no_other_column_differs(area: StagingArea) -> None:
    state = sums(n=Sum(), first=First("text"))
    old = contribution(state, rows(a=1), without=["first"])
    found = difference_of(state, old, [{"key": "a", "n": 1, "first": "x"}], place(area)).rows
    assert list(found) == [{"key": "a", "n": 0, "first": "x"}]


def test_a_large_difference_is_staged_like_an_output_of_the_committer(area: StagingArea, monkeypatch: Any) -> None:
    monkeypatch.setattr(forming, "FEW", 0)
    new: Rows = [{"key": dt.date(2026, 1, day), "n": Decimal(day)} for day in range(1, 29)]
    staged = StagedRows(area, ref(area, new), state := sums(n=Sum("numeric")), ATTEMPT)
    found = formed(state, [{**row, "n": 1} for row in new], staged, area)
    assert isinstance(found, StagedRows)
    assert (found.where.attempt.txid, found.where.task.task_id) == (9, "commit")
    assert found.output.row_digest
    assert by_key(found) == {row["key"]: row["n"] - 1 for row in new}


def test_a_small_difference_is_staged_if_spark_writes_it(area: StagingArea) -> None:
    assert isinstance(formed(sums(), rows(a=1), rows(a=2), area, staged=True), StagedRows)


# --- what it refuses


def test_the_error_for_a_value_that_cannot_be_taken_back_names_its_key_and_its_column(
    size: str, area: StagingArea
) -> None:
    state = sums(n=Sum(), top=Max())
    old = [{"key": key, "n": 1, "top": 9} for key in "abc"]
    better = [{**row, "top": 10} for row in old]
    assert len(formed(state, old, better, area)) == 3
    worse = [*better[:1], {"key": "b", "n": 1, "top": 8}, *better[2:]]
    with pytest.raises(NotTakenBack, match=r"key \{'key': 'b'\}: the max of column top was 9 and is now 8") as refused:
        formed(state, old, worse, area)
    assert "To skip this restatement: airflow tx skip numbers 9 --why TEXT" in str(refused.value)
    assert refused.value.for_good
    with pytest.raises(NotTakenBack, match="was 9 and is now None"):
        formed(state, old, better[:2], area)


@pytest.mark.usefixtures("size")
def test_a_sum_that_does_not_fit_into_64_bits_is_refused_before_the_transaction_has_the_turn(area: StagingArea) -> None:
    with pytest.raises(NotTakenBack, match="does not fit into 64 bits"):
        formed(sums(), rows(a=-(2**63)), rows(a=1), area)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_contribution_with_a_value_that_is_infinite_or_not_a_number_is_refused(
    value: float, area: StagingArea
) -> None:
    with pytest.raises(StateError, match=r"the contribution of the earlier transaction: row 0 .* is not finite"):
        formed(sums(n=Sum("double")), rows(a=value), rows(a=1.0), area)


@pytest.mark.usefixtures("size")
def test_the_error_for_a_key_of_the_wrong_type_names_the_contribution_that_has_the_key(area: StagingArea) -> None:
    state = MemoryState("sums", keys=["key"], values={"n": Sum()}, types={"key": "date"})
    today = [{"key": dt.date(2026, 1, 1), "n": 1}]
    for old, new, whose in (
        (rows(a=1), today, "the earlier transaction"),
        (today, rows(a=1), "this transaction"),
    ):
        with pytest.raises(StateError, match=f"the contribution of {whose}: row 0 .*is not a date"):
            formed(state, old, new, area)


@pytest.mark.usefixtures("size")
def test_a_contribution_with_a_duplicate_key_is_refused(area: StagingArea) -> None:
    with pytest.raises(StateError, match="occurs twice"):
        formed(sums(), rows(a=1), rows(a=2) + rows(a=3), area)


@pytest.mark.usefixtures("size")
def test_a_restatement_of_a_key_that_was_deleted_from_the_state_is_refused(area: StagingArea) -> None:
    state = sums()
    grants = Grants()
    grants.commit_rows(1, state, rows(a=1, b=2))
    del state.database.rows["b",]
    with pytest.raises(NotTakenBack, match=r"key \{'key': 'b'\} is missing.*was deleted.*tx skip numbers 2 "):
        restate(state, grants(2), area, contribution(state, rows(a=1, b=2)), rows(a=1))
    assert values_of(state) == {("a",): {"n": 1}}


def test_a_loss_of_precision_in_a_double_column_is_reported_if_it_is_large_enough_to_matter(
    size: str, area: StagingArea
) -> None:
    state = sums(n=Sum("double"), exact=Sum("numeric"))
    old = [{"key": "a", "n": 1e18, "exact": 10**18}, {"key": "b", "n": 2.0, "exact": 2}]
    new = [{"key": "a", "n": 3.0, "exact": 3}, {"key": "b", "n": 1.0, "exact": 1}]
    assert difference_of(state, contribution(state, old), new, place(area)).lost == {"n": 1e18 * 2.0**-53}
    assert difference_of(state, contribution(state, old[1:]), new[1:], place(area)).lost == {}


# --- what a state has afterwards

KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-1000, 1000),
        "count": st.integers(0, 9),
        "total": st.none() | st.floats(-1000, 1000, width=32),
        "exact": st.none() | st.decimals(-1000, 1000, places=3),
        "delay": st.none() | st.integers(-9, 9),
    }
)
OUTPUT = st.dictionaries(KEYS, ROW).map(lambda found: [{"key": key, **row} for key, row in found.items()])
COLUMNS: dict[str, Any] = {
    "n": Sum(),
    "count": Count(),
    "total": Sum("double"),
    "exact": Sum("numeric"),
    "delay": Avg("bigint"),
}


def _near(one: dict[Any, dict[str, Any]], other: dict[Any, dict[str, Any]]) -> bool:
    return {key: _rounded(row) for key, row in one.items() if any(_rounded(row).values())} == {
        key: _rounded(row) for key, row in other.items() if any(_rounded(row).values())
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    # A NULL that was a value in between is 0; without values there is no average.
    return {name: round(value or 0, 6) + 0 for name, value in row.items() if name != "delay"}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(before=OUTPUT, outputs=st.lists(OUTPUT, min_size=1, max_size=4), between=OUTPUT)
def test_a_state_after_many_restatements_of_a_transaction_has_the_values_of_the_last_output(
    kind: str, area: StagingArea, before: Rows, outputs: list[Rows], between: Rows
) -> None:
    state, expected = (sums(kind=kind, **COLUMNS) for _ in range(2))
    grants, other = Grants(), Grants()
    for txid, given_rows in enumerate((before, outputs[0], between), 1):
        grants.commit_rows(txid, state, given_rows)
    for txid, (old, new) in enumerate(pairwise(outputs), 4):
        grant = grants(txid)
        restate(state, grant, area, contribution(state, old), new)
        grants.final(grant, state)
    for txid, given_rows in enumerate((before, outputs[-1], between), 1):
        other.commit_rows(txid, expected, given_rows)
    assert _near(values_of(state), values_of(expected))


def test_a_second_restatement_takes_back_all_rows_of_the_first_restatement(area: StagingArea) -> None:
    state = sums()
    grants = Grants()
    outputs = [7, 10, 12, 13]
    grants.commit_rows(1, state, rows(a=7))
    for txid, (old, new) in enumerate(pairwise(outputs), 2):
        grant = grants(txid)
        restate(state, grant, area, contribution(state, rows(a=old)), rows(a=new))
        grants.final(grant, state)
        assert values_of(state) == {("a",): {"n": new}}


def test_a_restatement_adds_late_rows_to_a_column_that_collects_a_set(area: StagingArea) -> None:
    state = sums(n=CollectSet())
    grants = Grants()
    grants.commit_rows(1, state, rows(a=["x"]))
    restate(state, grants(2), area, contribution(state, rows(a=["x"])), rows(a=["x", "y"]))
    assert values_of(state) == {("a",): {"n": ["x", "y"]}}
