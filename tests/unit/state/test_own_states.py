"""The seed's LocationDB, in bulk: a state that somebody wrote, its factory, its query and its updater; and the two
kinds of Trident aggregators on a map, grouped and global."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import StateError
from airflow_tx.state import (
    CollectSet,
    CombinerValueUpdater,
    Count,
    MapState,
    MemoryMap,
    OpaqueMap,
    QueryFunction,
    ReducerAggregator,
    ReducerValueUpdater,
    Snapshottable,
    SnapshottableMap,
    State,
    StateFactory,
    StateUpdater,
    Sum,
    ValueUpdater,
)
from airflow_tx.state.persisted import StateRow, query, update


class LocationDB:
    """Somebody's database of locations, with methods of its own."""

    def __init__(self, locations: dict[int, str]) -> None:
        self.locations = locations
        self.calls: list[Any] = []

    def begin_commit(self, txid: int | None) -> None:
        self.calls.append(("begin", txid))

    def commit(self, txid: int | None) -> None:
        self.calls.append(("commit", txid))

    def set_locations_bulk(self, user_ids: Sequence[int], locations: Sequence[str]) -> None:
        self.calls.append("set")
        self.locations.update(zip(user_ids, locations, strict=True))

    def bulk_get_locations(self, user_ids: Sequence[int]) -> list[str | None]:
        self.calls.append("get")
        return [self.locations.get(user) for user in user_ids]


class LocationDBFactory:
    def __init__(self, locations: dict[int, str]) -> None:
        self.locations = locations

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> LocationDB:
        return LocationDB(self.locations)


class QueryLocation:
    def batch_retrieve(self, state: LocationDB, rows: Sequence[StateRow]) -> list[str | None]:
        return state.bulk_get_locations([row["userid"] for row in rows])

    def execute(self, row: StateRow, result: str | None) -> Iterable[StateRow]:
        return [] if result is None else [{"location": result}]


class LocationUpdater:
    def update_state(self, state: LocationDB, rows: Sequence[StateRow]) -> Iterable[StateRow]:
        state.set_locations_bulk([row["userid"] for row in rows], [row["location"] for row in rows])
        return ({"userid": row["userid"]} for row in rows)


FACTORY: StateFactory[LocationDB] = LocationDBFactory({1: "Oslo"})
QUERY: QueryFunction[LocationDB, str | None] = QueryLocation()
UPDATER: StateUpdater[LocationDB] = LocationUpdater()


def test_a_custom_state_is_updated_and_queried_in_bulk() -> None:
    state = FACTORY.make_state({}, 0, 1)
    new = update(state, 7, [{"userid": 2, "location": "Rome"}, {"userid": 1, "location": "Bern"}], UPDATER)
    assert (new, state.calls) == ([{"userid": 2}, {"userid": 1}], [("begin", 7), "set", ("commit", 7)])
    other = FACTORY.make_state({}, 1, 2)
    rows = [{"userid": 1}, {"userid": 3}, {"userid": 2}]
    assert list(query(other, rows, QUERY)) == [{"userid": 1, "location": "Bern"}, {"userid": 2, "location": "Rome"}]
    assert other.calls == ["get"]
    assert list(query(other, [], QUERY)) == []


def test_a_query_that_returns_another_number_of_results_than_keys_is_refused() -> None:
    class Short(QueryLocation):
        def batch_retrieve(self, state: LocationDB, rows: Sequence[StateRow]) -> list[str | None]:
            return []

    with pytest.raises(StateError, match="Short.batch_retrieve gave 0 results for 1 rows"):
        list(query(FACTORY.make_state({}, 0, 1), [{"userid": 1}], Short()))


def test_a_batch_that_fails_is_not_committed() -> None:
    state = FACTORY.make_state({}, 0, 1)
    with pytest.raises(KeyError):
        update(state, 1, [{"userid": 1}], UPDATER)
    assert state.calls == [("begin", 1)]


def test_the_maps_can_be_used_through_their_interfaces() -> None:
    counts: OpaqueMap[int] = OpaqueMap(MemoryMap())
    as_map: MapState[int] = counts
    as_value: Snapshottable[int] = SnapshottableMap(as_map)
    as_state: State = as_value
    as_state.begin_commit(1)
    adds: ValueUpdater[int] = CombinerValueUpdater(Sum(), 2)
    assert (as_value.update(adds), as_value.get()) == (2, 2)
    as_state.commit(1)


def test_the_word_count_example_of_trident_returns_the_expected_counts() -> None:
    counts: OpaqueMap[int] = OpaqueMap(MemoryMap())
    sentences = ["the cow jumped over the moon", "the man went to the store", "how many apples can you eat"]
    for txid, sentence in enumerate(sentences, 1):
        words = sentence.split()
        counts.begin_commit(txid)
        counts.multi_update(
            [(word,) for word in words], [CombinerValueUpdater(Count(), Count().init(w)) for w in words]
        )
        counts.commit(txid)
    assert counts.multi_get([("the",), ("man",), ("nobody",)]) == [4, 1, None]


class Longest:
    """A reducer: the longest word so far."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, row: Any) -> str:
        return max(current, str(row["word"]), key=len)


def test_a_reducer_processes_rows_one_after_another() -> None:
    longest: ReducerAggregator[str] = Longest()
    state: SnapshottableMap[str] = SnapshottableMap(OpaqueMap(MemoryMap()))
    for txid, words in ((1, ["a", "bcd"]), (2, ["abcdef"]), (2, ["x"])):
        state.begin_commit(txid)
        state.update(ReducerValueUpdater(longest, [{"word": word} for word in words]))
        state.commit(txid)
    assert state.get() == "bcd"


def test_a_combiner_adds_the_value_of_a_row_and_ignores_null() -> None:
    assert CombinerValueUpdater[Any](CollectSet(), "b").update(None) == ["b"]
    assert CombinerValueUpdater[Any](CollectSet(), "b").update(["a"]) == ["a", "b"]
    assert CombinerValueUpdater[int](Sum(), None).update(3) == 3
    assert CombinerValueUpdater[int](Sum(), None).update(None) is None
