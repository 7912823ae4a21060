"""The state suite and the map suite on a Redis server."""

from __future__ import annotations

import uuid

import pytest

from airflow_tx.state.redis.map import RedisMap
from airflow_tx.state.redis.state import RedisState
from airflow_tx.testing.suites.map_suite import MapSuite
from airflow_tx.testing.suites.map_tools import MakeBacking
from airflow_tx.testing.suites.state_suite import StateSuite
from airflow_tx.testing.suites.state_tools import MakeState
from tests.contract.opening import opening
from tests.servers.redis import LocalRedis


class TestRedisState(StateSuite):
    @pytest.fixture
    def make_state(self, redis: LocalRedis) -> MakeState:
        prefix = f"t{uuid.uuid4().hex[:8]}"
        return opening(lambda name, **given: RedisState.from_url(redis.url(), prefix=f"{prefix}.{name}", **given))


class TestRedisMap(MapSuite):
    examples = 25

    @pytest.fixture
    def make_backing(self, redis: LocalRedis) -> MakeBacking:
        prefix = f"t{uuid.uuid4().hex[:8]}"
        return lambda kind: RedisMap.from_url(redis.url(), prefix=f"{prefix}.{kind}")
