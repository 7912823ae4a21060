"""Differences: after them a stored value is what it would be with the new values alone, whatever else is in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state import CollectSet, Count, First, Last, Max, Min, Sum
from airflow_tx.state.aggregators import difference
from airflow_tx.state.sketches import HllSketch

WHOLE = st.none() | st.integers(-(10**6), 10**6)
EXACT = st.none() | st.decimals(-(10**30), 10**30, places=12)
SETS = st.none() | st.lists(st.sampled_from([1, 1.0, True, "1", "a"]), max_size=4)
CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Sum(), WHOLE),
    (Count(), WHOLE.map(lambda value: abs(value or 0))),
    (Sum("numeric"), EXACT),
    (Min(), WHOLE),
    (Max(), WHOLE),
    (CollectSet(), SETS.map(CollectSet().delta)),
    (First(), WHOLE),
    (Last(), WHOLE),
]
OWN = SimpleNamespace(name="product", type="double", combine=lambda a, b: a * b)


def total(aggregator: Any, values: Sequence[Any]) -> Any:
    present = [value for value in values if value is not None]
    return reduce(aggregator.combine, present) if present else None


@pytest.mark.parametrize(("aggregator", "values"), CASES, ids=lambda case: getattr(case, "name", ""))
@given(data=st.data())
def test_any_number_of_restatements_results_in_the_total_of_the_last_output(
    aggregator: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    before, outputs, after = (data.draw(st.lists(values, max_size=3), label=of) for of in ("before", "of c", "after"))
    stored = [*before, *outputs[:1], *after]
    counts = outputs[0] if outputs else None
    for new in outputs[1:]:
        try:
            stored.append(difference(aggregator, counts, new))
        except ValueError:
            continue  # refused: the earlier one counts
        counts = new
    expected = total(aggregator, [*before, counts, *after])
    found = total(aggregator, stored)
    # A sum that was there and is taken back is 0, not NULL.
    assert found == expected or (aggregator.name in ("sum", "count") and (found, expected) == (0, None))


def test_the_difference_of_a_second_restatement_takes_back_the_complete_first_restatement() -> None:
    contributions = [7, 10, 12, 13]
    deltas = [difference(Sum(), old, new) for old, new in zip([None, *contributions], contributions, strict=False)]
    assert deltas == [7, 3, 2, 1]


@pytest.mark.parametrize(("aggregator", "old", "new"), [(Min(), 3, 4), (Max(), 4, 3), (CollectSet(), [1, 2], [1])])
def test_a_minimum_or_maximum_cannot_be_taken_back_if_the_old_value_may_remain_in_it(
    aggregator: Any, old: Any, new: Any
) -> None:
    for value in (new, None):
        with pytest.raises(ValueError, match="cannot be taken back"):
            difference(aggregator, old, value)
    assert difference(aggregator, new, old) == old


def test_json_values_are_compared_by_their_content() -> None:
    with pytest.raises(ValueError, match="cannot be taken back"):
        difference(CollectSet(), [1], [True])


@pytest.mark.parametrize("aggregator", [First(), Last(), OWN], ids=lambda each: each.name)
def test_an_aggregator_that_depends_on_the_order_accepts_only_an_equal_value_in_a_restatement(aggregator: Any) -> None:
    assert difference(aggregator, 3, 3) is difference(aggregator, None, None) is None
    for old, new in ((3, 4), (3, None), (None, 3)):
        with pytest.raises(ValueError, match="cannot be taken back"):
            difference(aggregator, old, new)


def test_a_custom_aggregator_may_define_how_its_values_are_taken_back() -> None:
    product = SimpleNamespace(**vars(OWN), invert=lambda value: 1 / value)
    assert difference(product, 4.0, 2.0) == 0.5
    assert difference(product, 4.0, None) == 0.25
    assert difference(product, None, 2.0) == 2.0


def test_a_decimal_is_taken_back_exactly() -> None:
    long = Decimal("1234567890123456789012345678901234567890.5")
    assert difference(Sum("numeric"), long, None) + long == 0
    assert difference(Sum("numeric"), long, long) == 0


@pytest.mark.parametrize("old", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_cannot_be_taken_back(old: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        difference(Sum("double"), old, 1.0)


def test_a_restatement_may_add_late_rows_to_a_sketch() -> None:
    pytest.importorskip("datasketches")
    sketch = HllSketch()
    few = sketch.combine(sketch.init("a"), sketch.init("b"))
    more = sketch.combine(few, sketch.init("c"))
    assert difference(sketch, few, few) is None
    assert difference(sketch, few, more) == more
    with pytest.raises(ValueError, match="cannot be taken back"):
        difference(sketch, more, few)
