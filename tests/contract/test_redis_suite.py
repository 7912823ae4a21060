"""The state suite and the map suite on a Redis server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

import pytest

from airflow_tx.errors import FenceOutranked, StateBehind
from airflow_tx.state import Aggregator, Sum
from airflow_tx.state.backing.redis import RedisState
from airflow_tx.state.backing.redis_map import RedisMap
from airflow_tx.testing.map_suite import MakeBacking, MapSuite
from airflow_tx.testing.redis import LocalRedis
from airflow_tx.testing.state_suite import Grants, MakeState, ReadableState, StateSuite, rows, totals


@pytest.fixture(scope="module")
def redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


class TestRedisState(StateSuite):
    @pytest.fixture
    def make_state(self, redis: LocalRedis) -> MakeState:
        prefix = f"t{uuid.uuid4().hex[:8]}"

        def make(
            kind: str,
            name: str = "first",
            *,
            keys: Sequence[str] = ("key",),
            values: Mapping[str, Aggregator] | None = None,
            types: Mapping[str, str] | None = None,
        ) -> ReadableState:
            columns = values or {"n": Sum()}
            return RedisState.from_url(
                redis.url(), prefix=f"{prefix}.{name}", keys=keys, values=columns, kind=kind, types=types
            )

        return make

    def test_two_states_are_fenced_and_rolled_back_each_for_itself(self, make_state: MakeState, grants: Grants) -> None:
        """As in the suite, but that a transaction is final in a state only once it is complete there.

        Redis may keep a raised fence and lose what was written after it, so the next raise looks for completeness.
        """
        first, second = make_state("opaque", "first"), make_state("opaque", "second")
        assert first.name != second.name
        old = grants(1)
        for state in (first, second):
            state.raise_fence(old)
            state.write(old, rows({"a": 1}))
        new = grants(1, 2)
        first.raise_fence(new)
        assert (totals(first), totals(second)) == ({}, {"a": 1})
        second.raise_fence(new)
        first.write(new, rows({"a": 1}))
        with pytest.raises(FenceOutranked):
            second.write(old, rows({"a": 1}))
        grants.final(new, first, second)
        following = grants(2)
        first.raise_fence(following)
        first.write(following, rows({"a": 10}))
        with pytest.raises(StateBehind, match="1, without all of its updates"):
            second.raise_fence(following)
        second.write(new, [])
        second.raise_fence(following)
        second.write(following, rows({"a": 10}))
        assert (totals(first), totals(second)) == ({"a": 11}, {"a": 10})


class TestRedisMap(MapSuite):
    examples = 25

    @pytest.fixture
    def make_backing(self, redis: LocalRedis) -> MakeBacking:
        prefix = f"t{uuid.uuid4().hex[:8]}"
        return lambda kind: RedisMap.from_url(redis.url(), prefix=f"{prefix}.{kind}")
