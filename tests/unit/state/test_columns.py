"""Rows against the columns of a state: limits, composites and refusals, the same for every store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, StateError
from airflow_tx.state import Aggregator, Avg, CollectSet, Count, Last, Max, MemoryState, Min, Sum
from airflow_tx.state.aggregators import Cells, Columns
from airflow_tx.state.rows import MAX_KEY_BYTES, CheckedRows


def columns(values: dict[str, Aggregator], *, keys: tuple[str, ...] = ("k",), **more: Any) -> Columns:
    return Columns("words", keys, values, more.pop("types", {}), **more)


def checked(made: Columns, *rows: dict[str, Any]) -> list[Cells]:
    update = CheckedRows(made)
    (portion,) = update.portions(rows, update.key_types(rows[0]), size=100)
    return list(zip(*portion, strict=True))


AVG = columns({"delay": Avg()})


def test_the_store_of_a_state_contains_only_the_parts_of_a_composite_column() -> None:
    assert dict(AVG.values) == {"delay_sum": Sum("double"), "delay_count": Count()}
    assert dict(AVG.aggregators) == {"delay": Avg()}


def test_a_row_contains_a_composite_column_as_its_parts_or_as_one_number() -> None:
    rows: list[dict[str, Any]] = [
        {"k": "a", "delay_sum": 6.0, "delay_count": 2},
        {"k": "b", "delay": 4.0},
        {"k": "c", "delay": None},
    ]
    assert checked(AVG, *rows) == [("a", 6.0, 2), ("b", 4.0, 1), ("c", None, 0)]
    assert rows[1] == {"k": "b", "delay": 4.0}


def test_reading_a_composite_column_returns_its_result() -> None:
    assert AVG.completed({"k": "a", "delay_sum": 10.0, "delay_count": 4})["delay"] == 2.5
    assert AVG.completed({"k": "a", "delay_sum": None, "delay_count": 0})["delay"] is None


def test_a_row_with_a_part_of_a_composite_column_or_with_both_forms_is_refused() -> None:
    with pytest.raises(
        StateError, match=r"missing \['delay_count'\].*One column delay can replace delay_sum and delay_count"
    ):
        checked(AVG, {"k": "a", "delay_sum": 1.0})
    with pytest.raises(StateError, match=r"not expected \['delay'\]"):
        checked(AVG, {"k": "a", "delay_sum": 1.0, "delay_count": 1, "delay": 1.0})


def test_a_column_that_is_a_part_of_a_composite_column_cannot_be_used_twice() -> None:
    with pytest.raises(ConfigError, match="named twice"):
        columns({"delay": Avg(), "delay_sum": Sum()})


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ({"keys": "day"}, r"MemoryState\(keys=\) = 'day' cannot be used. Give a list: keys=\['day'\]"),
        ({"keys": None}, r"MemoryState\(keys=\) = None cannot be used. Give a list"),
        ({"values": ["n"]}, r"\(values=\) = \['n'\] cannot be used. Give an aggregator .* values=\{\"n\": Count\(\)\}"),
        ({"values": {"n": Count}}, r"Column 'n' has a class, and needs an object of it: Count\(\)"),
        ({"values": {"n": Avg}}, r"Column 'n' has a class, and needs an object of it: Avg\(\)"),
        ({"types": ["text"]}, r"\(types=\) = \['text'\] cannot be used. Give the types of key columns"),
    ],
)
def test_the_error_for_invalid_arguments_of_a_state_shows_the_correct_spelling(mistake: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MemoryState(**{"keys": ["day"], "values": {"n": Count()}, **mistake})


@pytest.mark.parametrize("key", ["x" * (MAX_KEY_BYTES + 1), "ä" * 513, b"x" * 1025])
def test_the_error_for_a_key_that_is_too_long_shows_its_row_and_its_size(key: Any) -> None:
    limit = r"row 1 .* its key has 102[56] bytes, more than 1024"
    with pytest.raises(StateError, match=limit):
        checked(columns({"n": Sum()}), {"k": key[:1], "n": 1}, {"k": key, "n": 1})


def test_the_columns_of_a_key_count_together_for_its_size_limit() -> None:
    two = columns({"n": Sum()}, keys=("a", "b"))
    assert checked(two, {"a": "x" * 512, "b": "x" * 512, "n": 1})
    with pytest.raises(StateError, match="1025 bytes"):
        checked(two, {"a": "x" * 512, "b": "x" * 513, "n": 1})


def test_a_key_with_exactly_the_maximum_size_is_accepted() -> None:
    assert checked(columns({"n": Sum()}), {"k": "x" * MAX_KEY_BYTES, "n": 1})


@pytest.mark.parametrize(
    ("aggregator", "value"), [(Last("text"), "x" * 11), (Last("bytes"), b"x" * 11), (Last("json"), ["x" * 8])]
)
def test_a_value_larger_than_the_limit_of_the_store_is_refused(aggregator: Aggregator, value: Any) -> None:
    made = columns({"v": aggregator}, max_value_bytes=10)
    with pytest.raises(StateError, match="row 0 .* has 1[12] bytes, more than the 10 that this state can store"):
        checked(made, {"k": "a", "v": value})
    assert checked(made, {"k": "a", "v": value[:1] if not isinstance(value, list) else ["x"]})


def test_a_value_that_grows_larger_than_the_limit_is_refused() -> None:
    made = columns({"v": CollectSet()}, max_value_bytes=10)
    with pytest.raises(StateError, match=r"key \{'k': 'a'\}: the collect_set of column v has 12 bytes"):
        made.combined(("a",), (["xxx"],), (["yy"],))


@pytest.mark.parametrize(
    ("aggregator", "stored", "delta", "message"),
    [
        (Sum(), 2**63 - 1, 1, 'of column v does not fit into 64 bits. No row of this update was written. Use Sum."num'),
        (Sum("double"), 1.7e308, 1.7e308, "larger than any double"),
        (Count(), 2**63 - 1, 1, "the count of column v does not fit into 64 bits"),
        (CollectSet(2), [1, 2], [3], "has 3 distinct values, more than CollectSet.bound=2."),
    ],
)
def test_the_error_for_a_result_that_does_not_fit_its_type_shows_its_key(
    aggregator: Aggregator, stored: Any, delta: Any, message: str
) -> None:
    with pytest.raises(StateError, match=rf"'words' refused: key .'k': 'a'.: .*{message}"):
        columns({"v": aggregator}).combined(("a",), (stored,), (delta,))


def test_the_error_for_a_delta_with_too_many_values_shows_its_row() -> None:
    with pytest.raises(StateError, match="row 0 .*has 3 distinct values"):
        checked(columns({"v": CollectSet(2)}), {"k": "a", "v": [1, 2, 3]})


def test_a_null_value_is_never_combined_with_another_value() -> None:
    made = columns({"v": Min(), "w": Max()})
    assert made.combined(("a",), (None, 3), (5, None)) == (5, 3)
    assert made.combined(("a",), None, (None, 1)) == (None, 1)


@dataclass(frozen=True)
class Own:
    """Somebody's aggregator."""

    name: str = "product"
    type: str = "bigint"

    def zero(self) -> int:
        return 1

    def init(self, value: Any) -> Any:
        return value

    def combine(self, a: Any, b: Any) -> Any:
        return a * b


class Concat:
    """A reducer as a map takes it."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, row: Any) -> str:
        return current + str(row)


def test_a_custom_aggregator_is_accepted_if_its_name_is_not_used() -> None:
    assert columns({"v": Own()}).combined(("a",), (3,), (4,)) == (12,)
    with pytest.raises(ConfigError, match="'sum'; give it another name"):
        columns({"v": Own(name="sum")})
    with pytest.raises(ConfigError, match="not one of bigint"):
        columns({"v": Own(type="int8")})


def test_a_column_with_an_incomplete_reducer_is_refused() -> None:
    with pytest.raises(ConfigError, match="Concat.* needs attributes of its own: name and type"):
        columns({"v": Concat()})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="no combine.* and no reduce"):
        columns({"v": "sum"})  # type: ignore[dict-item]


def test_a_json_column_cannot_be_a_key() -> None:
    with pytest.raises(ConfigError, match="one of the types bigint"):
        columns({"n": Sum()}, types={"k": "json"})
