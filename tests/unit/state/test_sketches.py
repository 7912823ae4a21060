"""Estimates of distinct values, and what is said without the library."""

from __future__ import annotations

import sys
from functools import reduce

import pytest

from airflow_tx.base.errors import ConfigError
from airflow_tx.state import ApproxCountDistinct

SKETCH = ApproxCountDistinct()
((COLUMN, PART),) = SKETCH.parts("users").items()


def test_a_sketch_without_its_library_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ConfigError, match=r"airflow-provider-tx\[sketches\]"):
        SKETCH.deltas("users", "alice")


def test_a_sketch_is_stored_in_one_column_of_bytes() -> None:
    assert (COLUMN, PART.type) == ("users_sketch", "bytes")
    assert SKETCH.deltas("users", None) == {"users_sketch": None}
    assert SKETCH.result({"users_sketch": None}) is None


@pytest.mark.parametrize("count", [0, 1, 10, 5000])
def test_the_estimate_of_a_sketch_is_accurate_in_any_grouping(count: int) -> None:
    pytest.importorskip("datasketches")
    images = [PART.init(f"user {i % count}") for i in range(2 * count)]
    for parts in (images, images[::-1]):
        estimate = SKETCH.result({COLUMN: reduce(PART.combine, parts, PART.zero())})
        assert estimate == pytest.approx(count, rel=0.05)


def test_bytes_that_are_not_a_sketch_and_values_that_cannot_be_hashed_are_refused() -> None:
    pytest.importorskip("datasketches")
    with pytest.raises(ValueError, match="no HLL sketch"):
        PART.combine(PART.zero(), b"nonsense")
    with pytest.raises(TypeError, match="text or an integer"):
        PART.init(1.5)
