"""Rows are looked up in batches: Trident's stateQuery, MapGet and static states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, StateError
from airflow_tx.state import (
    Avg,
    CombinerValueUpdater,
    Count,
    DeltaTable,
    Grant,
    MapGet,
    MemoryMap,
    MemoryState,
    OpaqueMap,
    Replace,
    SqlTable,
    StaticState,
    Sum,
    new_values_stream,
    state_query,
)
from airflow_tx.state.persisted import StateRow
from airflow_tx.testing.suites.state_tools import Grants


class Counted(MemoryState):
    """Notes how many keys each call asked for."""

    def __init__(self, **columns: Any) -> None:
        super().__init__(**columns)
        self.calls: list[int] = []

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        self.calls.append(len(keys))
        return super().multi_get(keys)


@pytest.fixture
def words() -> Counted:
    state = Counted(keys=["word"], values={"count": Count()})
    Grants().commit_rows(1, state, [{"word": "man", "count": 3}, {"word": "dog", "count": 1}])
    return state


def test_a_query_adds_the_value_columns_and_returns_null_for_missing_keys(words: Counted) -> None:
    rows: list[StateRow] = [
        {"n": 1, "word": "dog"},
        {"n": 2, "word": "cat"},
        {"n": 3, "word": "man"},
        {"n": 4, "word": None},
    ]
    assert list(state_query(rows, state=words)) == [
        {"n": 1, "word": "dog", "count": 1},
        {"n": 2, "word": "cat", "count": None},
        {"n": 3, "word": "man", "count": 3},
        {"n": 4, "word": None, "count": None},
    ]


def test_a_state_that_was_never_written_contains_no_key() -> None:
    state = MemoryState(keys=["word"], values={"count": Count(), "mean": Avg()})
    (found,) = state_query([{"word": "man"}], state=state)
    assert (found["count"], found["mean"]) == (None, None)


def test_rows_are_read_in_batches_and_each_key_of_a_batch_is_queried_once(words: Counted) -> None:
    read = 0

    def rows() -> Iterator[StateRow]:
        nonlocal read
        for number in range(25):
            read += 1
            yield {"word": "man" if number % 2 else "cat"}

    found = state_query(rows(), state=words, batch_size=10)
    assert (read, words.calls) == (0, [])
    assert next(found) == {"word": "cat", "count": None}
    assert (read, words.calls) == (10, [2])
    assert len(list(found)) == 24
    assert words.calls == [2, 2, 2]
    assert list(state_query([], state=words)) == []
    assert words.calls == [2, 2, 2]


def test_a_query_may_rename_the_fields_of_the_key_and_choose_some_values() -> None:
    state = MemoryState(keys=["a", "b"], values={"n": Sum(), "mean": Avg()})
    Grants().commit_rows(1, state, [{"a": "x", "b": 1, "n": 5, "mean": 2.0}])
    query = MapGet(keys=["left", "right"], values=["mean"])
    rows = [{"right": 1, "left": "x"}, {"right": 2, "left": "x"}]
    assert [row["mean"] for row in state_query(rows, state=state, query=query)] == [2.0, None]
    assert [set(row) for row in state_query(rows, state=state, query=query)] == [{"left", "right", "mean"}] * 2


def test_a_state_without_keys_adds_its_values_to_every_row() -> None:
    state = MemoryState(keys=[], values={"total": Count()})
    Grants().commit_rows(1, state, [{"total": 7}])
    assert list(state_query([{"n": 1}, {"n": 2}], state=state)) == [{"n": 1, "total": 7}, {"n": 2, "total": 7}]


def test_a_static_state_is_a_map_that_is_filled_by_hand() -> None:
    names = StaticState({"AA": "American", ("UA",): "United"})
    query, rows = MapGet(keys=["carrier"], values=["name"]), [{"carrier": each} for each in ("UA", "AA", "??", None)]
    assert [row["name"] for row in state_query(rows, state=names, query=query)] == ["United", "American", None, None]
    assert "2 keys" in repr(names)
    by_hand = MemoryMap({("AA",): {"name": "American", "hub": "DFW"}})
    query = MapGet(keys=["carrier"], values=["name", "hub"])
    found = list(state_query(rows, state=by_hand, query=query))
    assert found[1] == {"carrier": "AA", "name": "American", "hub": "DFW"}
    assert found[2] == {"carrier": "??", "name": None, "hub": None}


def test_trident_maps_can_be_queried_in_the_same_way() -> None:
    counts: OpaqueMap[int] = OpaqueMap(MemoryMap())
    counts.begin_commit(1)
    counts.multi_update([("man",)], [CombinerValueUpdater(Count(), 2)])
    counts.multi_update([("dog",)], [Replace(5)])
    counts.commit(1)
    query = MapGet(keys=["word"], values=["count"])
    rows = [{"word": "man"}, {"word": "cat"}, {"word": "dog"}]
    assert [row["count"] for row in state_query(rows, state=counts, query=query)] == [2, None, 5]


def test_a_custom_query_may_omit_rows_and_return_several_rows() -> None:
    class Followers:
        def batch_retrieve(self, state: dict[str, list[str]], rows: Sequence[StateRow]) -> list[list[str]]:
            return [state.get(row["user"], []) for row in rows]

        def execute(self, row: StateRow, result: list[str]) -> Iterable[StateRow]:
            return [{"follower": each} for each in result]

    rows = [{"user": "nobody"}, {"user": "nathan"}]
    found = list(state_query(rows, state={"nathan": ["bob", "tim"]}, query=Followers()))
    assert found == [{"user": "nathan", "follower": "bob"}, {"user": "nathan", "follower": "tim"}]


def test_the_stream_of_new_values_contains_each_updated_key_once(words: Counted) -> None:
    grants, update = Grants(), [{"word": "man", "count": 2}, {"word": "cat", "count": 1}]
    grants.incarnation, grants.last = words.database.fence.incarnation if words.database.fence else "", {words.name: 1}
    grants.commit_rows(2, words, update)
    found = new_values_stream([*update, update[0]], state=words)
    assert list(found) == [{"word": "man", "count": 5}, {"word": "cat", "count": 1}]
    with pytest.raises(StateError, match=r"row \{\} has no field 'word'"):
        list(new_values_stream([{"werd": "man"}], state=words))


def test_a_query_may_return_values_of_the_transaction_that_is_being_committed(words: Counted) -> None:
    grants = Grants()
    grants.incarnation, grants.last = words.database.fence.incarnation if words.database.fence else "", {words.name: 1}
    old: Grant = grants(2)
    words.raise_and_write(old, [{"word": "man", "count": 10}])
    assert [row["count"] for row in state_query([{"word": "man"}], state=words)] == [13]
    words.raise_fence(grants(2, 2))  # a replay begins
    assert [row["count"] for row in state_query([{"word": "man"}], state=words)] == [3]


def test_an_impossible_query_is_refused_with_a_one_line_error(words: Counted) -> None:
    rows = [{"word": "man"}, {"werd": "man"}]
    with pytest.raises(StateError, match=r"row \{'werd': 'man'\} has no field 'word'.*MapGet\(keys=\[\.\.\.\]\)"):
        list(state_query(rows, state=words))
    with pytest.raises(StateError, match=r"key 0 \(7,\): word = 7 is not a text. The column has the type text"):
        list(state_query([{"word": 7}], state=words))
    for query, message in (
        (MapGet(values=["sum"]), r"State 'memory' has the value columns count"),
        (MapGet(keys=["word", "word"]), "Name a field for each key column of state 'memory': word"),
    ):
        with pytest.raises(ConfigError, match=message):
            list(state_query([{"word": "man"}], state=words, query=query))
    with pytest.raises(ConfigError, match=r"A StaticState has no names: MapGet\(keys="):
        list(state_query([{"word": "man"}], state=StaticState({})))
    with pytest.raises(ConfigError, match=r"Give a list: \['word'\]"):
        MapGet(keys="word")
    with pytest.raises(ConfigError, match="Use a number of rows from 1"):
        state_query([], state=words, batch_size=0)


@pytest.mark.parametrize(
    "table", [SqlTable("warehouse", table="orders"), DeltaTable("/lake/orders")], ids=["SqlTable", "DeltaTable"]
)
@pytest.mark.parametrize("query", [None, MapGet(keys=["id"], values=["amount"])], ids=["names", "no names"])
def test_a_query_of_a_table_without_keys_is_refused_with_the_alternative(table: Any, query: MapGet | None) -> None:
    with pytest.raises(ConfigError, match=r"Its rows have no key, .* in a SqlState") as said:
        list(state_query([{"id": 1}], state=table, query=query))
    assert "\n" not in str(said.value)
