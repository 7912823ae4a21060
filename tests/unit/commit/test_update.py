"""Rows of several outputs become one row a key, by the aggregators of the state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import StateError
from airflow_tx.state import Count, MemoryState, Sum
from airflow_tx.state.rows import combined
from airflow_tx.transaction.commit.update import persistent_aggregate

STATE = MemoryState("words", keys=["word"], values={"count": Count(), "total": Sum()})


def row(word: str, count: int, total: int | None) -> dict[str, Any]:
    return {"word": word, "count": count, "total": total}


def test_the_deltas_of_one_key_are_summed() -> None:
    rows = [row("man", 2, 5), row("dog", 1, 1), row("man", 1, 2)]
    assert list(combined(rows, STATE)) == [row("man", 3, 7), row("dog", 1, 1)]


def test_a_null_delta_does_not_change_the_sum() -> None:
    assert list(combined([row("man", 1, None), row("man", 1, 2)], STATE)) == [row("man", 2, 2)]


def test_the_combination_of_no_rows_is_empty() -> None:
    assert list(combined([], STATE)) == []


def test_combining_rows_does_not_change_the_input_rows() -> None:
    rows = [row("man", 2, 5), row("man", 1, 2)]
    list(combined(rows, STATE))
    assert rows == [row("man", 2, 5), row("man", 1, 2)]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"count": 1, "total": 1}, r"row 1: expected columns \['word', 'count', 'total'\], missing \['word'\]"),
        ("man", "row 1 'man': it is not a dict. Return rows as dicts with the columns word, count, total"),
        ({"word": ["man"], "count": 1, "total": 1}, r"row 1 .*: word = \['man'\] is not a text"),
    ],
)
def test_the_error_for_a_row_without_a_usable_key_names_the_number_of_the_row(bad: Any, problem: str) -> None:
    with pytest.raises(StateError, match=f"'words' refused: {problem}"):
        list(combined([row("dog", 1, 1), bad], STATE))


def test_deltas_that_cannot_be_summed_are_refused() -> None:
    with pytest.raises(StateError, match="row 1 .*: total = '1' is not an integer"):
        list(combined([row("dog", 1, 1), {"word": "dog", "count": 1, "total": "1"}], STATE))


def test_the_repr_of_an_update_shows_its_task_and_its_state_and_no_address() -> None:
    counts: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")
    text = repr(persistent_aggregate(counts, state=STATE))
    assert text.startswith("persistent_aggregate(count['return_value'], state=MemoryState('words'")
    assert "0x" not in text
