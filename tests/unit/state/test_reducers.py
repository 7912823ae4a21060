"""Rows of which several have one key, as a state takes them; and a reducer, which takes each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_tx.base.errors import StateError
from airflow_tx.state import Avg, Count, MemoryState
from airflow_tx.state.aggregators import Reduced
from airflow_tx.state.rows import combined, combined_at_once, combined_runs
from airflow_tx.testing.suites.aggregator_cases import Balance, LastTwo
from airflow_tx.testing.suites.state_tools import Grants

ROWS: list[dict[str, Any]] = [
    {"user": "a", "n": 1, "step": 5, "delay": 1.0},
    {"user": "b", "n": 1, "step": -3, "delay": None},
    {"user": "a", "n": 2, "step": -7, "delay": 3.0},
    {"user": "a", "n": None, "step": 2, "delay": 2.0},
]


def state(*keys: str, kind: str = "opaque") -> MemoryState:
    values: Any = {"n": Count(), "balance": Balance(), "last": LastTwo(), "delay": Avg()}
    return MemoryState("users", keys=keys, values=values, kind=kind)


def test_a_reducer_receives_all_rows_of_its_key_in_order_and_other_columns_are_combined() -> None:
    first, second = combined(ROWS, state("user"))
    assert first["balance"] == first["last"] == [ROWS[0], ROWS[2], ROWS[3]]
    assert (first["user"], first["n"], first["delay_sum"], first["delay_count"]) == ("a", 3, 6.0, 3)
    assert (second["user"], second["n"], second["balance"]) == ("b", 1, [ROWS[1]])
    assert set(first) == {"user", "n", "balance", "last", "delay_sum", "delay_count"}


def test_rows_that_are_sorted_by_key_are_grouped_one_key_at_a_time() -> None:
    def endless() -> Iterator[dict[str, Any]]:
        yield from sorted(ROWS, key=lambda row: str(row["user"]))
        raise AssertionError("the next key is not looked at before this one is taken")

    found = combined_runs(endless(), state("user"))
    assert next(found) == next(combined(ROWS, state("user")))


def test_a_state_without_keys_reads_the_rows_without_grouping_them() -> None:
    row = combined_at_once(ROWS, state())
    assert row["balance"] is ROWS
    assert row["n"] == 4


def test_a_reducer_applies_rows_in_their_order_and_is_exact_after_a_replay() -> None:
    grants, users = Grants(), state("user")
    grants.commit_rows(1, users, combined(ROWS, users))
    assert [(row["user"], row["balance"], row["last"]) for row in users.read()] == [("a", 2, [-7, 2]), ("b", 0, [-3])]
    more = [{"user": "a", "n": 1, "step": step, "delay": 0.0} for step in (1, -9, 4)]
    users.raise_and_write(grants(2), combined(ROWS, users))
    grants.commit_rows(2, users, combined(more, users), attempt=2)
    assert [(row["user"], row["balance"], row["last"]) for row in users.read()] == [("a", 4, [-9, 4]), ("b", 0, [-3])]


def test_the_error_for_a_row_without_its_key_or_a_combined_column_names_the_row() -> None:
    with pytest.raises(StateError, match=r"row 1: expected columns \['user', 'n', 'delay_sum'.*missing \['user'\]"):
        list(combined([ROWS[0], {"n": 1, "step": 1, "delay": 1.0}], state("user")))
    with pytest.raises(StateError, match=r"row 0: .*missing \['n'\]"):
        list(combined([{"user": "a", "step": 1, "delay": 1.0}], state("user")))


def test_the_error_of_a_reducer_refuses_the_complete_update_and_names_the_row() -> None:
    grants, users = Grants(), state("user")
    rows = [ROWS[1], {"user": "a", "n": 1, "delay": 1.0, "stride": 5}]
    with pytest.raises(StateError, match=r"key {'user': 'a'}: the balance .*'stride': 5.*KeyError: 'step'.*No row"):
        grants.commit_rows(1, users, combined(rows, users))
    assert users.read() == []


@pytest.mark.parametrize("rows", ["step", 5, {"step": 5}, iter([{"step": 5}])])
def test_a_delta_for_a_reducer_that_is_not_a_list_of_rows_is_refused(rows: Any) -> None:
    users = MemoryState("users", keys=["user"], values={"balance": Balance()})
    with pytest.raises(StateError, match=r"row 0 .*a reducer needs"):
        Grants().commit_rows(1, users, [{"user": "a", "balance": rows}])


def test_a_reducer_may_change_a_value_in_place_without_changing_the_stored_value() -> None:
    stored = [1, 2]
    assert Reduced(LastTwo()).combine(stored, [{"step": 3}]) == [2, 3]
    assert stored == [1, 2]
