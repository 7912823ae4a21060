"""The map suite on Memcached servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from airflow_tx.state.memcached import MemcachedMap
from airflow_tx.testing.suites.map_suite import MapSuite
from airflow_tx.testing.suites.map_tools import MakeBacking
from tests.servers.memcached import LocalMemcached


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    with LocalMemcached() as first, LocalMemcached() as second:
        yield [first.address, second.address]


class TestMemcachedMap(MapSuite):
    examples = 25

    @pytest.fixture
    def make_backing(self, servers: list[str]) -> MakeBacking:
        prefix = f"t{uuid.uuid4().hex[:8]}:"
        return lambda kind: MemcachedMap(servers, prefix=f"{prefix}{kind}:")
