"""The state suite and the map suite on a Redis server."""

from __future__ import annotations

import uuid

import pytest

from airflow_tx.errors import FenceOutranked, StateBehind
from airflow_tx.state.redis.map import RedisMap
from airflow_tx.state.redis.state import RedisState
from airflow_tx.testing.servers.redis import LocalRedis
from airflow_tx.testing.suites.map_suite import MapSuite
from airflow_tx.testing.suites.map_tools import MakeBacking
from airflow_tx.testing.suites.state_suite import StateSuite
from airflow_tx.testing.suites.state_tools import Grants, MakeState, rows, totals
from tests.contract.opening import opening


class TestRedisState(StateSuite):
    @pytest.fixture
    def make_state(self, redis: LocalRedis) -> MakeState:
        prefix = f"t{uuid.uuid4().hex[:8]}"
        return opening(lambda name, **given: RedisState.from_url(redis.url(), prefix=f"{prefix}.{name}", **given))

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
