"""A promise whose test does not run is named."""

from __future__ import annotations

from tests.claims import claimed, judge
from tests.costs import Costs


def test_only_rows_of_tables_make_claims() -> None:
    assert claimed(["| kill | counted once | `test_a`, `test_b` |\n\nSee `test_c`."]) == {"test_a", "test_b"}


def test_a_claimed_test_that_ran_in_any_part_is_no_fault() -> None:
    parts = [Costs(ran=["tests/x.py::test_a[1]"]), Costs(ran=["tests/y.py::TestY::test_b"])]
    assert judge({"test_a", "test_b"}, parts) == ([], [])


def test_a_claimed_test_that_neither_ran_nor_runs_later_is_missed() -> None:
    parts = [Costs(seconds={"tests/x.py::test_skipped": 0.1}, later=["tests/z.py::test_long"])]
    assert judge({"test_skipped", "test_long"}, parts) == (["test_skipped"], ["test_long"])
