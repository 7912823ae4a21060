"""The suite of the ackers on every store we have."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.stores import ZnodeAckers, open_ackers
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.servers.redis import LocalRedis
from tests.suites.acker_case import MakeStore
from tests.suites.acker_suite import AckerSuite


class TestAckersInMemory(AckerSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        store = MemoryStore()
        return lambda: ZnodeAckers(store, "/airflow_tx")


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _made(stack: ExitStack, url: str) -> MakeStore:
    def make() -> ZnodeAckers:
        store = open_ackers(url)
        stack.callback(store.close)
        return store  # type: ignore[return-value]

    return make


class TestAckersInZooKeeper(AckerSuite):
    @pytest.fixture
    def make_store(self, zookeeper: LocalZooKeeper, closing: ExitStack) -> MakeStore:
        return _made(closing, f"zookeeper://{zookeeper.hosts}/acks-{uuid.uuid4().hex[:8]}")


class TestAckersInRedis(AckerSuite):
    @pytest.fixture
    def make_store(self, redis: LocalRedis, closing: ExitStack) -> MakeStore:
        return _made(closing, redis.url())
