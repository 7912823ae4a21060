"""A store of each kind, empty, with a root of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tx.protocol.api import Store
from airflow_tx.store.client import ClientConfig, connect, disconnect
from airflow_tx.store.memory import MemoryStore
from airflow_tx.store.zookeeper import ZooKeeperStore


@pytest.fixture(params=["memory", "zookeeper"])
def each_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The store of each kind in turn."""
    if request.param == "memory":
        yield MemoryStore()
        return
    client = connect(ClientConfig(request.getfixturevalue("zookeeper").hosts))
    yield ZooKeeperStore(client)
    disconnect(client)
